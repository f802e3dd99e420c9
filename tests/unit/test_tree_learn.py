"""Items that move to better leaves: the deal, the weights, and training in rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import softdex as sdx
from cut_tree import cut
from marks import slow
from softdex.errors import SoftdexError
from softdex.fit import refitted
from softdex.index.tree import build
from softdex.index.tree.deal import RULES, deal
from softdex.index.tree.learn import learn
from softdex.index.tree.tree import Tree
from softdex.solve import loop
from softdex.solve.gradient import trainer as sgd
from softdex.solve.gradient.feed import Windows
from softdex.solve.tree import epochs
from softdex.solve.tree import relearn as rounds_of
from softdex.solve.tree.loss import _looked_at

SMALL: dict[str, Any] = {
    "leaves": "random", "dim": 8, "beam": 10, "negatives": 10, "max_history": 8, "epochs": 4,
    "batch_size": 256, "lr": 0.01, "device": "cpu",
}  # fmt: skip
BEAM = {name: value for name, value in SMALL.items() if name != "negatives"}
FEW = {"epochs": 2, "max_instances": 500}
BOTH = pytest.mark.parametrize("rule", RULES)


def problem(seed: int, groups: int, columns: int, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, groups and room; some columns have no room."""
    draw = np.random.default_rng(seed)
    room = torch.from_numpy(draw.integers(0, most + 1, (groups, columns)))
    group = torch.arange(groups).repeat_interleave(room.sum(1))
    group = group[torch.from_numpy(draw.permutation(len(group)))]
    level = draw.normal(size=(len(group), 1)) * draw.normal(size=columns)  # what all want
    weight = draw.normal(size=(len(group), columns)) + level
    return torch.from_numpy(weight).float(), group, room


def nowhere(group: Tensor) -> Tensor:
    return torch.full_like(group, -1)


@given(
    st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 9), st.integers(1, 5),
    st.sampled_from(RULES),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_every_column_gets_as_many_as_it_has_room_for(
    seed: int, groups: int, columns: int, most: int, rule: str
) -> None:
    weight, group, room = problem(seed, groups, columns, most)
    chosen = deal(weight, group, room, nowhere(group), rule=rule)
    load = torch.bincount(group * columns + chosen, minlength=room.numel())
    assert torch.equal(load.view_as(room), room)


@pytest.mark.parametrize("seed", range(5))
def test_an_auction_comes_near_the_best_there_is_and_greed_does_not(seed: int) -> None:
    weight, group, room = problem(seed, 3, 12, 5)
    best = 0.0
    for g in range(3):
        mine = weight[group == g].numpy()[:, np.repeat(np.arange(12), room[g])]
        best += float(mine[linear_sum_assignment(mine, maximize=True)].sum())

    def total(rule: str) -> float:
        chosen = deal(weight, group, room, nowhere(group), rule=rule)
        return float(weight.gather(1, chosen.unsqueeze(1)).sum())

    spread = float(weight.std())
    assert best - total("auction") < 0.02 * spread * len(group)
    assert best - total("greedy") > best - total("auction")


@pytest.mark.parametrize("seed", range(5))
def test_the_greedy_deal_equals_the_loop(seed: int) -> None:
    weight, group, room = problem(seed, 1, 7, 4)
    draw = np.random.default_rng(seed)
    stays = torch.from_numpy(draw.integers(-1, 7, len(group)))
    room_of, table = room[0].tolist(), weight.tolist()
    open_columns = {c for c in range(7) if room_of[c]}
    at = [max(open_columns, key=lambda c: row[c]) for row in table]
    most = [max(row[c] for c in open_columns) for row in table]
    while True:
        load = {c: at.count(c) for c in open_columns}
        full = [c for c in sorted(open_columns) if load[c] > room_of[c]]
        if not full:
            break
        fullest = max(full, key=lambda c: load[c])
        here = [i for i, c in enumerate(at) if c == fullest]
        here.sort(key=lambda i: (int(stays[i]) != fullest, -most[i]))
        open_columns.remove(fullest)
        for i in here[room_of[fullest] :]:
            at[i] = max(open_columns, key=lambda c: table[i][c])
    assert deal(weight, group, room, stays, rule="greedy").tolist() == at


