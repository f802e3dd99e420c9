"""In-batch objectives against naive loops, and what the BIR/XIR paper claims."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from softdex.index.flat import Flat
from softdex.objective import resample as draw_module
from softdex.objective.in_batch import (
    batch_softmax,
    exclusion_mask,
    mixture_log_prob,
    resampled_softmax,
    resampling_log_weights,
    weighted_logsumexp,
)
from softdex.objective.resample import _below, resample_counts
from softdex.objective.stream import Cache, Frequencies
from softdex.score.product import Dot
from softdex.solve.gradient.in_batch import InBatch

B, ITEMS, D = 12, 9, 4


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def world(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (B, B) of the items of a batch, their ids (B,), log p of all items; float64."""
    generator = seeded(seed)
    target = torch.randint(ITEMS, (B,), generator=generator)
    vectors = torch.randn(ITEMS, D, dtype=torch.float64, generator=generator)
    query = torch.randn(B, D, dtype=torch.float64, generator=generator)
    p = torch.rand(ITEMS, dtype=torch.float64, generator=generator) + 0.1
    return query @ vectors[target].T, target, (p / p.sum()).log()


def stands(b: int, j: int, target: list[int], own: str, hits: str) -> bool:
    """Whether candidate j is a negative of row b, case by case."""
    if j == b:
        return own == "keep"
    return hits == "keep" or target[j] != target[b]


# naive loops -------------------------------------------------------------------------------------

CHOICES = [(own, hits) for own in ("drop", "keep") for hits in ("drop", "keep")]


@pytest.mark.parametrize(("own", "hits"), CHOICES)
def test_who_stands_against_whom_is_as_asked(own: str, hits: str) -> None:
    _, target, _ = world()
    out = exclusion_mask(target, target, own=own, hits=hits)
    for b in range(B):
        for j in range(B):
            standing = out is None or not out[b, j]
            assert standing == stands(b, j, target.tolist(), own, hits)
    more = torch.cat([target, torch.arange(ITEMS)])  # who joins the batch is nobody's own
    wide = exclusion_mask(target, more, own=own, hits=hits)
    if wide is not None and out is not None:
        assert torch.equal(wide[:, :B], out)
        assert torch.equal(wide[:, B:], (hits == "drop") & (target[:, None] == more[B:]))


def test_of_a_gathered_batch_the_own_places_begin_further_on() -> None:
    _, target, _ = world()
    whole = exclusion_mask(target, target, hits="keep")
    part = exclusion_mask(target[5:8], target, hits="keep", offset=5)
    assert whole is not None
    assert part is not None
    assert torch.equal(part, whole[5:8])


@pytest.mark.parametrize(("own", "hits"), CHOICES)
@pytest.mark.parametrize("objective", ["ssl", "ssl_pop", "mns"])
def test_softmaxes_over_the_batch_equal_the_loop(objective: str, own: str, hits: str) -> None:
    scores, target, logp = world()
    out = exclusion_mask(target, target, own=own, hits=hits)
    uniform = 7
    law = {
        "ssl": torch.zeros_like(logp),
        "ssl_pop": logp,
        "mns": mixture_log_prob(logp, B, uniform, ITEMS),
    }
    used = law[objective][target]
    losses = batch_softmax(scores.diagonal(), scores, out, used, used)
    for b in range(B):

        def corrected(j: int, b: int = b) -> float:
            p = logp[target[j]].exp().item()
            if objective == "ssl":
                p = 1.0
            if objective == "mns":
                p = (B * p + uniform / ITEMS) / (B + uniform)
            return math.exp(scores[b, j].item()) / p

        others = [corrected(j) for j in range(B) if stands(b, j, target.tolist(), own, hits)]
        own_score = corrected(b)
        expected = -math.log(own_score / (own_score + sum(others)))
        assert losses[b].item() == pytest.approx(expected)


@pytest.mark.parametrize("correction", ["none", "uniform", "proposal"])
@pytest.mark.parametrize(("own", "hits"), CHOICES)
def test_softmaxes_over_what_was_drawn_again_equal_the_loop(
    correction: str, own: str, hits: str
) -> None:
    scores, target, logp = world()
    out = exclusion_mask(target, target, own=own, hits=hits)
    weight = resampling_log_weights(scores, logp[target], out)
    draws = 20
    counts = resample_counts(weight, draws, seeded(1))
    losses = resampled_softmax(scores.diagonal(), scores, counts, weight, correction=correction)
    for b in range(B):
        kept = [j for j in range(B) if stands(b, j, target.tolist(), own, hits)]
        raw = {j: math.exp(scores[b, j].item() - logp[target[j]].item()) for j in kept}
        w = {j: r / sum(raw.values()) for j, r in raw.items()}
        times = [(j, int(counts[b, j])) for j in kept]
        assert sum(c for _, c in times) == draws
        o, own_score = [s.item() for s in scores[b]], scores[b, b].item()
        if correction == "uniform":
            expected = sum(c * o[j] for j, c in times) / draws - own_score
        else:
            share = {j: 1.0 if correction == "none" else 1 / (draws * w[j]) for j in kept}
            total = math.exp(own_score) + sum(c * share[j] * math.exp(o[j]) for j, c in times)
            expected = math.log(total) - own_score
        assert losses[b].item() == pytest.approx(expected)


