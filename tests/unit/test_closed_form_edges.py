"""Closed forms at their edges: zero weights, new users, unknown keys, invalid files and options."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import hostile
import softdex as sdx
from softdex.model.start import take_over
from softdex.recipes.rg import rg
from softdex.solve.closed.normal_equations import Side
from softdex.solve.closed.row_systems import solve_by_cg

QUICK = {"dim": 8, "epochs": 3, "device": "cpu"}


@pytest.fixture(scope="module")
def log() -> sdx.Interactions:
    return sdx.synthetic.world(users=120, items=60, seed=1, events=10).interactions()


def test_a_residual_that_vanishes_ends_the_steps() -> None:
    one = torch.ones(1)
    side = Side(
        torch.tensor([0, 1]), torch.zeros(1, dtype=torch.int32), one * 1e3, one * 1e-23,
        one, one, one,
    )  # fmt: skip
    y, _ = solve_by_cg(side, torch.zeros(3), torch.zeros(3), torch.ones(1, 3))
    assert bool(y.isfinite().all())


@pytest.mark.parametrize("recipe", ["ials", "rg2", "rgx"])
def test_a_regulariser_that_shrinks_all_to_nothing_is_no_crash(
    log: sdx.Interactions, recipe: str
) -> None:
    model = sdx.fit(recipe, log, lam=10.0, dim=6, epochs=40, patience=0, device="cpu")
    assert bool(model.index.scorer.items.weight.isfinite().all())


def test_items_that_an_earlier_model_does_not_know_start_at_zero(log: sdx.Interactions) -> None:
    popular = np.argsort(-log.item_counts)[:5]
    old = sdx.fit("rg2", log.select(~np.isin(log.item, popular)).compact(), **QUICK)
    job = rg(log, **QUICK)
    take_over("rg2", job.encoder, job.scorer, log, old)
    weight = job.scorer.items.weight
    assert not weight[popular].any()
    rows = torch.from_numpy(old.items.lookup(log.items.all()))
    assert torch.equal(weight[rows >= 0], old.index.scorer.items.weight[rows[rows >= 0]])
    warm, cold = (
        sdx.fit("rg2", log, start=start, **QUICK).card.training["history"][0]["loss"]
        for start in (old, None)
    )
    assert warm < cold


def test_users_without_events_are_strangers_and_not_served_in_the_order_of_keys(
    log: sdx.Interactions,
) -> None:
    train, _, test = sdx.split.by_user(log, seed=0)
    model = sdx.fit("rg2", train, **QUICK)
    stranger = train.users.take(np.flatnonzero(train.user_counts == 0)[:1])
    with pytest.raises(sdx.SoftdexError, match="has no event in training"):
        model.recommend(stranger, k=3)
    popular = np.argsort(-train.item_counts, kind="stable")[:3]
    found = model.recommend(stranger, k=3, unknown="popular")
    assert found["item"].to_pylist() == train.items.take(popular).to_pylist()
    with pytest.raises(sdx.SoftdexError, match="history 0 is empty"):
        model.recommend(history=[[]], k=3)
    assert model.evaluate(test, 10)["recall@10"] > 0.1  # by the history that the holdout shows


@pytest.mark.parametrize(
    ("place", "value"), [(7, -1.0), (8, 900.0), (9, 9.0), (11, 0.0), (0, 1e300), (3, -0.1)]
)
def test_a_file_whose_loss_has_no_minimum_is_refused_and_not_written(
    log: sdx.Interactions, tmp_path: Path, place: int, value: float
) -> None:
    model = sdx.fit("rg2", log, **QUICK)
    model.save(tmp_path / "good.sdx")
    model.encoder.terms[place] = value
    with pytest.raises(sdx.SoftdexError, match=r"save: .*no loss that has a minimum"):
        model.save(tmp_path / "bad.sdx")
    assert not (tmp_path / "bad.sdx").exists()
    changed = hostile.with_tensors(tmp_path / "good.sdx", encoder__terms=model.encoder.terms)
    (tmp_path / "bad.sdx").write_bytes(changed)
    with pytest.raises(sdx.ArtifactError, match="no loss that has a minimum"):
        sdx.load(tmp_path / "bad.sdx")


def test_rg2_has_no_interaction_and_rgx_has(log: sdx.Interactions) -> None:
    with pytest.raises(sdx.SoftdexError, match=r"rg2: beta= is fixed.* 'rg' has it"):
        sdx.fit("rg2", log, beta=1.0)
    assert sdx.fit("rgx", log, beta=0.5, **QUICK).options["beta"] == 0.5


def test_an_exponent_needs_a_regulariser_that_has_one(log: sdx.Interactions) -> None:
    with pytest.raises(sdx.SoftdexError, match="nu= has no effect with reg='sum_w'"):
        sdx.fit("ials", log, reg="sum_w", nu=0.3)


def test_a_loss_without_a_minimum_is_refused_by_every_solver(log: sdx.Interactions) -> None:
    for solver in ("als", "newton_cg"):
        with pytest.raises(sdx.SoftdexError, match="nothing bounds the loss"):
            sdx.fit("rgx", log, interaction="frobenius", solver=solver, **QUICK)


def test_a_refit_counts_validation_events_like_the_mean_event(log: sdx.Interactions) -> None:
    from dataclasses import replace

    from softdex.fit import extend

    train, valid, _ = sdx.split.per_user(log, seed=0)
    heavy = replace(train, weight=np.full(len(train), 100.0, np.float32))
    assert valid is not None
    assert set(extend(heavy, valid).weight) == {100.0}


def test_a_search_trains_with_the_seed_given_and_stays_in_its_space(log: sdx.Interactions) -> None:
    train, valid, _ = sdx.split.per_user(log, seed=0)
    assert valid is not None
    found = sdx.tune("rg2", train, valid, settings=3, space={"dim": [4]}, seed=3, device="cpu")
    assert found.model.options["seed"] == found.options["seed"] == 3
    assert {row["dim"] for row in found.settings} == {4}


def test_a_setting_that_makes_no_sense_does_not_end_a_search(log: sdx.Interactions) -> None:
    train, valid, _ = sdx.split.per_user(log, seed=0)
    assert valid is not None
    space = {"interaction": ["exact", "frobenius"]}
    found = sdx.tune("rgx", train, valid, settings=4, space=space, **QUICK)
    assert found.options["interaction"] == "exact"
    with pytest.raises(sdx.SoftdexError, match="max_memory"):
        sdx.tune("rgx", train, valid, settings=4, space={"dim": [2**16]}, max_memory="1MiB")


def test_a_model_that_has_grown_says_why_it_cannot_be_measured(log: sdx.Interactions) -> None:
    train, _, test = sdx.split.per_user(log, seed=0)
    model = sdx.fit("rg2", train, **QUICK)
    item = log.items.all()[0].as_py()
    model.add_users(sdx.read([("someone new", item, 1)], quiet=True))
    with pytest.raises(sdx.DataError, match="were added to this model"):
        model.evaluate(test, 10)