class Wishes:
    """Each query is an item, and scores the nodes above its favourite slot highest."""

    pair_bytes = 64

    def __init__(self, favourite: Tensor, widths: list[int], starts: list[int]) -> None:
        self.favourite, self.widths, self.starts = favourite, widths, starts

    def num_queries(self, query: Tensor) -> int:
        return len(query)

    def seen(self, query: Tensor, *rows: Callable[[Tensor], Tensor]) -> Tensor:
        return query

    def __call__(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        assert isinstance(ids, Tensor)
        scores = torch.zeros(ids.shape)
        for width, start in zip(self.widths, self.starts, strict=True):
            wanted = start + self.favourite[query] // width
            scores += 3.0 * (ids == wanted.unsqueeze(1))
        return scores


@BOTH
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("gap", [1, 2, 7])
def test_items_whose_histories_all_want_another_slot_get_it(
    rule: str, binary: bool, gap: int
) -> None:
    roots, arity, depth = 3, 2, 4
    slots = roots * arity ** (depth - 1)
    draw = torch.Generator().manual_seed(gap)
    taken = torch.randperm(slots, generator=draw)[:20].sort().values
    item_of = torch.full((slots,), -1)
    item_of[taken] = torch.arange(20)
    numbers = {"arity": arity, "depth": depth, "effort": 3.0, "product": False}
    kept = {name: torch.tensor(value) for name, value in numbers.items()}
    tree = Tree(None, item_of, torch.ones(20, dtype=torch.bool), **kept)  # type: ignore[arg-type]
    favourite = taken[torch.randperm(20, generator=draw)]
    widths = [tree.width(level) for level in range(1, depth + 1)]
    tree.scorer = Wishes(favourite, widths, tree.starts)
    items = torch.arange(20).repeat(3)
    found = learn(tree, lambda: [(items, items)], gap=gap, binary=binary, rule=rule)
    assert torch.equal(found.slot_of, favourite)
    assert found.after > found.before


# in training -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def estimator(parts: sdx.Split, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a sequence model, quicker than the one that a tree trains for itself."""
    path = tmp_path_factory.mktemp("estimator") / "s.sdx"
    quick = {"dim": 8, "epochs": 1, "max_history": 8, "positions": 8, "device": "cpu"}
    sdx.fit("sasrec", parts.train, **quick).save(path)
    return str(path)


def tree_in(model: sdx.Retriever) -> Tree:
    assert isinstance(model.index, Tree)
    return model.index


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("jtm", {}),
        *slow(
            ("dtr", {"rounds": 2}),
            ("dtr", {"rounds": 2, "deal": "greedy", "move": False, "restart": True}),
            ("tdm", {"rounds": 2}),
            ("otm", {}),
            ("dtr", {"rectify": "path"}),
            ("dtr", {"rectify": "child", "normalise": True, "rounds": 2, "warm_up": 1}),
        ),
    ],
    ids=str,
)
@pytest.mark.slow
def test_trees_that_are_learned_know_far_more_than_chance(
    parts: sdx.Split, name: str, options: dict[str, Any]
) -> None:
    more = {"epochs": 6} if name != "otm" else {"epochs": 10, "lr": 0.005}
    model = sdx.fit(name, parts.train, **((SMALL if name != "otm" else BEAM) | more | options))
    assert model.evaluate(parts.test, 20)["recall@20"] > 0.25  # chance has .18
    learned = [record for record in model.card.training["history"] if "moved" in record]
    assert len(learned) == (name in ("jtm", "tdm") or "rounds" in options)
    tree = tree_in(model)
    assert sorted(tree.item_of[tree.item_of >= 0].tolist()) == list(range(parts.train.num_items))