def test_a_batch_of_one_has_nobody_to_stand_against_and_no_loss() -> None:
    scores, target = torch.tensor([[2.0]]), torch.tensor([3])
    out, logp = exclusion_mask(target, target), torch.tensor([-1.0])
    assert batch_softmax(scores[0], scores, out, logp, logp).item() == 0
    weight = resampling_log_weights(scores, logp, out)
    counts = resample_counts(weight, 5, seeded(0)).masked_fill(out, 0)  # type: ignore[arg-type]
    for correction in ("none", "proposal"):
        loss = resampled_softmax(scores[0], scores, counts, weight, correction=correction)
        assert loss.item() == 0


def test_scores_far_apart_make_no_nan() -> None:
    scores = torch.tensor([[80.0, -90.0, 60.0]] * 3, requires_grad=True)
    target = torch.arange(3)
    out = exclusion_mask(target, target)
    weight = resampling_log_weights(scores, torch.zeros(3), out)
    for correction in ("none", "uniform", "proposal"):
        counts = resample_counts(weight, 4, seeded(0))
        loss = resampled_softmax(scores.diagonal(), scores, counts, weight, correction=correction)
        (grad,) = torch.autograd.grad(loss.sum(), scores)
        assert loss.isfinite().all()
        assert grad.isfinite().all()


def test_the_gradient_of_a_weighted_sum_is_right_for_weights_of_any_size() -> None:
    generator = seeded(3)
    scores = (torch.randn(20, 15, dtype=torch.float64, generator=generator) * 5).requires_grad_()
    weight = torch.rand(20, 15, dtype=torch.float64, generator=generator) ** 8 * 50
    weight[:, :3] = 0
    shift = torch.randn(15, dtype=torch.float64, generator=generator)
    ours = weighted_logsumexp(scores, weight, None, shift)
    plain = (scores - shift + weight.log()).logsumexp(1)
    up = torch.randn(20, dtype=torch.float64, generator=generator)
    a, b = (torch.autograd.grad((x * up).sum(), scores)[0] for x in (ours, plain))
    assert torch.allclose(ours, plain)
    assert torch.allclose(a, b)


# drawing again -----------------------------------------------------------------------------------


def counted(log_weight: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    below = _below(log_weight, draws, generator)
    return below.diff(dim=1, prepend=torch.zeros_like(below[:, :1]))


@pytest.mark.parametrize("draw", [resample_counts, counted], ids=["compiled", "on tensors"])
def test_draws_follow_their_law_and_are_as_many_as_asked(draw: object) -> None:
    weight = torch.tensor([[0.0, 0.5, 0.2, 0.0, 0.3, 0.0], [0.1, 0.0, 0.0, 0.9, 0.0, 0.0]])
    rows = 4000
    counts = draw(weight.log().repeat(rows, 1), 7, seeded(0))  # type: ignore[operator]
    assert (counts.sum(1) == 7).all()
    assert (counts >= 0).all()
    for row in (0, 1):
        mean = counts[row::2].double().mean(0) / 7
        error = (weight[row] * (1 - weight[row]) / (7 * rows)).sqrt()
        assert ((mean - weight[row]).abs() <= 4 * error + 1e-12).all()
        pairs = (counts[row::2, :, None] * counts[row::2, None, :]).double().mean(0)
        expected = 42 * weight[row][:, None] * weight[row]  # m (m - 1) w_i w_j off the diagonal
        off = ~torch.eye(6, dtype=torch.bool)
        assert torch.allclose(pairs[off], expected[off].double(), atol=0.4)


def test_draws_do_not_depend_on_the_number_of_threads() -> None:
    weight = torch.randn(50, 30, generator=seeded(0)).log_softmax(1)
    threads = torch.get_num_threads()
    found = []
    for n in (1, 3):
        torch.set_num_threads(n)
        found.append(resample_counts(weight, 20, seeded(1)))
    torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_on_a_gpu_draws_are_counted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw_module, "PAIRS_AT_A_TIME", 64)
    weight = torch.randn(40, 30, generator=seeded(0)).log_softmax(1).to("meta")
    assert resample_counts(weight, 20).shape == (40, 30)


# BIR and XIR --------------------------------------------------------------------------------------


def popular(items: int, skew: float) -> Tensor:
    """A Zipf law (I,) in float64."""
    p = torch.arange(1, items + 1, dtype=torch.float64).pow(-skew)
    return p / p.sum()


