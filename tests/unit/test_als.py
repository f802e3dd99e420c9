"""Closed-form models: they learn, stop early, resume, use weights, and refuse invalid options."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import softdex as sdx
from softdex.recipes.ials import ials
from softdex.recipes.rg import rg
from softdex.solve.checkpoint import FILE, LOG, Checkpointer
from softdex.solve.closed import als
from softdex.solve.closed.svd import full_matrix_form
from softdex.solve.loop import Outcome, train

SMALL: dict[str, Any] = {"dim": 16, "epochs": 6, "patience": 2, "device": "cpu"}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "ials": ("ials", {}),
    "rg2": ("rg2", {}),
    "rgx": ("rgx", {}),
    "rgx printed": ("rgx", {"beta": 0.5, "interaction": "frobenius"}),
    "rg2 sampled": ("rg2", {"sampled": 15}),
    "rgx exactly": ("rgx", {"steps": 0}),
}


@pytest.fixture(scope="module")
def split() -> sdx.Split:
    world = sdx.synthetic.world(users=400, items=150, seed=5, events=20, strength=2.0)
    return sdx.split.leave_last(world.interactions())


def fit(method: str, log: sdx.Interactions, **more: Any) -> sdx.Retriever:
    name, options = METHODS[method]
    return sdx.fit(name, log, **(SMALL | options | more))


def vectors(model: sdx.Retriever) -> tuple[Tensor, Tensor]:
    return model.encoder.vectors.weight, model.index.scorer.items.weight  # type: ignore


def same(one: sdx.Retriever, other: sdx.Retriever) -> bool:
    return all(torch.equal(a, b) for a, b in zip(vectors(one), vectors(other), strict=True))


def losses(model: sdx.Retriever) -> list[float]:
    return [record["loss"] for record in model.card.training["history"]]


def repeated(log: sdx.Interactions, times: np.ndarray, weighted: bool) -> sdx.Interactions:
    """Repeat each row this many times in sequence."""
    log = log.select(np.repeat(np.arange(len(log)), times))
    return replace(log, weight=np.ones(len(log), np.float32) if weighted else None)


# learning ----------------------------------------------------------------------------------------


def test_all_items_of_ials_weigh_16_times_as_much_as_the_events(split: sdx.Split) -> None:
    weights = np.random.default_rng(0).integers(1, 9, len(split.train)).astype(np.float32)
    for log in (split.train, replace(split.train, weight=weights)):
        events = log.confidences[0].sum()
        alpha = 16 * float(events) / (log.num_users * log.num_items)
        assert same(fit("ials", log), fit("ials", log, alpha=alpha))


@pytest.mark.parametrize(("items", "events"), [(150, 20), (1500, 8)], ids=["dense", "sparse"])
def test_the_defaults_of_ials_suit_dense_logs_and_sparse_ones(items: int, events: int) -> None:
    world = sdx.synthetic.world(users=400, items=items, seed=5, events=events, strength=2.0)
    train, _, test = sdx.split.leave_last(world.interactions())
    default, by_rg2 = (fit(name, train).evaluate(test, 20)["ndcg@20"] for name in ("ials", "rg2"))
    one = fit("ials", train, alpha=0.03, lam=0.005, nu=1.0).evaluate(test, 20)["ndcg@20"]
    assert default > 0.95 * by_rg2
    assert default > 1.1 * one  # seen: 1.2 and 1.3 times


@pytest.mark.parametrize("method", METHODS)
def test_a_model_beats_what_is_popular_and_its_loss_falls(split: sdx.Split, method: str) -> None:
    popular = sdx.fit("popular", split.train).evaluate(split.test, 20)["ndcg@20"]
    model = fit(method, split.train, valid=split.valid)
    reached = model.evaluate(split.test, 20)["ndcg@20"]
    assert reached > 1.2 * popular  # seen: 1.3 to 1.4 times
    fallen = np.diff(losses(model))
    assert (fallen < 0).all()


def test_the_full_matrix_form_is_a_recipe_that_folds_in_as_it_was_trained(
    split: sdx.Split, tmp_path: Path
) -> None:
    log, given = split.train, {"solver": "svd", "alpha": 0.0, "reg": "scores", "device": "cpu"}
    model = sdx.fit("rg2", log, dim=16, lam=0.05, **given)
    wanted = full_matrix_form(log.confidences[0], 0.05, 16)
    scores = wanted[0] @ wanted[1].T
    assert torch.allclose(vectors(model)[0] @ vectors(model)[1].T, scores, atol=1e-4)
    model.save(tmp_path / "m.sdx")
    encoder: Any = sdx.load(tmp_path / "m.sdx").encoder
    for found, wanted_rows in (
        (encoder.new_users(log.confidences[0]), wanted[0]),
        (encoder.new_items(log.confidences[1]), wanted[1]),
    ):
        assert torch.allclose(found, wanted_rows, atol=1e-3 * float(wanted_rows.abs().max()))
    popular = sdx.fit("popular", log).evaluate(split.test, 20)["ndcg@20"]
    assert model.evaluate(split.test, 20)["ndcg@20"] > popular
    for solver in ("als", "newton_cg"):
        with pytest.raises(sdx.SoftdexError, match=r"not by .* Use solver='svd'"):
            sdx.fit("rg2", log, **(given | {"solver": solver}))


def test_the_search_for_rgx_tries_the_printed_interaction_and_its_share(split: sdx.Split) -> None:
    space = sdx.recipes.space("rgx")
    assert space["interaction"] == ["exact", "frobenius"]
    valid = split.valid
    assert valid is not None
    found = sdx.tune("rgx", split.train, valid, settings=9, **(SMALL | {"epochs": 1}))
    tried = {(row["interaction"], row["beta"]) for row in found.settings}
    assert {interaction for interaction, _ in tried} == {"exact", "frobenius"}
    assert len({beta for _, beta in tried}) > 1


def test_the_sweep_that_was_best_in_validation_is_restored(split: sdx.Split) -> None:
    made = rg(split.train, **(SMALL | {"patience": 0}))
    marks = iter([0.1, 0.2, 0.5, 0.3, 0.2, 0.1])
    outcome = train(made, split.train, measure=lambda: next(marks))
    assert outcome.best_epoch == 2
    three = rg(split.train, **(SMALL | {"epochs": 3}))
    train(three, split.train)
    assert torch.equal(made.encoder.vectors.weight, three.encoder.vectors.weight)
    assert torch.equal(made.scorer.items.weight, three.scorer.items.weight)


def test_training_stops_when_sweeps_no_longer_help(split: sdx.Split) -> None:
    model = fit("rg2", split.train, valid=split.valid, epochs=100, lam=0.02)
    training = model.card.training
    assert len(training["history"]) == training["best_epoch"] + 2 < 100


def test_a_start_lowers_the_first_loss(split: sdx.Split) -> None:
    first = fit("rg2", split.train)
    warm = fit("rg2", split.train, start=first, epochs=1)
    cold = fit("rg2", split.train, epochs=1)
    assert losses(warm)[0] < losses(first)[-1] < losses(cold)[0]


def test_a_start_from_fewer_users_and_items_helps_too(split: sdx.Split) -> None:
    log = split.train
    old = fit("rg2", log.select((log.user % 5 > 0) & (log.item % 7 > 0)).compact())
    assert losses(fit("rg2", log, start=old, epochs=1)) < losses(fit("rg2", log, epochs=1))


def test_a_refitted_model_has_seen_the_validation_part(split: sdx.Split) -> None:
    model = fit("ials", split.train, valid=split.valid, refit=True)
    assert model.card.refitted
    assert split.valid is not None
    assert len(model.seen.ids) == len(split.train) + len(split.valid.targets.ids)
    best = fit("ials", split.train, valid=split.valid).card.training["best_epoch"]
    assert len(losses(model)) == best


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(
    split: sdx.Split, tmp_path: Path, method: str
) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        fit(method, split.train, seed=seed, epochs=2).save(tmp_path / name)
    first, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == again != other


def test_a_saved_model_gives_the_same_lists(split: sdx.Split, tmp_path: Path) -> None:
    model = fit("rgx", split.train)
    model.save(tmp_path / "m.sdx")
    again = sdx.load(tmp_path / "m.sdx")
    assert same(model, again)
    assert dict(again.evaluate(split.test, 20)) == dict(model.evaluate(split.test, 20))
    history = [model.items.values.to_pylist()[:3]]
    assert again.recommend(history=history).table == model.recommend(history=history).table
    assert again.encoder.loss == model.encoder.loss


def test_users_of_a_validation_part_who_are_strangers_are_folded_in(split: sdx.Split) -> None:
    """With the items of the very sweep."""
    whole = sdx.synthetic.world(users=300, items=100, seed=2, events=15, strength=2.0)
    parts = sdx.split.by_user(whole.interactions(), (0.6, 0.2, 0.2))
    model = fit("rg2", parts.train, valid=parts.valid, patience=0)
    said = [record["metric"] for record in model.card.training["history"]]
    marks = []
    for epochs in range(1, 7):
        alone = fit("rg2", parts.train, epochs=epochs)
        assert parts.valid is not None
        marks.append(round(alone.evaluate(parts.valid, 20)["ndcg@20"], 6))
    assert said == marks
    assert len(set(marks)) > 3


# stopping and going on ---------------------------------------------------------------------------


def run(
    log: sdx.Interactions, checkpointer: Checkpointer | None
) -> tuple[als.Alternating, Outcome]:
    made = rg(log, **(SMALL | {"epochs": 4, "beta": 1.0}))
    return made, train(made, log, checkpointer=checkpointer)


@pytest.mark.parametrize(("half", "call"), [("users", 1), ("users", 3), ("items", 2)])
def test_a_run_stopped_by_ctrl_c_goes_on_to_the_very_same_vectors(
    split: sdx.Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: str, call: int
) -> None:
    """Also between users and items: the checkpoint then holds the users of that sweep."""
    whole, outcome = run(split.train, None)
    name, calls = f"solve_{half}", 0
    plain = getattr(als.Sweeps, name)

    def interrupted(self: als.Sweeps) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self)

    with monkeypatch.context() as patch:
        patch.setattr(als.Sweeps, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(split.train, Checkpointer(tmp_path, {}, resume=False))
    found = Checkpointer(tmp_path, {}, resume=True).load()
    assert found is not None
    stopped = (found.progress["epoch"], found.progress["step"])
    assert stopped == ((call - 1, 1) if half == "users" else (call, 0))
    made, again = run(split.train, Checkpointer(tmp_path, {}, resume=True))
    assert torch.equal(made.encoder.vectors.weight, whole.encoder.vectors.weight)
    assert torch.equal(made.scorer.items.weight, whole.scorer.items.weight)
    assert [r["loss"] for r in again.history] == [r["loss"] for r in outcome.history]
    assert len((tmp_path / LOG).read_text().splitlines()) == 4


def test_fit_in_a_folder_resumes_to_the_same_model(
    split: sdx.Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit("ials", split.train, valid=split.valid)
    solve_items, calls = als.Sweeps.solve_items, 0

    def dies(self: als.Sweeps) -> float:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise EOFError
        return solve_items(self)

    with monkeypatch.context() as patch:
        patch.setattr(als.Sweeps, "solve_items", dies)
        with pytest.raises(EOFError):
            fit("ials", split.train, valid=split.valid, folder=tmp_path)
    assert (tmp_path / FILE).exists()
    again = fit("ials", split.train, valid=split.valid, folder=tmp_path, resume=True)
    whole.save(tmp_path / "a")
    again.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with pytest.raises(sdx.SoftdexError, match=r"another run \(options differ\)"):
        fit("ials", split.train, valid=split.valid, folder=tmp_path, resume=True, lam=0.5)


# what events count -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ials", "rg2", "rgx", "rg2 sampled"])
def test_an_event_of_weight_c_is_c_events(split: sdx.Split, method: str) -> None:
    """With equal and with different weights; without weights a repeated pair counts once."""
    log = split.train
    twice = replace(log, weight=np.full(len(log), 2.0, np.float32))
    again = repeated(log, np.full(len(log), 2), weighted=True)
    assert same(fit(method, twice, epochs=2), fit(method, again, epochs=2))
    times = np.random.default_rng(0).integers(1, 4, len(log))
    weighted = replace(log, weight=times.astype(np.float32))
    mixed = fit(method, weighted, epochs=2)
    assert same(mixed, fit(method, repeated(log, times, weighted=True), epochs=2))
    once = fit(method, log, epochs=2)
    assert same(once, fit(method, repeated(log, times, weighted=False), epochs=2))
    assert same(once, fit(method, repeated(log, np.ones(len(log), int), True), epochs=2))
    assert not same(once, mixed)


@pytest.mark.parametrize("method", METHODS)
def test_users_and_items_without_events_have_finite_vectors(split: sdx.Split, method: str) -> None:
    log = split.train
    some = log.select((log.user > 3) & (log.item % 10 > 0))
    model = fit(method, some)
    users, items = vectors(model)
    assert torch.isfinite(users).all()
    assert torch.isfinite(items).all()
    assert (users[:4] == 0).all()
    assert model.evaluate(split.test, 20)["ndcg@20"] > 0.1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_no_regulariser_and_more_dimensions_than_items_give_finite_vectors(
    split: sdx.Split, method: str, alpha: float
) -> None:
    log = split.train
    few = log.select(log.item < 20).compact()
    for steps in (0, 4):
        model = fit(method, few, lam=0.0, alpha=alpha, dim=30, steps=steps, epochs=2)
        assert all(torch.isfinite(t).all() for t in vectors(model))


def test_the_smallest_log_can_be_learned_from() -> None:
    log = sdx.read([("a", "x")])
    for method in ("ials", "rg2", "rgx"):
        model = fit(method, log)
        assert all(torch.isfinite(t).all() for t in vectors(model))
        assert model.recommend("a", exclude_seen=False)["item"].to_pylist() == ["x"]


# options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "options", "words"), [
    ("rgx", {"beta": 1.5}, "rgx: expected beta from 0 to 1, got 1.5"),
    ("rgx", {"beta": -0.5}, "rgx: expected beta from 0 to 1"),
    ("rg2", {"lam": -0.1}, "rg2: expected lam from 0 to 1e9, got -0.1"),
    ("ials", {"lam": -0.1}, "ials: expected lam from 0 to 1e9, got -0.1"),
    ("ials", {"alpha": -1.0}, "ials: expected alpha from 0 to 1e9"),
    ("ials", {"dim": 0}, "ials: expected dim > 0"),
    ("rg2", {"epochs": 0}, "rg2: expected epochs > 0"),
    ("rg2", {"steps": -1}, "rg2: expected steps from 0 to 10000"),
    ("rg2", {"reg": "l3"}, "rg2: unknown reg 'l3'. Known: l2, sum_w, frequency"),
    ("ials", {"reg": "sum"}, "ials: unknown reg 'sum'. Did you mean 'sum_w'?"),
    ("rg2", {"nu": 10.0}, "rg2: expected nu from 0 to 9, got 10.0"),
    ("rg2", {"seed": 2**64}, "rg2: expected seed as a whole number"),
    ("rg2", {"reg": "l2", "nu": 0.5}, "rg2: nu= has no effect with reg='l2'"),
    ("rg2", {"solver": "sgd"}, "rg2: unknown solver 'sgd'"),
    ("rgx", {"interaction": "frobenus"}, "unknown interaction 'frobenus'. Did you mean 'frob"),
    ("rg2", {"sampled": 0}, "expected 1 to 149 sampled items, got 0"),
    ("rg2", {"sampled": 150}, "expected 1 to 149 sampled items, got 150"),
    ("rgx", {"interaction": "frobenius", "alpha": 0.0}, "nothing bounds the loss from below"),
    ("rgx", {"interaction": "frobenius"}, "nothing bounds the loss from below"),
    ("rg2", {"lam": float("nan")}, "expected lam as a number"),
    ("rg2", {"device": "cuda:99"}, "device 'cuda:99' cannot be used"),
])  # fmt: skip
def test_options_out_of_range_are_one_clear_error(
    split: sdx.Split, name: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(sdx.SoftdexError, match=words):
        sdx.fit(name, split.train, **(SMALL | options))


@pytest.mark.parametrize("steps", [0, 4])
def test_vectors_that_grow_without_end_are_one_clear_error(split: sdx.Split, steps: int) -> None:
    made = rg(split.train, **(SMALL | {"steps": steps}))
    made.scorer.items.weight *= 1e30  # their products are not in float32
    with pytest.raises(sdx.SoftdexError, match=r"beyond all bounds\. Raise lam"):
        train(made, split.train)


@pytest.mark.parametrize("recipe", [ials, rg])
def test_the_memory_that_is_predicted_grows_with_what_costs_it(
    split: sdx.Split, recipe: Any
) -> None:
    base = recipe(split.train, **SMALL).memory(split.train)
    assert recipe(split.train, **(SMALL | {"dim": 64})).memory(split.train) > base
    half = split.train.select(split.train.user % 2 == 0)
    assert recipe(half, **SMALL).memory(half) < base
    with pytest.raises(sdx.SoftdexError, match=r"needs about .* GB, max_memory is 0\.00 GB"):
        sdx.fit(recipe.__name__, split.train, max_memory="1MiB", **(SMALL | {"dim": 512}))


def test_a_log_is_prepared_once_however_many_models_are_trained_on_it(split: sdx.Split) -> None:
    matrices = split.train.confidences
    before = matrices[0].copy()
    fit("rg2", split.train)
    fit("ials", split.train)
    assert split.train.confidences is matrices
    assert (matrices[0] != before).nnz == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", METHODS)
def test_a_gpu_comes_to_the_same_model(split: sdx.Split, method: str) -> None:
    here = fit(method, split.train, valid=split.valid)
    there = fit(method, split.train, valid=split.valid, device="cuda")
    assert there.encoder.vectors.weight.device.type == "cuda"  # type: ignore[union-attr]
    assert losses(there)[:3] == pytest.approx(losses(here)[:3], rel=1e-3)
    one, other = (m.evaluate(split.test, 20)["ndcg@20"] for m in (here, there))
    assert abs(one - other) < 0.005
    items = here.items.values.to_pylist()
    mine, theirs = (m.recommend(history=[items[:4]], k=5)["score"] for m in (here, there))
    assert np.allclose(mine.to_numpy(), theirs.to_numpy(), atol=1e-2)