def test_tdm_clusters_its_leaves_again_at_the_start_of_every_round_but_the_first(
    parts: sdx.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The papers' TDM has four rounds."""
    seen: list[tuple[np.ndarray, Tree]] = []
    clustered = rounds_of._clustered

    def watched(tree: Tree, table: torch.Tensor) -> torch.Tensor:
        vectors = table[tree.starts[-1] :][tree.slot_of].float().numpy()
        found = clustered(tree, table)
        order = build.by_vectors(vectors, build.Shape(tree.sizes[0], tree.arity, tree.depth))
        assert np.array_equal(found.argsort().numpy(), order)
        seen.append((order, tree))
        return found

    monkeypatch.setattr(rounds_of, "_clustered", watched)
    given = {n: v for n, v in SMALL.items() if n != "leaves"} | {"epochs": 4, "max_instances": 500}
    model = sdx.fit("tdm", parts.train, leaves="random", **given, rounds=4)
    notes = [record for record in model.card.training["history"] if "moved" in record]
    assert len(seen) == len(notes) == 3
    assert all(record["moved"] > 0.1 for record in notes)
    lies = tree_in(model).item_of
    assert lies[lies >= 0].tolist() == seen[-1][0].tolist()


def test_what_moves_with_its_items_leaves_the_best_of_all_leaves_as_they_were(
    parts: sdx.Split,
) -> None:
    made: Any = sdx.recipes.make("tree", parts.train, SMALL)
    trainer = made.trainer(parts.train)
    for _ in range(3):
        trainer.step(torch.arange(256))
    trainer.modules.eval()
    history = trainer.feed.instances(torch.arange(5))[0]
    before = trainer.index.score(history, torch.arange(parts.train.num_items))
    for move in (True, False):
        how = rounds_of.Rounds((), move=move)
        optimizer, draw = trainer.optimizers[0], trainer.generator
        figures = rounds_of.relearn(trainer.index, trainer.feed, optimizer, how, draw)
        assert figures["moved"] > 0.5
        after = trainer.index.score(history, torch.arange(parts.train.num_items))
        assert torch.allclose(before, after, atol=1e-5) is move


@pytest.mark.parametrize("sampling", ["beam", "uniform"])
def test_labels_of_ones_own_making_begin_after_the_warm_up(parts: sdx.Split, sampling: str) -> None:
    more = {"objective": "binary", "sampling": sampling, "rectify": "own", "warm_up": 1}
    more["max_instances"] = 500
    made: Any = sdx.recipes.make("tree", parts.train, SMALL | more)
    run = loop.Run(made, parts.train, quiet=True)
    trainer: Any = run.trainer
    run.advance(1)
    assert not trainer.loss.own
    run.advance(1)
    assert trainer.loss.own


def test_how_likely_items_are_is_what_every_level_says(parts: sdx.Split) -> None:
    made: Any = sdx.recipes.make("tree", parts.train, SMALL)
    trainer = made.trainer(parts.train)
    trainer.modules.eval()
    tree, at = trainer.index, torch.arange(0, 500, 7)
    query, item = trainer.feed.instances(at)
    expected = [
        float(cut(tree, j).log_prob(query, tree.slot_of[item, None] // tree.width(j)).mean())
        for j in range(1, tree.depth + 1)
    ]
    found = rounds_of.mean_log_prob(tree, trainer.feed, at)
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("stop", "name", "more"),
    [
        *slow(("before the tree is learned", "dtr", {"rounds": 2, "rectify": "path"})),
        ("inside the round after", "dtr", {"rounds": 2, "rectify": "path"}),
        ("inside what follows on a warm-up", "otm", {"warm_up": 1}),
    ],
)
def test_a_run_in_parts_that_was_killed_ends_where_it_would_have(
    parts: sdx.Split,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: str,
    name: str,
    more: dict[str, Any],
    estimator: str,
) -> None:
    small = SMALL if name == "dtr" else BEAM
    options = small | {"epochs": 2, "max_instances": 1000} | more
    if stop == "inside the round after":
        options["estimator"] = estimator
    whole = sdx.fit(name, parts.train, **options)
    steps, step = 0, sgd.Trainer.step

    def counted(self: sgd.Trainer, at: Tensor) -> None:
        nonlocal steps
        steps += isinstance(self.feed, Windows)
        if stop.startswith("inside") and steps == 6:
            raise KeyboardInterrupt
        step(self, at)

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sgd.Trainer, "step", counted)
        if stop.startswith("before"):
            patch.setattr(epochs, "relearn", cut)
        with pytest.raises(KeyboardInterrupt):
            sdx.fit(name, parts.train, folder=tmp_path, **options)
    again = sdx.fit(name, parts.train, folder=tmp_path, resume=True, **options)
    assert again.card.training == whole.card.training
    assert torch.equal(tree_in(again).item_of, tree_in(whole).item_of)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("dtr", {"rounds": 9}, "9 rounds need as many epochs, got 4"),
        ("dtr", {"rectify": "paths"}, "rectify"),
        ("dtr", {"deal": "cards"}, "deal"),
        ("plt", {"rectify": "path"}, "rectify"),
        ("din", {"rounds": 2}, "rounds"),
        ("dtr", {"warm_up": 1}, "warm_up"),
        ("dtr", {"rectify": "path", "warm_up": 4}, "leaves none of 4"),
        ("otm", {"warm_up": 4}, "leaves none of 4"),
        ("otm", {"negatives": 4}, "negatives= is fixed, .* 'tree' has it as an option"),
        ("dtr", {"rectify": "own"}, "rectify='own' is for objective='binary'"),
        ("dtr", {"gap": 3}, "gap= has no effect with rounds=1"),
        ("dtr", {"leaves": "trees/old.sdx"}, "no saved model 'trees/old.sdx'"),
        ("dtr", {"rectify": "path", "estimator": "nowhere.sdx"}, "nowhere.sdx"),
    ],
    ids=str,
)
def test_nonsense_is_refused_before_anything_is_trained(
    parts: sdx.Split, name: str, options: dict[str, Any], words: str
) -> None:
    given = {n: v for n, v in SMALL.items() if name == "dtr" or n in ("dim", "epochs", "device")}
    with pytest.raises(SoftdexError, match=words):
        sdx.fit(name, parts.train, **(given | options))


