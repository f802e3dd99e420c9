"""Cold items: split by item, ranked among all items and among the cold ones, served by features."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import softdex as sdx
from marks import slow
from softdex.cli.app import app

FEATURES = ["category", "subcategory"]


@pytest.fixture(scope="module")
def log() -> sdx.Interactions:
    world = sdx.synthetic.world(users=80, items=60, seed=0, events=20)
    whole = world.interactions()
    table = world.item_table().add_column(0, "item", whole.items.all())
    return sdx.read(whole.to_arrow(), items=table, quiet=True)


# split -------------------------------------------------------------------------------------------


def test_items_that_appear_last_are_cold_by_time_and_only_users_with_a_past_are_asked() -> None:
    rows = [("ann", "tea", 1), ("ann", "milk", 2), ("bob", "tea", 3), ("ann", "egg", 4)]
    rows += [("bob", "jam", 5), ("ann", "jam", 6), ("new", "jam", 7), ("bob", "tea", 8)]
    log = sdx.read(rows, quiet=True)
    train, valid, test = sdx.split.cold_items(log, (0.5, 0.25, 0.25), order="time")
    assert valid is not None
    assert test.candidates is not None
    assert sorted(train.to_arrow()["item"].to_pylist()) == ["milk", "tea", "tea", "tea"]
    assert log.items.take(np.flatnonzero(test.candidates)).to_pylist() == ["jam"]
    asked = {
        log.users.take(holdout.users[[row]])[0].as_py(): log.items.take(targets).to_pylist()
        for holdout in (test,)
        for row in range(len(holdout))
        if len(targets := holdout.targets[row])
    }
    assert asked == {"ann": ["jam"], "bob": ["jam"]}
    assert log.items.take(valid.targets.ids).to_pylist() == ["egg"]
    assert "1 events are in no part" in test.card.notes


@pytest.mark.parametrize("order", ["random", "time"])
def test_no_event_of_a_cold_item_is_trained_on(order: str, log: sdx.Interactions) -> None:
    train, valid, test = sdx.split.cold_items(log, order=order, seed=1)
    assert valid is not None
    cold = [np.flatnonzero(h.candidates) for h in (valid, test)]
    assert [len(c) for c in cold] == [6, 6]
    assert not set(cold[0]) & set(cold[1])
    assert (train.item_counts[np.concatenate(cold)] == 0).all()
    assert (np.delete(train.item_counts, np.concatenate(cold)) > 0).all()
    for holdout, items in zip((valid, test), cold, strict=True):
        assert set(holdout.targets.ids.tolist()) == set(items.tolist())
        assert not np.isin(holdout.history.ids, items).any()


def test_an_unknown_order_and_a_log_without_time_are_refused() -> None:
    log = sdx.read([("ann", "tea"), ("bob", "milk")], quiet=True)
    with pytest.raises(sdx.SoftdexError, match="cold_items: unknown order 'date'"):
        sdx.split.cold_items(log, order="date")
    with pytest.raises(sdx.DataError, match=r"order='random' to draw the cold items"):
        sdx.split.cold_items(log, order="time")


# metric ------------------------------------------------------------------------------------------


def test_cold_metrics_rank_the_cold_items_alone_and_the_others_all_items(
    log: sdx.Interactions,
) -> None:
    """Against lists by hand: of all scores, and of those of cold items."""
    train, _, test = sdx.split.cold_items(log, (0.7, 0.3))
    model = sdx.fit("ssl", train, encoder="history", features=FEATURES, epochs=2, dim=8, quiet=True)
    found = model.evaluate(test, k=3)
    asked = np.flatnonzero(test.targets.lengths)
    every = torch.arange(log.num_items)
    with torch.no_grad():
        query = model.encoder(np.full(len(asked), -1), test.history.take(asked))
        scores = model.index.score(query, every).numpy()
    recall: dict[str, list[float]] = {"": [], "cold ": []}
    for place, row in enumerate(asked):
        left = scores[place].copy()
        left[test.masked[row]] = -np.inf
        targets = set(test.targets[row].tolist())
        for prefix in recall:
            best = np.argsort(-left, kind="stable")[:3]
            recall[prefix].append(len(targets & set(best.tolist())) / len(targets))
            left[~test.candidates] = -np.inf  # type: ignore[operator]
    for prefix, values in recall.items():
        assert found[f"{prefix}recall@3"] == pytest.approx(np.mean(values), abs=1e-6)
    assert found["cold recall@3"] > found["recall@3"]
    assert "cold recall" in str(found)
    assert "cold ndcg@3" not in model.evaluate(test, k=3, metrics="recall")


def test_popular_finds_no_cold_item_among_all(log: sdx.Interactions) -> None:
    train, _, test = sdx.split.cold_items(log)
    assert sdx.fit("popular", train).evaluate(test, k=20)["recall@20"] == 0.0


def test_a_model_that_cannot_tell_cold_items_apart_says_so(log: sdx.Interactions) -> None:
    train, _, test = sdx.split.cold_items(log)
    for recipe in ("popular", "item_cf", "ials", "ssl"):
        options = {"dim": 4, "epochs": 1} if recipe in ("ials", "ssl") else {}
        result = sdx.fit(recipe, train, **options, quiet=True).evaluate(test, k=3)
        assert result.notes[-1].startswith("the model gives all cold items one score"), recipe
        assert result.notes[-1] in result.card.notes
    model = sdx.fit("ssl", train, encoder="history", features=FEATURES, epochs=1, dim=4, quiet=True)
    assert model.evaluate(test, k=3).notes == ()


def test_an_ordinary_holdout_has_no_cold_metrics(log: sdx.Interactions) -> None:
    train, _, test = sdx.split.leave_last(log)
    found = sdx.fit("popular", train).evaluate(test, k=5)
    assert not [name for name in found if name.startswith("cold")]


def test_the_command_line_splits_by_cold_items(log: sdx.Interactions, tmp_path: Path) -> None:
    pq.write_table(log.to_arrow(), tmp_path / "log.parquet")
    words = ["fit", str(tmp_path / "log.parquet"), "--recipe", "popular", "--split", "cold_items"]
    words += ["--out", str(tmp_path / "run"), "-k", "5"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())["metrics"]
    assert metrics["recall@5"] == 0.0 < metrics["cold recall@5"]


# train and serve ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("ssm", {"encoder": "history", "index": "uniform"}),
        ("softmax", {"encoder": "history"}),
        ("mns", {"negatives": 200}),
        ("xir", {"batch_size": 256}),
        *slow(
            ("ssm", {"encoder": "history", "index": "imi_uniform", "codewords": 4}),
            ("ssm", {"encoder": "history", "index": "kernel"}),
            ("sasrec", {"hidden": 8, "heads": 1}),
            ("bir", {}),
        ),
    ],
)
def test_cold_items_are_no_negatives_so_they_are_served_as_if_added_later(
    recipe: str, options: dict[str, object], log: sdx.Interactions
) -> None:
    train, _, test = sdx.split.cold_items(log)
    cold = np.flatnonzero(test.candidates)
    chosen = {"features": FEATURES, "dim": 8, "epochs": 2, "quiet": True} | options
    model = sdx.fit(recipe, train, **chosen)
    assert model.tower is not None
    assert train.item_table is not None
    by_features = model.tower.of(train.item_table.take(pa.array(cold)))
    assert torch.equal(model.index.scorer.items.weight[cold], by_features)
    assert bool(model.index.alive.all())
    offsets = model.index.scorer.offsets(slice(None))
    if offsets is not None:
        known = offsets[np.setdiff1d(np.arange(log.num_items), cold)].mean()
        assert torch.allclose(offsets[cold], known)
    assert set(model.search(np.array([0]), train.histories.take(np.array([0])), 60)[0]) >= set(cold)


def test_add_items_skips_what_is_known_and_says_how_many(
    log: sdx.Interactions, loud: None, capsys: pytest.CaptureFixture[str]
) -> None:
    train, _, _ = sdx.split.leave_last(log)
    model = sdx.fit("ssl", train, encoder="history", features=FEATURES, epochs=1, dim=8, quiet=True)
    assert log.item_table is not None
    table = log.item_table.slice(0, 3).append_column("item", log.items.all()[:3])
    new = table.slice(0, 2).set_column(2, "item", pa.array(["new-1", "new-2"]))
    before = model.index.scorer.items.weight.clone()
    capsys.readouterr()
    model.add_items(pa.concat_tables([table, new]))
    said = "add_items: 3 of 5 items are in the model already and stay as is"
    assert said in capsys.readouterr().err
    assert (len(model.items), model.added) == (62, {"items": 2})
    old = model.items.lookup(log.items.all())
    assert torch.equal(model.index.scorer.items.weight[old], before)
    model.add_items(table)
    assert (len(model.items), model.added) == (62, {"items": 2})
