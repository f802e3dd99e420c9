"""The multi-index: what a search opens, how it follows its items, and its edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import laws
from softdex.data.ragged import Ragged
from softdex.errors import DataError, SoftdexError
from softdex.index.contract import Filter, copy_into
from softdex.index.flat import Flat
from softdex.index.imi import index as imi
from softdex.index.imi.books import codewords_for, popularity_weight
from softdex.index.imi.index import FLOOR, Imi, build
from softdex.index.imi.search import opened
from softdex.kernels.scan import REACH
from softdex.score.product import Cosine, Dot
from softdex.solve.gradient.rowwise import RowAdam

ITEMS, DIM, BATCH = laws.ITEMS, 6, laws.BATCH
EVERYTHING = torch.arange(ITEMS)
BOOKS = pytest.mark.parametrize("residual", [False, True], ids=["product", "residual"])
STAGES = pytest.mark.parametrize("last", imi.LAST)


def world(
    seed: int = 0,
    *,
    items: int = ITEMS,
    bias: Tensor | None = None,
    last: str = "uniform",
    residual: bool = False,
    words: int = 4,
) -> tuple[Imi, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scorer = Dot(torch.randn(items, DIM, generator=generator), bias)
    query = torch.randn(BATCH, DIM, generator=generator)
    weight = None
    if last == "popularity":
        weight = popularity_weight(torch.randint(0, 50, (items,), generator=generator))
    options: dict[str, Any] = {"last": last, "weight": weight, "residual": residual}
    return build(scorer, codewords=words, generator=generator, **options), query


def law(index: Imi, query: Tensor) -> Tensor:
    return index.log_prob(query, torch.arange(index.num_items)).double()


def closed_form(index: Imi, query: Tensor) -> Tensor:
    """The softmax of words and weights in float64, item by item, from the cells as they stand."""
    size, words = index.words.shape[1], index.words.double()
    scores = torch.full((len(query), index.num_items), -math.inf, dtype=torch.float64)
    for i in index.alive.nonzero()[:, 0].tolist():
        first, second = divmod(int(index.cell[i]), size)
        scores[:, i] = query.double() @ (words[0, first] + words[1, second])
        scores[:, i] += index.logw[i].double()
    return scores.log_softmax(1)


def nearest_cell(index: Imi, i: int) -> int:
    """The cell of an item's present vector, by a loop."""
    vector, book = (
        index.scorer.vectors(torch.tensor([i]))[0].detach().double(),
        index.words.double(),
    )
    size, half = book.shape[1], DIM // 2
    gaps = lambda left, words: [float((left - w).square().sum()) for w in words]  # noqa: E731
    if index.residual:
        first = int(np.argmin(gaps(vector, book[0])))
        return first * size + int(np.argmin(gaps(vector - book[0, first], book[1])))
    first = int(np.argmin(gaps(vector[:half], book[0, :, :half])))
    return first * size + int(np.argmin(gaps(vector[half:], book[1, :, half:])))


def far_from_the_softmax(index: Imi, query: Tensor) -> float:
    """Mean KL(proposal || softmax)."""
    ours = law(index, query)
    exact = Flat(index.scorer, index.alive).log_prob(query, torch.arange(index.num_items)).double()
    real = index.alive
    return float((ours.exp() * (ours - exact))[:, real].sum(1).mean())


def barred(seed: int, share: float, items: int = ITEMS) -> tuple[Filter, Tensor]:
    """A filter, whose mask has a row per query for odd seeds, and what it lets through (B, I)."""
    draw = np.random.default_rng(seed)
    lists = [np.flatnonzero(draw.random(items) < share) for _ in range(BATCH)]
    allow = torch.from_numpy(draw.random((BATCH, items) if seed % 2 else items) < 0.8)
    exclude = Ragged(np.cumsum([0, *map(len, lists)]), np.concatenate(lists).astype(np.int32))
    free = allow.expand(BATCH, -1).clone()
    free[exclude.row_of, exclude.ids] = False
    return Filter(exclude, allow), free


# search ------------------------------------------------------------------------------------------


