"""Objectives equal naive loops, and every line of their `Relations` holds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from softdex.objective import softmax as softmax_module
from softdex.objective.binary import bce
from softdex.objective.pairwise import bpr, dns, self_adversarial
from softdex.objective.sampled import sampled_softmax
from softdex.objective.softmax import full_softmax, log_mass

B, ITEMS, D = 5, 17, 4


def world(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores (B, I), targets (B,) and a proposal (B, I), in float64."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(B, ITEMS, dtype=torch.float64, generator=generator) * 2
    target = torch.randint(ITEMS, (B,), generator=generator)
    q = torch.rand(B, ITEMS, dtype=torch.float64, generator=generator).add(0.05)
    return scores, target, q / q.sum(1, keepdim=True)


def draw(q: Tensor, n: int, seed: int) -> Tensor:
    return torch.multinomial(q, n, replacement=True, generator=torch.Generator().manual_seed(seed))


def sampled(scores: Tensor, target: Tensor, q: Tensor, ids: Tensor, correct: str) -> Tensor:
    own = target[:, None]
    return sampled_softmax(
        scores.gather(1, own)[:, 0],
        scores.gather(1, ids),
        q.log().gather(1, ids),
        q.log().gather(1, own)[:, 0],
        ids == own,
        correct=correct,
    )


# naive loops -------------------------------------------------------------------------------------


def test_full_softmax_equals_the_loop() -> None:
    scores, target, _ = world()
    for b, loss in enumerate(full_softmax(scores, target)):
        total = sum(math.exp(s) for s in scores[b].tolist())
        assert loss.item() == pytest.approx(math.log(total) - scores[b, target[b]].item())


@pytest.mark.parametrize("cells", [7, 10**6])
@pytest.mark.parametrize("with_bias", [False, True])
def test_in_blocks_the_softmax_has_the_same_value_and_gradient(
    cells: int, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax_module, "SCORES_IN_CACHE", cells)
    generator = torch.Generator().manual_seed(1)
    make = lambda *s: torch.randn(*s, dtype=torch.float64, generator=generator, requires_grad=True)  # noqa: E731
    query, items, bias = make(B, D), make(ITEMS, D), make(ITEMS)
    target = torch.randint(ITEMS, (B,), generator=generator)
    weight = torch.rand(B, dtype=torch.float64, generator=generator)
    leaves = [query, items, *([bias] if with_bias else [])]
    whole = full_softmax(query @ items.T + (bias if with_bias else 0.0), target)
    own = (query * items[target]).sum(1) + (bias[target] if with_bias else 0.0)
    block = log_mass(query, items, bias if with_bias else None) - own
    assert torch.allclose(block, whole)
    ours = torch.autograd.grad((block * weight).sum(), leaves)
    theirs = torch.autograd.grad((whole * weight).sum(), leaves)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b)


@pytest.mark.parametrize("correct", ["draws", "all"])
def test_sampled_softmax_equals_the_loop(correct: str) -> None:
    scores, target, q = world()
    ids = draw(q, 12, 0)
    losses = sampled(scores, target, q, ids, correct)
    for b in range(B):
        y = int(target[b])
        own, qy = scores[b, y].item(), q[b, y].item()
        kept = [i for i in ids[b].tolist() if i != y]
        if correct == "draws":
            terms = [
                math.exp(scores[b, i].item()) / (q[b, i].item() / (1 - qy) * len(kept))
                for i in kept
            ]
            expected = math.log(math.exp(own) + sum(terms)) - own
        else:
            own -= math.log(qy)
            terms = [math.exp(scores[b, i].item()) / q[b, i].item() for i in ids[b].tolist()]
            expected = math.log(math.exp(own) + sum(terms)) - own
        assert losses[b].item() == pytest.approx(expected)


def test_bpr_and_bce_equal_the_loop() -> None:
    scores, target, q = world()
    ids = draw(q, 9, 1)
    own = scores.gather(1, target[:, None])[:, 0]
    hit = ids == target[:, None]
    sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    pair, binary = bpr(own, scores.gather(1, ids), hit), bce(own, scores.gather(1, ids), hit)
    for b in range(B):
        o = own[b].item()
        others = [scores[b, i].item() for i in ids[b].tolist() if i != target[b]]
        n = len(others)
        assert pair[b].item() == pytest.approx(sum(-math.log(sigmoid(o - x)) for x in others) / n)
        no = sum(math.log(1 - sigmoid(x)) for x in others) / n
        assert binary[b].item() == pytest.approx(-math.log(sigmoid(o)) - no)


def pairs(seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Return target scores (B,), scores of nine draws (B, 9) and a mask of hits (B, 9)."""
    scores, target, q = world()
    ids = draw(q, 9, seed)
    own = target[:, None]
    return scores.gather(1, own)[:, 0], scores.gather(1, ids), ids == own