def test_where_the_beam_holds_all_items_it_is_said_that_there_is_no_tree_to_learn(
    parts: sdx.Split, loud: None, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"beam": 500, "epochs": 2, "rounds": 2, "rectify": "path", "max_instances": 300}
    model = sdx.fit("dtr", parts.train, **(SMALL | more))
    assert "holds all 120 items: no tree to learn" in capsys.readouterr().err
    assert tree_in(model).depth == 1


def test_a_tree_can_begin_as_a_saved_one(parts: sdx.Split, tmp_path: Path) -> None:
    few = {"room": 0.3, "max_instances": 500}
    learned = sdx.fit("jtm", parts.train, **(SMALL | few | {"epochs": 2}))
    learned.save(tmp_path / "jtm.sdx")
    path = str(tmp_path / "jtm.sdx")
    model = sdx.fit("otm", parts.train, **(BEAM | few | {"epochs": 1, "leaves": path}))
    assert tree_in(learned).item_of.tolist() == tree_in(model).item_of.tolist()
    assert (tree_in(model).item_of < 0).any()
    first = sdx.fit("tree", parts.train, **(SMALL | few | {"epochs": 1}))
    assert tree_in(first).item_of.tolist() != tree_in(model).item_of.tolist()
    sdx.fit("popular", parts.train).save(tmp_path / "p.sdx")
    with pytest.raises(SoftdexError, match="is a saved popular, which has no tree"):
        sdx.fit("otm", parts.train, **(BEAM | {"leaves": str(tmp_path / "p.sdx")}))