def scattered(seed: int, offsets: bool) -> tuple[Imi, Tensor]:
    """Items lie in any cell, near its words or not; one cell is empty, five items are nowhere."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *s: torch.randn(*s, generator=generator)  # noqa: E731
    scorer = Dot(draw(60, DIM), draw(60) if offsets else None)
    cell = torch.randint(25, (60,), generator=generator).int()
    cell[cell == 7] = 8
    alive = torch.ones(60, dtype=torch.bool)
    alive[torch.randperm(60, generator=generator)[:5]] = False
    return Imi(scorer, draw(2, 5, DIM), cell, torch.zeros(60), alive), draw(BATCH, DIM)


def cells_by_loop(index: Imi, z: Tensor) -> list[int]:
    """The best first: by the score of a cell's words and of what its items have beyond them, |z|
    times REACH deviations in a direction, and the mean offset."""
    size, z = index.words.shape[1], z.double()
    vectors = index.scorer.items.weight.double()
    lift = torch.zeros(60) if index.scorer.bias is None else index.scorer.bias.weight[:, 0]
    priority = {}
    for cell in range(size * size):
        word = (index.words[0, cell // size] + index.words[1, cell % size]).double()
        inside = [i for i in range(60) if index.alive[i] and index.cell[i] == cell]
        if inside:
            far = sum((vectors[i] - word).square().mean().item() for i in inside) / len(inside)
            bias = sum(lift[i].item() for i in inside) / len(inside)
            priority[cell] = float(z @ word + z.norm() * REACH * math.sqrt(far)) + bias
    return sorted(priority, key=lambda cell: -priority[cell])


def opened_by_loop(index: Imi, cells: list[int], enough: float, free: list[int]) -> list[int]:
    """The allowed items of these cells, until enough."""
    if enough >= index.num_items:
        return free
    found: list[int] = []
    for cell in cells:
        if len(found) >= enough:
            break
        found += [i for i in free if index.cell[i] == cell]
    return found


def let_through(seed: int, share: float | None) -> tuple[Filter | None, Tensor]:
    return (None, torch.ones(BATCH, 60).bool()) if share is None else barred(seed, share, 60)


SHARES = pytest.mark.parametrize("share", [None, 0.0, 0.3, 0.9])
OFFSETS = pytest.mark.parametrize("offsets", [False, True], ids=["plain", "with offsets"])


@pytest.mark.parametrize("seed", range(3))
@SHARES
@OFFSETS
def test_a_search_ranks_the_items_of_the_best_cells_until_they_are_enough(
    seed: int, share: float | None, offsets: bool
) -> None:
    index, query = scattered(seed, offsets)
    filter, free = let_through(seed, share)
    scores = index.score(query, torch.arange(60))
    for b in range(BATCH):
        mine = (free[b] & index.alive).nonzero()[:, 0].tolist()
        cells = cells_by_loop(index, query[b])
        for k, effort in [(1, 1), (3, 10), (5, 25.5), (20, 7), (59, 0), (60, 0), (4, math.inf)]:
            hits = index.search(query, k, filter=filter, effort=effort)
            seen = opened_by_loop(index, cells, max(effort, k), mine)
            best = sorted(seen, key=lambda i: -scores[b, i].item())[:k]
            assert hits.ids[b].tolist() == best + [-1] * (k - len(best))
            assert torch.allclose(hits.scores[b, : len(best)], scores[b, best], atol=1e-5)
            assert (hits.scores[b, len(best) :] == -math.inf).all()


@pytest.mark.parametrize("seed", range(3))
@SHARES
@OFFSETS
def test_a_gpu_opens_the_same_cells(seed: int, share: float | None, offsets: bool) -> None:
    """Its own way to them needs no GPU."""
    index, query = scattered(seed, offsets)
    filter, free = let_through(seed, share)
    for b in range(BATCH):
        mine = (free[b] & index.alive).nonzero()[:, 0].tolist()
        cells = cells_by_loop(index, query[b])
        for enough in (1, 10, 25.5, 59):
            cell_is_open = opened(index, query, enough, filter)[b]
            seen = [i for i in mine if cell_is_open[index.cell[i].item()]]
            assert seen == sorted(opened_by_loop(index, cells, enough, mine))


@pytest.mark.parametrize("seed", range(4))
@BOOKS
def test_k_come_back_while_k_are_allowed_even_at_the_least_effort(
    seed: int, residual: bool
) -> None:
    index, query = world(seed, residual=residual)
    index = index.delete(torch.tensor([2, 9, 20]))
    for share in (0.0, 0.5, 0.95):
        filter, free = barred(seed, share)
        for k in (1, 4, ITEMS):
            hits = index.search(query, k, filter=filter, effort=1)
            for b in range(BATCH):
                found = [i for i in hits.ids[b].tolist() if i >= 0]
                assert len(set(found)) == min(k, int((free[b] & index.alive).sum()))
                assert all(free[b, i] and index.alive[i] for i in found)


def test_blocks_of_items_do_not_change_a_search() -> None:
    index, query = world(items=300)
    whole = index.search(query, 9, effort=40)
    tight = index.search(query, 9, effort=40, max_memory=BATCH * 12 * 20)
    assert torch.equal(whole.ids, tight.ids)


def test_more_effort_never_finds_a_worse_item() -> None:
    index, query = world(items=300, words=8)
    before = torch.full((BATCH, 5), -math.inf)
    for effort in (5, 10, 40, 150, math.inf):
        now = index.search(query, 5, effort=effort).scores
        assert (now >= before - 1e-5).all()  # the exact search adds up in another order
        before = now


# tune --------------------------------------------------------------------------------------------


def recall_of(index: Imi, query: Tensor, k: int, effort: float | None = None) -> float:
    found = index.search(query, k, effort=effort).ids.tolist()
    best = Flat(index.scorer, index.alive).search(query, k).ids.tolist()
    hits = sum(len(set(f) & set(b)) for f, b in zip(found, best, strict=True))
    return hits / sum(map(len, best))


@BOOKS
@pytest.mark.parametrize("recall", [0.5, 0.8, 0.95])
def test_a_tuned_index_has_the_recall_it_was_asked_for(residual: bool, recall: float) -> None:
    index, _ = world(items=500, words=8, residual=residual)
    query = torch.randn(40, DIM, generator=torch.Generator().manual_seed(1))
    tuned = index.tune(query, recall, k=10)
    assert recall_of(tuned, query, 10) >= recall
    assert tuned.effort < index.num_items
    less = tuned.effort / math.sqrt(2)
    assert less <= 10 or recall_of(tuned, query, 10, less) < recall, "less effort would have done"
    assert index.effort == math.inf, "the index it came from has changed"


def test_where_only_everything_will_do_the_effort_is_without_end() -> None:
    """The best item alone is in the last cell to be opened."""
    generator = torch.Generator().manual_seed(0)
    items, words = torch.randn(100, DIM, generator=generator), torch.zeros(2, 2, DIM)
    query = torch.eye(DIM)[:1]
    items[99], words[0, 1] = 10 * query, -1000 * query
    cell = torch.zeros(100, dtype=torch.int32)
    cell[99] = 2
    index = Imi(Dot(items), words, cell, torch.zeros(100), torch.ones(100).bool())
    assert 99 not in index.search(query, 3, effort=98).ids
    tuned = index.tune(query, 1.0, k=3)
    assert tuned.effort == math.inf
    assert tuned.search(query, 3).ids[0, 0] == 99


def test_tuning_asks_for_no_more_items_than_live() -> None:
    index, query = world()
    few = index.delete(torch.arange(5, ITEMS))
    assert recall_of(few.tune(query, 1.0, k=100), query, 5) == 1


@pytest.mark.usefixtures("loud")
def test_tuning_says_what_recall_costs_unless_asked_to_be_quiet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    index, query = world(items=200)
    index.tune(query, 0.9, k=5, quiet=True)
    assert capsys.readouterr().err == ""
    index.tune(query, 0.9, k=5)
    said = capsys.readouterr().err
    assert "recall@5" in said
    assert "queries/s" in said


# follow and edit ---------------------------------------------------------------------------------


@BOOKS
@STAGES
def test_a_built_index_has_every_item_in_its_nearest_cell(residual: bool, last: str) -> None:
    index, _ = world(residual=residual, last=last)
    assert index.cell.tolist() == [nearest_cell(index, i) for i in range(ITEMS)]


@BOOKS
@STAGES
def test_update_moves_these_items_to_their_present_cells_and_no_other(
    residual: bool, last: str
) -> None:
    index, query = world(1, residual=residual, last=last)
    old = index.cell.clone()
    index.scorer.items.weight.mul_(-1)  # everything has moved; two of them are followed
    moved = torch.tensor([3, 17])
    new = index.update(moved)
    assert new.cell[moved].tolist() == [nearest_cell(index, i) for i in (3, 17)]
    assert (new.cell[moved] != old[moved]).any()
    others = torch.ones(ITEMS, dtype=torch.bool)
    others[moved] = False
    assert torch.equal(new.cell[others], old[others])
    assert torch.equal(index.cell, old), "the index it came from has changed"
    if last != "exact":
        assert torch.allclose(law(new, query), closed_form(new, query), atol=1e-5)


@BOOKS
def test_an_item_comes_back_in_the_cell_of_its_present_vector(residual: bool) -> None:
    index, query = world(2, residual=residual)
    fewer = index.delete(torch.tensor([5, 6]))
    assert torch.equal(fewer.cell, index.cell)
    assert torch.allclose(law(fewer, query), closed_form(fewer, query), atol=1e-5)
    index.scorer.items.weight[5] = index.scorer.items.weight[11]
    back = fewer.insert(torch.tensor([5]))
    assert back.cell[5] == index.cell[11]
    others = EVERYTHING != 5
    assert torch.equal(back.cell[others], index.cell[others])
    assert back.alive.tolist() == [i != 6 for i in range(ITEMS)]
    assert torch.allclose(law(back, query), closed_form(back, query), atol=1e-5)
    assert not fewer.alive[5], "the index it came from has changed"


@BOOKS
@pytest.mark.parametrize("last", ["uniform", "popularity"])
def test_after_a_refit_the_proposal_is_near_the_moved_items_again(
    residual: bool, last: str
) -> None:
    index, query = world(3, items=200, residual=residual, last=last, words=8)
    stale = index.delete(torch.arange(20))._with(effort=50.0)
    generator = torch.Generator().manual_seed(9)
    index.scorer.items.weight.copy_(torch.randn(200, DIM, generator=generator))
    fresh = stale.refit(generator=torch.Generator().manual_seed(0))
    assert far_from_the_softmax(fresh, query) < far_from_the_softmax(stale, query) / 2
    assert fresh.cell.tolist() == [nearest_cell(fresh, i) for i in range(200)]
    assert torch.equal(fresh.alive, stale.alive)
    assert (fresh.last, fresh.residual, fresh.effort) == (last, residual, 50.0)


def test_a_refit_follows_the_bias_in_a_uniform_last_stage_and_keeps_given_weights() -> None:
    for last in ("uniform", "popularity"):
        index, _ = world(bias=torch.zeros(ITEMS), last=last)
        moved = torch.linspace(-2, 2, ITEMS)
        index.scorer.bias.weight[:, 0] = moved
        expected = moved if last == "uniform" else index.logw
        assert torch.equal(index.refit().logw, expected)


@STAGES
def test_copy_into_copies_another_index_in_place(last: str) -> None:
    index, query = world(4, last=last)
    index.scorer.items.weight.mul_(-2)
    other = index.refit().delete(torch.tensor([1, 8]))
    tensors = {n: t for n, t in vars(index).items() if isinstance(t, Tensor)}
    places = {n: t.data_ptr() for n, t in tensors.items()}
    assert not torch.equal(law(index, query), law(other, query))
    copy_into(index, other)
    assert {n: getattr(index, n).data_ptr() for n in places} == places
    for name, tensor in other.state().items():
        assert torch.equal(index.state()[name], tensor)
    assert torch.equal(law(index, query), law(other, query))
    assert torch.equal(index.search(query, 5, effort=6).ids, other.search(query, 5, effort=6).ids)
    draws = [
        i.sample(query, 20, generator=torch.Generator().manual_seed(0)) for i in (index, other)
    ]
    assert torch.equal(draws[0].ids, draws[1].ids)


# the law at its edges ----------------------------------------------------------------------------


@pytest.mark.parametrize("extreme", [-1e4, -math.inf])
def test_an_item_that_scores_next_to_nothing_can_still_be_drawn(extreme: float) -> None:
    bias = torch.zeros(ITEMS)
    bias[7] = extreme
    index, query = world(bias=bias)
    ours = law(index, query)
    assert index.logw[7] == -FLOOR
    assert torch.isfinite(ours).all()
    assert torch.allclose(ours, closed_form(index, query), atol=1e-5)


def test_beside_an_item_that_scores_beyond_all_the_others_keep_a_share() -> None:
    bias = torch.zeros(ITEMS)
    bias[7] = 500
    index, query = world(bias=bias, words=1)
    ours = law(index, query)
    share = 1 / (1 + (ITEMS - 1) * math.exp(-FLOOR))
    assert ours[:, 7].exp().tolist() == pytest.approx([share] * BATCH)
    others = EVERYTHING != 7
    assert torch.allclose(ours[:, others].exp(), torch.tensor(share * math.exp(-FLOOR)).double())


def test_long_vectors_and_queries_give_finite_probabilities() -> None:
    index, query = world()
    index.scorer.items.weight.mul_(100)
    index = index.refit()
    assert torch.isfinite(law(index, 100 * query)).all()
    assert torch.isfinite(index.sample(100 * query, 30).logq).all()


@BOOKS
@STAGES
@pytest.mark.parametrize(("items", "words"), [(1, 1), (1, 8), (3, 8), (12, 1)])
def test_one_item_or_one_word_or_more_words_than_items_are_no_special_case(
    residual: bool, last: str, items: int, words: int
) -> None:
    index, query = world(items=items, words=words, last=last, residual=residual)
    assert index.words.shape == (2, min(words, items), DIM)
    assert torch.isfinite(index.words).all()
    ours = law(index, query)
    assert torch.allclose(ours.exp().sum(1), torch.ones(BATCH).double())
    exact = Flat(index.scorer).log_prob(query, torch.arange(items)).double()
    if last == "exact" or items == 1 or (last == "uniform" and words > items):
        assert torch.allclose(ours, exact, atol=1e-5)
    if last == "uniform" and words == 1:
        assert torch.allclose(ours, torch.full_like(ours, -math.log(items)), atol=1e-5)
    draws = index.sample(query, 9, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(draws.logq.double(), ours.gather(1, draws.ids), atol=1e-5)
    assert index.search(query, 2, effort=1).ids.shape == (BATCH, 2)
    again = index.refit()
    assert torch.allclose(law(again, query), ours, atol=1e-5)


def test_equal_items_share_what_their_cell_has() -> None:
    index = build(Dot(torch.ones(6, 4)), codewords=3)
    assert law(index, torch.randn(2, 4)).exp().flatten().tolist() == pytest.approx([1 / 6] * 12)


@BOOKS
@STAGES
def test_blocks_of_queries_do_not_change_the_law_nor_what_is_drawn(
    residual: bool, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, query = world(5, last=last, residual=residual)
    whole, own = law(index, query), EVERYTHING.flip(0).repeat(BATCH, 1)
    held: list[int] = []
    cells = Imi.cell_scores

    def spy(self: Imi, part: Tensor) -> Tensor:
        found = cells(self, part)
        held.append(found.numel())
        return found

    monkeypatch.setattr(Imi, "cell_scores", spy)
    monkeypatch.setattr(imi, "BLOCK", 50)  # 16 cells, 24 items: at most three queries
    assert torch.allclose(law(index, query), whole, atol=1e-6)
    assert torch.allclose(index.log_prob(query, own).double(), whole.flip(1), atol=1e-6)
    laws.agreement(index, query, 0)
    laws.frequency(index, query, 0)
    assert max(held) <= 50
    assert len(held) > 4


def test_asking_and_drawing_take_no_part_in_a_gradient_nor_in_half_precision() -> None:
    index, query = world()
    query.requires_grad_()
    plain = law(index, query)
    assert not plain.requires_grad
    assert not index.sample(query, 3).logq.requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(law(index, query), plain)


def test_the_law_of_a_cosine_is_over_directions() -> None:
    """Longer vectors and queries change nothing."""
    generator = torch.Generator().manual_seed(0)
    items, query = torch.randn(ITEMS, DIM, generator=generator), torch.randn(2, DIM)
    scale = torch.rand(ITEMS, 1, generator=generator) + 0.5
    one, other = (
        build(Cosine(x, torch.tensor(0.2)), codewords=4, generator=torch.Generator().manual_seed(1))
        for x in (items, items * scale)
    )
    assert torch.allclose(law(one, query), law(other, 3 * query), atol=1e-4)


# small parts and errors --------------------------------------------------------------------------


def test_weights_by_popularity_are_above_zero_for_the_unseen() -> None:
    counts = torch.tensor([0, 1, 8])
    assert popularity_weight(counts, "count").tolist() == [0.5, 1, 8]
    expected = [math.log(1.5), math.log(2), math.log(9)]
    assert popularity_weight(counts).tolist() == pytest.approx(expected)
    expected = [0.5**0.75, 1, 8**0.75]
    assert popularity_weight(counts, "power", 0.75).tolist() == pytest.approx(expected)
    with pytest.raises(SoftdexError, match=r"unknown popularity 'counts'\. Did you mean 'count'"):
        popularity_weight(counts, "counts")


def test_there_are_words_for_about_a_dozen_items_a_cell_within_bounds() -> None:
    assert [codewords_for(n) for n in (1, 200, 12 * 64**2, 10**6, 10**9)] == [4, 4, 64, 256, 512]


def test_what_the_index_cannot_do_is_said() -> None:
    index, query = world()
    with pytest.raises(SoftdexError, match="draws cannot be shared"):
        index.sample(query, 5, shared=True)
    with pytest.raises(
        SoftdexError, match=r"unknown last stage 'uniforn'\. Did you mean 'uniform'"
    ):
        build(index.scorer, last="uniforn")
    with pytest.raises(SoftdexError, match="expected weight= if"):
        build(index.scorer, last="popularity")
    with pytest.raises(SoftdexError, match="expected weight= if last='popularity'"):
        build(index.scorer, weight=torch.ones(ITEMS))
    with pytest.raises(SoftdexError, match=r"dimension 1 have no halves\. Use residual=True"):
        build(Dot(torch.randn(9, 1)))
    with pytest.raises(DataError, match="ids from 0 to 23, got 24"):
        index.insert(torch.tensor([24]))
    with pytest.raises(DataError, match="no item would be left"):
        index.delete(EVERYTHING)


def test_one_coordinate_is_enough_for_residual_books() -> None:
    index = build(Dot(torch.arange(9.0)[:, None]), codewords=9, residual=True)
    exact = torch.arange(9.0).double().log_softmax(0)[None]
    assert torch.allclose(law(index, torch.ones(1, 1)), exact, atol=1e-5)


# at the edges ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [3, 10])
def test_an_exact_last_stage_is_the_softmax_however_far_apart_the_scores(scale: float) -> None:
    index, query = world(items=200, last="exact")
    index.scorer.items.weight.mul_(scale)
    exact = Flat(index.scorer).log_prob(scale * query, torch.arange(200)).double()
    assert torch.allclose(law(index.refit(), scale * query), exact, atol=1e-3)


@pytest.mark.parametrize("level", [-1000.0, 1000.0])
def test_a_constant_added_to_all_offsets_changes_no_probability(level: float) -> None:
    bias = torch.linspace(-2, 2, ITEMS)
    (plain, query), (lifted, _) = world(bias=bias), world(bias=bias + level)
    assert torch.allclose(law(lifted, query), law(plain, query), atol=1e-3)


def test_an_item_that_is_not_in_the_index_does_not_lift_the_floor() -> None:
    bias = torch.linspace(-2, 2, ITEMS)
    bias[7] = 100
    index, _ = world(bias=bias)
    without = index.delete(torch.tensor([7])).refit()
    others = EVERYTHING != 7
    assert torch.equal(without.logw[others], bias[others])


def test_an_item_comes_back_with_its_present_offset() -> None:
    index, _ = world(bias=torch.zeros(ITEMS))
    index.scorer.bias.weight[5] = 2
    assert index.delete(torch.tensor([5])).insert(torch.tensor([5])).logw[5] == 2


def test_an_exact_last_stage_takes_no_part_in_half_precision() -> None:
    index, query = world(last="exact")
    plain = law(index, query)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(law(index, query), plain)


def moved_in_place(index: Imi) -> None:
    index.scorer.items.weight.mul_(-1)


def moved_by_training(index: Imi) -> None:
    optimizer = RowAdam(index.scorer.items, 3.0)
    index.scorer.items(torch.arange(index.num_items)).sum().backward()
    optimizer.step()


def lifted(index: Imi) -> None:
    index.scorer.bias.weight[::2] = 9


def without_some(index: Imi) -> None:
    copy_into(index, index.delete(torch.arange(0, 60, 2)))


@pytest.mark.parametrize(
    "change",
    [
        moved_in_place,
        moved_by_training,
        lifted,
        without_some,
    ],
)
def test_what_was_found_before_a_change_is_not_found_after_it(change: Any) -> None:
    index, query = world(items=60, bias=torch.zeros(60))
    index.search(query, 5, effort=59)
    change(index)
    again = Imi(index.scorer, **index.state())
    assert torch.equal(index.search(query, 5, effort=30).ids, again.search(query, 5, effort=30).ids)


def test_a_query_of_half_precision_finds_what_its_numbers_find() -> None:
    index, query = world(items=60)
    half = query.bfloat16()
    found, same = (index.search(q, 5, effort=20).ids for q in (half, half.float()))
    assert torch.equal(found, same)


def test_the_filter_of_some_queries_keeps_their_lists() -> None:
    lists = Ragged(np.array([0, 2, 2, 5]), np.array([4, 9, 1, 2, 3], np.int32))
    allow = torch.ones(10, dtype=torch.bool)
    part = Filter(lists, allow).of(2, 9)
    assert part.exclude is not None
    assert part.exclude[0].tolist() == [1, 2, 3]
    assert part.allow is allow
    everyone = Filter(None, allow)
    assert everyone.of(0, 2) is everyone