@pytest.mark.parametrize("with_hits", [False, True])
def test_dns_and_self_adversarial_equal_the_loop(with_hits: bool) -> None:
    pos, neg, hit = pairs()
    assert hit.any()
    marked = hit if with_hits else None
    hardest, weighted = dns(pos, neg, marked), self_adversarial(pos, neg, marked, 0.7)
    loss = lambda own, other: math.log(1 + math.exp(other - own))  # noqa: E731
    for b in range(B):
        others = [x for x, h in zip(neg[b].tolist(), hit[b], strict=True) if not (h and with_hits)]
        assert hardest[b].item() == pytest.approx(loss(pos[b].item(), max(others)))
        total = sum(math.exp(x / 0.7) for x in others)
        expected = sum(math.exp(x / 0.7) / total * loss(pos[b].item(), x) for x in others)
        assert weighted[b].item() == pytest.approx(expected)


def test_the_weights_of_self_adversarial_have_no_gradient() -> None:
    pos, neg, hit = pairs()
    neg.requires_grad_()
    weight = (neg.detach() / 0.7).masked_fill(hit, -math.inf).softmax(1)
    ours = torch.autograd.grad(self_adversarial(pos, neg, hit, 0.7).sum(), neg)[0]
    assert torch.allclose(ours, weight * torch.sigmoid(neg - pos[:, None]))


# relations ---------------------------------------------------------------------------------------


def test_a_constant_added_to_all_scores_changes_no_softmax() -> None:
    scores, target, q = world()
    ids = draw(q, 20, 0)
    assert torch.allclose(full_softmax(scores + 3, target), full_softmax(scores, target))
    for correct in ("draws", "all"):
        one, other = (sampled(s, target, q, ids, correct) for s in (scores, scores + 3))
        assert torch.allclose(one, other)


def test_sampled_softmax_tends_to_the_full_one_as_draws_grow() -> None:
    """The error falls like 1 / sqrt(N): a hundred times the draws give a tenth of the error."""
    scores, target, q = world()
    full = full_softmax(scores, target)
    errors = [
        (sampled(scores, target, q, draw(q, n, 3), "draws") - full).abs().mean().item()
        for n in (1_000, 100_000)
    ]
    assert errors[1] < 0.01
    assert errors[1] < errors[0] / 3


def test_corrected_everywhere_tends_to_the_gradient_of_the_full_softmax() -> None:
    scores, target, q = world()
    scores.requires_grad_()
    exact = torch.autograd.grad(full_softmax(scores, target).sum(), scores)[0]
    loss = sampled(scores, target, q, draw(q, 400_000, 5), "all")
    ours = torch.autograd.grad(loss.sum(), scores)[0]
    assert (ours - exact).abs().max() < 0.01


def test_with_the_softmax_as_proposal_every_single_draw_gives_the_full_loss() -> None:
    """DTR Eq. 21 with q = p: the loss has no variance."""
    scores, target, _ = world()
    p = scores.softmax(1)
    full = full_softmax(scores, target)
    off = p.scatter(1, target[:, None], 0.0)
    for seed in range(5):
        ids = draw(off, 1, seed)
        assert torch.allclose(sampled(scores, target, p, ids, "draws"), full)


def test_with_the_softmax_as_proposal_the_gradient_is_unbiased_for_few_draws() -> None:
    scores, target, _ = world()
    scores.requires_grad_()
    p = scores.detach().softmax(1)
    exact = torch.autograd.grad(full_softmax(scores, target).sum(), scores)[0]
    off = p.scatter(1, target[:, None], 0.0)
    total, repeats = torch.zeros_like(scores), 4000
    ids = draw(off, 3 * repeats, 1).view(B, repeats, 3)
    for r in range(repeats):
        loss = sampled(scores, target, p, ids[:, r], "draws").sum()
        total += torch.autograd.grad(loss, scores)[0]
    assert (total / repeats - exact).abs().max() < 0.02


