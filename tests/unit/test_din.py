"""Attention to a history: against a plain reading of its definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from softdex.score.din import Din, random_din, windows_of

WINDOWS = (3, 2, 1)
ROWS, DIM = 12, 5


def made(norm: str = "layer") -> Din:
    generator = torch.Generator().manual_seed(0)
    sizes = {"attention": 4, "layers": (7, 6, 3)}
    scorer = random_din(ROWS, DIM, WINDOWS, norm=norm, scale=1.0, generator=generator, **sizes)  # type: ignore[arg-type]
    return scorer.double().eval()


def history() -> Tensor:
    return torch.tensor([[-1, -1, 3, 1, 4, 1], [5, 9, 2, 6, 5, 3], [-1, -1, -1, -1, -1, 8]])


def by_hand(scorer: Din, items: list[int], node: int) -> Tensor:
    """The score of one node for one history, item by item and window by window."""

    def bent(x: Tensor, slope: Tensor) -> Tensor:
        return torch.where(x > 0, x, slope * x)

    table = scorer.nodes.weight
    bias, slope, weigh = scorer.see_units
    end = torch.tensor(WINDOWS).cumsum(0)
    sums = torch.zeros(len(WINDOWS), DIM, dtype=torch.float64)
    for place, item in enumerate([-1] * (6 - len(items)) + items):
        if item < 0:
            continue
        a, w = table[item], table[node]
        hidden = bent(a @ scorer.see[0] + (a * w) @ scorer.see[1] + w @ scorer.see[2] + bias, slope)
        weight = bent(hidden @ weigh + scorer.weigh[0], scorer.weigh[1])
        sums[int((end <= place).sum())] += weight * a
    x = torch.cat([sums.flatten(), table[node]])
    for layer in ("first", "second", "third"):
        bias, slope, scale, shift = getattr(scorer, f"{layer}_units")
        x = x @ getattr(scorer, layer) + bias
        if scorer.kind == "layer":
            x = (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt() * scale + shift
        elif scorer.kind == "batch":
            mean, variance = getattr(scorer, f"{layer}_stats")
            x = (x - mean) / (variance + 1e-5).sqrt() * scale + shift
        x = bent(x, slope)
    return x @ scorer.last + scorer.last_bias


@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
def test_a_score_is_what_its_definition_says(norm: str) -> None:
    scorer = made(norm)
    scores = scorer(history(), torch.arange(ROWS))
    for b, row in enumerate(history().tolist()):
        for node in range(ROWS):
            hoped = by_hand(scorer, [i for i in row if i >= 0], node)
            assert torch.allclose(scores[b, node], hoped, atol=1e-10)


def test_nodes_can_be_the_same_for_all_histories_or_their_own() -> None:
    scorer = made()
    own = torch.tensor([[0, 3], [7, 7], [11, 2]])
    whole = scorer(history(), slice(None))
    assert torch.allclose(scorer(history(), own), whole.gather(1, own))


def test_places_before_the_history_change_nothing() -> None:
    scorer = made()
    short = scorer(history()[2:, -2:], torch.arange(ROWS))
    assert torch.allclose(short, scorer(history()[2:], torch.arange(ROWS)))
    longer = torch.nn.functional.pad(history(), (4, 0), value=7)
    assert torch.allclose(scorer(longer, torch.arange(ROWS)), scorer(history(), torch.arange(ROWS)))


def test_the_order_of_items_matters_between_windows_and_not_inside_one() -> None:
    scorer = made()
    first = scorer(torch.tensor([[5, 9, 2, 6, 1, 3]]), torch.arange(ROWS))
    inside = scorer(torch.tensor([[9, 2, 5, 1, 6, 3]]), torch.arange(ROWS))
    between = scorer(torch.tensor([[5, 9, 2, 6, 3, 1]]), torch.arange(ROWS))
    assert torch.allclose(first, inside)
    assert not torch.allclose(first, between)


def test_items_that_stand_for_no_row_are_not_read() -> None:
    scorer = made()
    seen = scorer.seen(history(), lambda ids: torch.where(ids == 1, -1, ids))
    without = torch.tensor([[-1, -1, 3, -1, 4, -1], *history()[1:].tolist()])
    assert torch.allclose(scorer(seen, torch.arange(ROWS)), scorer(without, torch.arange(ROWS)))


def test_several_levels_see_a_history_as_each_would_alone() -> None:
    scorer = made()
    levels = [lambda ids: ids, lambda ids: ids // 2, lambda ids: torch.where(ids == 1, -1, 0)]
    both = scorer.seen(history(), *levels)
    alone = [scorer.seen(history(), level) for level in levels]
    for part, parts in zip(both, zip(*alone, strict=True), strict=True):
        assert torch.equal(part, torch.cat(parts))


def test_batch_norm_learns_in_training_alone_and_is_fixed_while_nodes_are_drawn() -> None:
    scorer = made("batch").train()
    before = scorer.first_stats.clone()
    with torch.no_grad():
        drawn = scorer(history(), torch.arange(ROWS))
    assert torch.equal(scorer.first_stats, before)
    assert torch.allclose(drawn, scorer.eval()(history(), torch.arange(ROWS)))
    scorer.train()(history(), torch.arange(ROWS))
    assert not torch.equal(scorer.first_stats, before)


def test_every_weight_and_row_that_was_used_gets_its_gradient() -> None:
    scorer = made().train()
    scorer(history(), torch.tensor([0, 1, 2])).square().sum().backward()
    for name, weight in scorer.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name
    rows = {int(i) for found in scorer.nodes.touched() for i in found.ids if i >= 0}
    assert rows == {0, 1, 2, *history()[history() >= 0].tolist()}


@pytest.mark.parametrize("length", [1, 3, 9, 20, 69, 100])
def test_windows_cover_the_history_and_are_finest_at_its_end(length: int) -> None:
    windows = windows_of(length)
    assert sum(windows) == length
    assert windows[-1] == 1
    assert list(windows[1:]) == sorted(windows[1:], reverse=True)
    assert windows_of(69) == (20, 20, 10, 10, 2, 2, 2, 1, 1, 1)