def test_labels_can_be_rectified_by_a_saved_sequence_model(
    parts: sdx.Split, tmp_path: Path, estimator: str
) -> None:
    model = sdx.fit("dtr", parts.train, **(SMALL | FEW), rectify="path", estimator=estimator)
    assert model.options["estimator"] == estimator
    sdx.fit("popular", parts.train).save(tmp_path / "p.sdx")
    with pytest.raises(SoftdexError, match="Give a saved sasrec"):
        sdx.fit("dtr", parts.train, **SMALL, rectify="path", estimator=str(tmp_path / "p.sdx"))


def test_items_that_nobody_was_asked_about_stay_where_nobody_wants_their_place() -> None:
    draw = torch.Generator().manual_seed(0)
    weight = torch.zeros(40, 8)
    weight[:10] = torch.randn(10, 8, generator=draw)
    stays = torch.arange(8).repeat_interleave(5)[torch.randperm(40, generator=draw)]
    room = torch.full((1, 8), 5)
    chosen = deal(weight, torch.zeros(40, dtype=torch.int64), room, stays)
    assert (chosen[10:] == stays[10:]).float().mean() > 0.6


@pytest.mark.parametrize(("beam", "arity"), [(4, 2), (7, 3), *slow((35, 2))])
def test_what_a_beam_is_trained_on_is_what_it_looks_at(
    parts: sdx.Split, beam: int, arity: int
) -> None:
    given = BEAM | {"beam": beam, "arity": arity}
    as_otm = {"objective": "binary", "sampling": "beam"}  # as otm has it
    made: Any = sdx.recipes.make("tree", parts.train, given | as_otm)
    trainer = made.trainer(parts.train)
    trainer.modules.eval()
    query, item = trainer.feed.instances(torch.arange(64))
    slot = trainer.index.slot_of[item]
    trained, there = _looked_at(trainer.index, query, slot, made.parts.negatives.loss.negatives)
    looked_at = zip(trainer.index.beam(query, 1), trained, strict=True)
    for level, ((nodes, scores), path) in enumerate(looked_at):
        for row, own in enumerate(path.node.tolist()):
            looked = set(nodes[row][scores[row] > -torch.inf].tolist())
            assert set(path.draws.nodes[row].tolist()) - {own} == looked - {own}
            assert bool(there[row, level]) == (own in looked)
    model = sdx.fit("otm", parts.train, **(given | FEW))
    assert all(np.isfinite(record["loss"]) for record in model.card.training["history"])


@pytest.mark.parametrize(("rounds", "epochs"), [(4, 6), (5, 6), (2, 5)])
def test_there_are_as_many_rounds_as_were_asked_for(rounds: int, epochs: int) -> None:
    starts = rounds_of.starts_of(rounds, epochs)
    assert len(set(starts)) == rounds - 1
    assert all(0 < start < epochs for start in starts)


def test_a_refit_learns_the_tree_as_often(parts: sdx.Split) -> None:
    given = SMALL | {"epochs": 3, "max_instances": 500}
    model = sdx.fit("jtm", parts.train, valid=parts.valid, refit=True, **given)
    assert model.card.refitted


def test_a_refit_that_ends_in_the_warm_up_keeps_all_labels(parts: sdx.Split) -> None:
    given = BEAM | {"max_instances": 500, "epochs": 3, "warm_up": 2}
    model = sdx.fit("otm", parts.train, valid=parts.valid, **given)
    training = {**model.card.training, "best_epoch": 2}
    model.card = replace(model.card, training=training)
    assert parts.valid is not None
    again = refitted("otm", model.options, parts.train, parts.valid, model)
    assert again.card.refitted
    assert (again.options["rectify"], again.options["warm_up"]) == ("none", 0)


def test_a_saved_tree_of_other_items_is_refused(parts: sdx.Split, tmp_path: Path) -> None:
    sdx.fit("dtr", parts.train, **(SMALL | {"epochs": 1})).save(tmp_path / "m.sdx")
    other = sdx.read([("a", "x1", 1), ("a", "x2", 2), ("b", "x1", 3), ("b", "x3", 4)], quiet=True)
    with pytest.raises(SoftdexError, match="has no item in common with the log"):
        sdx.fit("dtr", other, **(SMALL | {"leaves": tmp_path / "m.sdx"}))