def test_wrong_corrections_do_not_tend_to_the_softmax() -> None:
    """Counting hits in M and RG2's ln(N q) both keep a bias, however many draws there are."""
    scores, _, q = world(4)
    target = q.argmax(1)  # a popular target makes the difference large
    n = 200_000
    ids = draw(q, n, 3)
    full = full_softmax(scores, target)
    own = scores.gather(1, target[:, None])
    hit = ids == target[:, None]
    neg, logq = scores.gather(1, ids), q.log().gather(1, ids)
    kept = (~hit).sum(1, keepdim=True).double()

    def masked(logits: Tensor) -> Tensor:
        logits = torch.cat([own, logits.masked_fill(hit, -math.inf)], 1)
        return logits.logsumexp(1) - own[:, 0]

    right = sampled(scores, target, q, ids, "draws")
    effective = masked(neg - logq - kept.log())  # ln(M_eff q): too heavy by 1 / (1 - q_y)
    items = masked(neg - logq - math.log(ITEMS))  # ln(N q): weight n / N
    uncorrected = masked(neg)
    assert (right - full).abs().max() < 0.02
    for wrong in (effective, items, uncorrected):
        assert (wrong - full).abs().max() > 0.05


def test_keeping_hits_without_correcting_the_target_counts_it_twice() -> None:
    scores, _, q = world()
    target = scores.argmax(1)
    ids = draw(q, 200_000, 2)
    own = scores.gather(1, target[:, None])
    neg = scores.gather(1, ids) - q.log().gather(1, ids) - math.log(200_000)
    twice = torch.cat([own, neg], 1).logsumexp(1) - own[:, 0]
    expected = (scores.logsumexp(1).exp() + own[:, 0].exp()).log() - own[:, 0]
    assert torch.allclose(twice, expected, atol=0.02)
    assert (twice > full_softmax(scores, target) + 0.1).all()


def test_bpr_with_one_draw_is_a_softmax_over_two() -> None:
    pos, neg = torch.tensor([0.3, -1.0]), torch.tensor([[1.1], [0.4]])
    two = torch.cat([pos[:, None], neg], 1).logsumexp(1) - pos
    assert torch.allclose(bpr(pos, neg, torch.zeros(2, 1, dtype=torch.bool)), two)


def test_dns_with_one_draw_is_bpr_and_with_more_is_at_least_that() -> None:
    pos, neg, hit = pairs()
    for column in neg.T:
        one = column[:, None]
        assert torch.allclose(dns(pos, one, None), bpr(pos, one, torch.zeros_like(one).bool()))
    assert (dns(pos, neg, hit) >= bpr(pos, neg, hit)).all()


def test_self_adversarial_goes_from_dns_to_bpr_as_the_temperature_grows() -> None:
    pos, neg, hit = pairs()
    assert torch.allclose(self_adversarial(pos, neg, hit, 1e9), bpr(pos, neg, hit))
    assert torch.allclose(self_adversarial(pos, neg, hit, 1e-9), dns(pos, neg, hit))


def test_a_row_whose_draws_are_all_hits_has_no_loss_and_no_nan() -> None:
    pos = torch.tensor([1.0], requires_grad=True)
    neg = torch.tensor([[1.0, 1.0]], requires_grad=True)
    hit = torch.ones(1, 2, dtype=torch.bool)
    logq = torch.full((1, 2), -1.0)
    losses = [
        sampled_softmax(pos, neg, logq, torch.tensor([-1.0]), hit),
        bpr(pos, neg, hit),
        dns(pos, neg, hit),
        self_adversarial(pos, neg, hit),
    ]
    for loss in losses:
        assert loss.item() == 0
        for gradient in torch.autograd.grad(loss.sum(), (pos, neg)):
            assert torch.isfinite(gradient).all()


def test_shared_draws_give_the_same_as_the_same_draws_for_each_row() -> None:
    scores, target, q = world()
    ids = draw(q[:1], 30, 0)[0]
    logq = q[0].log()[ids]
    own = target[:, None]
    arguments = (scores.gather(1, own)[:, 0], scores[:, ids])
    own_logq = q[0].log()[target]
    shared = sampled_softmax(*arguments, logq, own_logq, ids == own)
    each = sampled_softmax(*arguments, logq.expand(B, -1), own_logq, ids == own)
    assert torch.equal(shared, each)


def test_an_unknown_correction_is_named() -> None:
    one = torch.ones(1)
    with pytest.raises(ValueError, match="Did you mean 'draws'"):
        sampled_softmax(one, one[None], one[None], -one, one[None] > 2, correct="draw")