def law_of_the_resampled(scores: Tensor, p: Tensor, batch: int, seed: int) -> Tensor:
    """Probability (I,) of each item to be resampled from one batch drawn by p."""
    ids = torch.multinomial(p, batch, replacement=True, generator=seeded(seed))
    weight = resampling_log_weights(scores[ids][None], p.log()[ids])[0].exp()
    return torch.zeros_like(p).index_add_(0, ids, weight)


def test_theorem_a1_resampled_items_approach_the_softmax_as_the_root_of_the_batch() -> None:
    items = 200
    p = popular(items, 1.0)
    scores = torch.randn(items, dtype=torch.float64, generator=seeded(0)) * 1.5
    distances = []
    for batch in (500, 2000, 8000):
        laws = [law_of_the_resampled(scores, p, batch, seed) for seed in range(40)]
        each = [(law - scores.softmax(0)).abs().sum() / 2 for law in laws]
        distances.append(torch.stack(each).mean().item())
    for small, large in itertools.pairwise(distances):
        assert small / large == pytest.approx(2.0, rel=0.2)  # four times the batch: half as far


def test_lemma_a1_the_mean_law_is_nearer_than_any_batch_and_nears_faster() -> None:
    items = 50
    p = popular(items, 0.7)
    scores = torch.randn(items, dtype=torch.float64, generator=seeded(1))
    bias = []
    for batch in (50, 800):
        laws = [law_of_the_resampled(scores, p, batch, seed) for seed in range(3000)]
        bias.append((torch.stack(laws).mean(0) - scores.softmax(0)).abs().sum().item() / 2)
    assert bias[0] > 4 * bias[1]


def gradient_bias(batch: int, skew: float, repeats: int = 2000) -> float:
    """How far the mean gradient of `uniform` BIR is from the full softmax's, by item, in L1."""
    items = 60
    p = popular(items, skew)
    scores = torch.randn(items, dtype=torch.float64, generator=seeded(2))
    total = torch.zeros(items, dtype=torch.float64)
    for seed in range(repeats):
        total += law_of_the_resampled(scores, p, batch, seed)
    return (total / repeats - scores.softmax(0)).abs().sum().item()


def test_theorem_a2_the_bias_falls_with_the_batch_and_with_an_even_popularity() -> None:
    by_batch = [gradient_bias(batch, 1.0) for batch in (16, 64, 256)]
    assert by_batch[0] > by_batch[1] > by_batch[2]
    by_skew = [gradient_bias(32, skew) for skew in (0.0, 0.7, 1.4)]
    assert by_skew[0] < by_skew[1] < by_skew[2]


def gradient_weights(correction: str, scores: Tensor, p: Tensor, size: int) -> Tensor:
    """The share of the gradient that each item has, of a row whose own target scores nothing."""
    ids = torch.multinomial(p, size, replacement=True, generator=seeded(5))
    neg = scores[ids][None].clone().requires_grad_()
    weight = resampling_log_weights(neg, p.log()[ids])
    counts = resample_counts(weight.float(), size, seeded(6))
    loss = resampled_softmax(
        torch.full((1,), -40.0).double(), neg, counts, weight, correction=correction
    )
    (grad,) = torch.autograd.grad(loss.sum(), neg)
    return torch.zeros_like(p).index_add_(0, ids, grad[0])


def test_each_correction_tends_to_its_own_limit() -> None:
    items, size = 100, 60_000
    p = popular(items, 0.8)
    scores = torch.randn(items, dtype=torch.float64, generator=seeded(3))
    limits = {
        "none": (2 * scores).softmax(0),
        "uniform": scores.softmax(0),
        "proposal": (scores + p.log()).softmax(0),
    }
    for correction in limits:
        found = gradient_weights(correction, scores, p, size)
        distance = {n: (found - w).abs().sum().item() / 2 for n, w in limits.items()}
        assert distance[correction] < 0.05
        assert all(distance[other] > 0.1 for other in limits if other != correction)


def loss_of(objective: str, size: int, **options: object) -> tuple[InBatch, Tensor, Tensor]:
    """The loss and its gradient for a random batch, and what remembers."""
    generator = seeded(7)
    items, query = (torch.randn(n, D, generator=generator) for n in (ITEMS, size))
    target = torch.randint(ITEMS, (size,), generator=generator)
    logp = torch.rand(ITEMS, generator=generator).log_softmax(0)
    query.requires_grad_()
    made = InBatch(objective, logp, size, **options)  # type: ignore[arg-type]
    loss = made(Flat(Dot(items)), query, target, seeded(8))
    (grad,) = torch.autograd.grad(loss.sum(), query)
    return made, loss.detach(), grad


