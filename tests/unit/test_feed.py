"""Batches: what a step is given."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import softdex as sdx
from softdex.errors import DataError
from softdex.recipes import make
from softdex.solve.gradient.feed import ALIKE, Events, Sequences, Windows


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def everything(feed: Events | Windows | Sequences) -> torch.Tensor:
    return torch.arange(feed.size)


def test_a_smoothed_target_is_among_the_items_most_like_it(log: sdx.Interactions) -> None:
    at = torch.arange(len(log)).repeat(20)
    target = Events(log, 1.0).batch(at, generator()).target.numpy()
    matrix = log.csr(binary=True).toarray().astype(np.float64)
    weighed = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    norm = np.sqrt(matrix.sum(0))
    like = weighed.T @ matrix / np.maximum(np.outer(norm, norm), 1e-12)
    np.fill_diagonal(like, 0)
    cut = -np.sort(-like, 1)[:, ALIKE - 1]
    item = log.item[at.numpy()]
    mine = like[item, target]
    assert (mine >= cut[item] - 1e-9).all()
    assert (mine > 0).all()
    popular = int(np.bincount(item).argmax())
    share = np.bincount(target[item == popular], minlength=log.num_items) / (item == popular).sum()
    hoped = np.where(like[popular] >= cut[popular], like[popular], 0)
    assert np.abs(share - hoped / hoped.sum()).max() < 0.05


def test_smoothing_changes_its_share_of_the_targets_and_nothing_else(
    log: sdx.Interactions,
) -> None:
    feed = Events(log, 0.3)
    users, target, weight = feed.batch(everything(feed), generator())
    changed = (target.numpy() != log.item).mean()
    assert abs(changed - 0.3) < 0.05
    assert np.array_equal(users.numpy(), log.user)
    assert torch.allclose(weight, torch.full_like(weight, 1 / len(log)))
    plain = Events(log)
    assert np.array_equal(plain.batch(everything(plain), generator()).target.numpy(), log.item)


def test_an_item_that_is_like_no_other_stays_itself() -> None:
    log = sdx.read([("a", "x", 1), ("b", "y", 1), ("b", "z", 2)], quiet=True)
    feed = Events(log, 1.0)
    keys = log.items.take(feed.batch(everything(feed), generator()).target.numpy()).to_pylist()
    assert keys == ["x", "z", "y"]


def test_smoothing_repeats_by_its_seed_and_changes_what_is_learned(
    parts: sdx.Split,
) -> None:
    given = {"dim": 8, "epochs": 2, "negatives": 20, "device": "cpu"}
    once, again, other = (
        sdx.fit("ssm", parts.train, smooth=s, **given).encoder.vectors.weight for s in (0.3, 0.3, 0)
    )
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


def test_positions_without_an_item_are_not_scored(log: sdx.Interactions) -> None:
    given = {"dim": 8, "hidden": 8, "layers": 1, "batch_size": 64, "device": "cpu"}
    trainer = make("sequence", log, given).trainer(log)
    _, target, weight = trainer.feed.batch(torch.arange(64), trainer.generator)
    query, found, shares, *_ = trainer.feed.positions(
        trainer.parts.encoder, target, weight, trainer.generator
    )
    assert len(query) == len(found) < target[:, 1:].numel()
    assert sorted(found[found >= 0].tolist()) == sorted(target[:, 1:][target[:, 1:] >= 0].tolist())
    assert (shares[found < 0] == 0).all()


def test_a_window_holds_what_stood_before_its_item(log: sdx.Interactions) -> None:
    feed = Windows(log, 4)
    history, target, weight = feed.batch(everything(feed), generator())
    hoped = [
        [*([-1] * 4 + items[:at])[-4:], items[at]]
        for items in (log.histories[u].tolist() for u in range(log.num_users))
        for at in range(1, len(items))
    ]
    assert torch.cat([history, target.unsqueeze(1)], 1).tolist() == hoped
    assert float(weight.sum()) == pytest.approx(1)


def test_windows_can_be_the_last_ones_long_ones_or_a_few(log: sdx.Interactions) -> None:
    last = Windows(log, 3, last=True)
    ends = last.batch(everything(last), generator()).target.tolist()
    many = np.flatnonzero(log.user_counts > 1)
    assert ends == [log.histories[u][-1] for u in many]
    long = Windows(log, 3, least=8)
    assert long.size == int(np.maximum(log.user_counts - 8, 0).sum())
    few, same = (Windows(log, 3, most=50) for _ in range(2))
    assert few.size == 50
    assert torch.equal(few.at, same.at)


def test_weights_follow_their_events_into_windows() -> None:
    rows = [("a", "x", 3), ("a", "y", 1), ("a", "z", 2), ("b", "x", 1), ("b", "z", 2)]
    log = sdx.read(rows, quiet=True)
    heavy = sdx.Interactions(
        log.users, log.items, log.user, log.item, time=log.time,
        weight=np.where(log.item == log.items.lookup(["z"])[0], 5.0, 1.0).astype(np.float32),
    )  # fmt: skip
    feed = Windows(heavy, 2)
    _, target, weight = feed.batch(everything(feed), generator())
    keys = log.items.take(target.numpy()).to_pylist()
    assert keys == ["z", "x", "z"]
    assert torch.allclose(weight[:, 0], torch.tensor([5, 1, 5]) / 11)


def test_a_log_in_which_nothing_follows_on_anything_is_refused(log: sdx.Interactions) -> None:
    with pytest.raises(DataError, match="min_history"):
        Windows(log, 3, least=10_000)
