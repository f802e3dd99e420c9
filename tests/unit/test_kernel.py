"""Kernel: its law against brute force, while vectors move, and whatever way it is computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from softdex.errors import ShapeError
from softdex.index import kernel as module
from softdex.index.kernel import Kernel
from softdex.score.product import Cosine, Dot

B, ITEMS, D = 3, 23, 4
EVERYTHING = torch.arange(ITEMS)


def world(seed: int = 0) -> tuple[Dot, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    items = torch.randn(ITEMS, D, generator=generator)
    return Dot(items), torch.randn(B, D, generator=generator)


def law(query: Tensor, items: Tensor, alive: Tensor, alpha: float) -> Tensor:
    """The kernel of every item, normalised over the living, (B, I) in float64."""
    kernel = (alpha * (query.double() @ items.double().T) ** 2 + 1) * alive
    return kernel / kernel.sum(1, keepdim=True)


def follows(index: Kernel, query: Tensor, draws: int = 20_000) -> None:
    """Draws are as likely as log_prob says, and say so themselves."""
    ids, logq = index.sample(query, draws, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(logq, index.log_prob(query, ids), atol=1e-5)
    expected = index.log_prob(query, EVERYTHING).double().exp().numpy() * draws
    for b in range(B):
        counts = np.bincount(ids[b].numpy(), minlength=ITEMS)
        assert counts[expected[b] == 0].sum() == 0
        seen, hoped = (x[expected[b] > 5] for x in (counts, expected[b]))
        assert chisquare(seen, hoped * seen.sum() / hoped.sum()).pvalue > 1e-6


@pytest.mark.parametrize("block", [1, 2, 5, 22, 23, 100, None])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 100.0])
def test_after_a_refit_the_law_is_the_kernel_whatever_the_blocks(
    block: int | None, alpha: float
) -> None:
    scorer, query = world()
    alive = EVERYTHING % 5 != 2
    index = Kernel(scorer, alive, alpha=alpha, block=block)
    ours = index.log_prob(query, EVERYTHING).double().exp()
    assert torch.allclose(ours, law(query, scorer.items.weight, alive, alpha), rtol=1e-4)


def test_biases_do_not_enter_and_cosines_are_those_of_directions() -> None:
    scorer, query = world()
    items, everyone = scorer.items.weight, torch.ones(ITEMS)
    biased = Dot(items, torch.arange(float(ITEMS)))
    one, other = (Kernel(s, block=5).log_prob(query, EVERYTHING) for s in (biased, scorer))
    assert torch.equal(one, other)
    cosine = Kernel(Cosine(items * 3, torch.tensor(0.1), torch.rand(ITEMS)), block=5)
    direction = items / items.norm(dim=1, keepdim=True)
    expected = law(query / query.norm(dim=1, keepdim=True) / 0.1, direction, everyone, 100.0)
    ours = cosine.log_prob(query * 7, EVERYTHING).double().exp()
    assert torch.allclose(ours, expected, rtol=1e-4)


def test_while_vectors_move_the_law_is_normalised_and_draws_follow_it() -> None:
    scorer, query = world()
    index = Kernel(scorer, block=5).delete(torch.tensor([0, 7]))
    scorer.items.weight.copy_(world(1)[0].items.weight)
    mass = index.log_prob(query, EVERYTHING).double().exp().sum(1)
    assert torch.allclose(mass, torch.ones_like(mass))
    follows(index, query)
    exact = law(query, scorer.items.weight, index.alive, 100.0)
    stale, fresh = (i.log_prob(query, EVERYTHING).double().exp() for i in (index, index.refit()))
    assert torch.allclose(fresh, exact, rtol=1e-4)
    assert not torch.allclose(stale, exact, rtol=0.1)


def test_an_edit_refits_only_the_blocks_it_changes() -> None:
    scorer, _ = world()
    index = Kernel(scorer, block=5)
    scorer.items.weight.copy_(world(1)[0].items.weight)
    edited, fresh = index.delete(torch.tensor([6, 8, 22])), index.refit()
    same = (edited.gram == index.gram).all(1)
    assert same.tolist() == [True, False, True, True, False]
    whole = edited.insert(torch.tensor([6, 8, 22]))
    assert torch.allclose(whole.gram[[1, 4]], fresh.gram[[1, 4]])


def test_dead_blocks_are_never_drawn_and_have_no_probability() -> None:
    scorer, query = world()
    dead = torch.tensor([0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 20, 21, 22])  # first, third, last
    scorer.items.weight[dead] = torch.nan
    index = Kernel(scorer, torch.isin(EVERYTHING, dead, invert=True), block=5)
    assert (index.log_prob(query, EVERYTHING)[:, dead] == -torch.inf).all()
    assert (index.log_prob(query, dead[-1:]) == -torch.inf).all()
    follows(index, query)


@pytest.mark.parametrize("living", [1, 2])
def test_one_item_is_always_drawn(living: int) -> None:
    """Of two, one is deleted."""
    index = Kernel(Dot(torch.randn(living, D)))
    index = index if living == 1 else index.delete(torch.tensor([1]))
    draws = index.sample(torch.randn(B, D), 6)
    assert (draws.ids == 0).all()
    assert (draws.logq == 0).all()


@pytest.mark.parametrize("fetched", [False, True])
def test_neither_fetching_vectors_nor_small_tiles_change_an_answer(
    fetched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer, query = world()
    index = Kernel(scorer, EVERYTHING != 21, block=5)
    few = torch.tensor([[3, 21], [22, 0], [7, 7]])

    def answers() -> list[Tensor]:
        draws = index.sample(query, 40, generator=torch.Generator().manual_seed(0))
        return [*draws, index.log_prob(query, EVERYTHING), index.log_prob(query, few)]

    before = answers()
    monkeypatch.setattr(module, "GATHER", 0 if fetched else 10**6)
    monkeypatch.setattr(module, "CELLS", 8 * 5 * 7)  # seven draws of one query
    for ours, theirs in zip(answers(), before, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_the_heaviest_of_kernels_leaves_every_other_item_its_chance() -> None:
    """In float32 the sum would not rise over an item of weight 1 beside one of 10^10."""
    items = torch.zeros(ITEMS, D)
    items[2] = 1e4
    index = Kernel(Dot(items), block=23)
    query = torch.ones(B, D) / D
    logq = index.log_prob(query, EVERYTHING).double()
    assert torch.allclose(logq[:, 3], torch.tensor(1e10 + ITEMS).double().log().neg())
    cdf = index._inside(query, torch.zeros(B, 1, dtype=torch.int64)).cumsum(2)
    assert (cdf.diff(dim=2) > 0).all()


def test_in_training_drawing_leaves_no_lookups_behind() -> None:
    scorer, query = world()
    index = Kernel(scorer.train(), block=5).refit().delete(torch.tensor([3]))
    query.requires_grad_()
    draws = index.sample(query, 9)
    assert not draws.logq.requires_grad
    assert not index.log_prob(query, draws.ids).requires_grad
    assert not scorer.items._lookups


@pytest.mark.parametrize("items", [1_000, 10_000_000])
def test_neither_drawing_nor_log_prob_waits_for_a_value(items: int) -> None:
    """Meta tensors hold no values: whatever asks for one raises."""
    index = Kernel(Dot(torch.empty(items, D, device="meta")))
    query = torch.empty(B, D, device="meta")
    draws = index.sample(query, 50)
    assert index.log_prob(query, draws.ids).shape == draws.logq.shape == (B, 50)
    assert index.log_prob(query, torch.arange(1_000, device="meta")).shape == (B, 1_000)


def test_what_it_cannot_do_is_said() -> None:
    scorer, query = world()
    with pytest.raises(ShapeError, match="cannot be shared"):
        Kernel(scorer).sample(query, 3, shared=True)
    with pytest.raises(ShapeError, match="alpha >= 0"):
        Kernel(scorer, alpha=-1.0)
    with pytest.raises(ShapeError, match="block >= 1"):
        Kernel(scorer, block=0)
    with pytest.raises(ShapeError, match=r"expected gram \(5, 10\), got \(4, 10\)"):
        Kernel(scorer, block=5, gram=torch.zeros(4, 10))