def test_without_its_cache_xir_is_bir_with_half_the_draws_bit_for_bit() -> None:
    _, xir, to_query = loss_of("xir", 31, cache_share=0.0)
    _, bir, expected = loss_of("bir", 31, draws=15)
    assert torch.equal(xir, bir)
    assert torch.equal(to_query, expected)


def test_xir_is_the_mean_of_its_two_losses_and_fills_the_cache_with_what_was_drawn() -> None:
    (_, here, _), (_, there, _) = (loss_of("xir", 31, cache_share=s) for s in (0.0, 1.0))
    made, both, _ = loss_of("xir", 31, cache_share=0.25)
    assert torch.allclose(both, 0.75 * here + 0.25 * there)
    assert made.cache.counts.sum() == ITEMS + 31 * 2 * 15


# what is remembered ------------------------------------------------------------------------------


def test_counts_go_on_where_float32_would_stop() -> None:
    cache = Cache(torch.tensor([0, 1]), 3)
    cache.counts[1] = 2**24
    as_float = cache.counts.float()
    for _ in range(5):
        cache.replace(torch.tensor([1, 2]), torch.tensor([1, 1]), seeded(0))
        as_float[1] += 1
    assert as_float[1] == 2**24
    assert cache.counts.tolist() == [1, 2**24 + 5, 6]


def test_the_cache_holds_distinct_drawn_items_by_their_count_however_often_they_stand() -> None:
    cache = Cache(torch.zeros(40_000, dtype=torch.int64), 5)
    cache.counts.copy_(torch.tensor([1, 100, 300, 600, 5]))
    candidates = torch.tensor([1, 2, 2, 2, 3, 4])  # 4 was not drawn, 2 stands there three times
    cache.replace(candidates, torch.tensor([10, 20, 0, 30, 40, 0]), seeded(0))
    assert cache.counts.tolist() == [1, 110, 350, 640, 5]
    share = cache.ids.bincount(minlength=5) / len(cache.ids)
    assert torch.allclose(share, torch.tensor([0, 110, 350, 640, 0]) / 1100, atol=0.01)


def test_counts_fade_by_the_step_when_they_are_next_looked_at() -> None:
    cache = Cache(torch.tensor([0]), 2, decay=0.5)
    cache.counts[0] = 1000
    for _ in range(3):
        cache.replace(torch.tensor([1]), torch.tensor([8]), seeded(0))
    assert cache.occurrences(torch.tensor([0])).item() == 125
    assert cache.occurrences(torch.tensor([1])).item() == 8 + 4 + 2  # the first 1 has faded
    cache.replace(torch.tensor([0]), torch.tensor([0]), seeded(0))
    assert cache.counts[0] == 62


def test_frequencies_are_found_in_a_stream_of_ids_of_any_size() -> None:
    generator = seeded(0)
    frequencies = Frequencies(slots=4096, first=50.0, rate=0.02)
    every = torch.randint(2**40, (300,), generator=generator)
    chance = torch.linspace(0.02, 0.9, 300)
    for _ in range(3000):
        frequencies(every[torch.rand(300, generator=generator) < chance])
    found = frequencies(every).exp()
    assert ((found / chance).log().abs() < 0.5).all()
    assert torch.corrcoef(torch.stack([found.log(), chance.log()]))[0, 1] > 0.98


def test_an_item_that_comes_many_times_in_a_batch_comes_as_often_as_that() -> None:
    frequencies = Frequencies(slots=1000, first=1.0, rate=0.05)
    batch = torch.tensor([7] * 30 + [8] * 3 + [9, -1, -1])
    for _ in range(300):
        found = frequencies(batch)
    assert found[[0, 30, 33]].exp().tolist() == pytest.approx([30, 3, 1], rel=1e-3)


def test_frequencies_follow_a_stream_that_changes() -> None:
    frequencies = Frequencies(slots=64, first=10.0, rate=0.1)
    rare = torch.tensor([5])
    for step in range(400):
        frequencies(torch.tensor([5, 6]) if step % 20 == 0 else torch.tensor([6]))
    before = frequencies(rare).item()
    for _ in range(200):
        frequencies(rare)
    assert before == pytest.approx(-math.log(20), abs=0.35)
    assert frequencies(rare).item() == pytest.approx(0.0, abs=0.05)


def test_more_hashes_mean_fewer_collisions() -> None:
    """An item that shares a slot seems as frequent as both; the largest does not."""
    generator = seeded(1)
    every = torch.arange(500)
    chance = torch.where(every % 10 == 0, 0.9, 0.05)
    error = []
    for hashes in (1, 5):
        frequencies = Frequencies(slots=1024, first=20.0, rate=0.05, hashes=hashes)
        for _ in range(500):
            frequencies(every[torch.rand(500, generator=generator) < chance])
        error.append((frequencies(every) - chance.log()).abs().mean().item())
    assert error[1] < error[0]
