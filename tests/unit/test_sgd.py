"""The training loop: it learns, stops at the best epoch, repeats itself, and can be interrupted."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import softdex as sdx
from marks import slow
from softdex.machine import pick_device
from softdex.recipes import make
from softdex.solve.checkpoint import FILE, LOG, Checkpointer
from softdex.solve.gradient import trainer as sgd
from softdex.solve.gradient.probe import proposal_report
from softdex.solve.gradient.trainer import Descent
from softdex.solve.loop import CLOCKS, Outcome, train

SMALL: dict[str, Any] = {
    "dim": 8, "epochs": 4, "batch_size": 256, "negatives": 20, "lr": 0.02, "patience": 0,
    "device": "cpu",
}  # fmt: skip


def weights(made: Descent) -> dict[str, torch.Tensor]:
    state = {f"e.{n}": t for n, t in made.parts.encoder.state_dict().items()}
    return state | {f"s.{n}": t for n, t in made.parts.scorer.state_dict().items()}


def same(a: Descent, b: Descent) -> bool:
    left, right = weights(a), weights(b)
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def run(
    log: sdx.Interactions,
    checkpointer: Checkpointer | None = None,
    every: float = 300.0,
    **options: Any,
) -> tuple[Descent, Outcome]:
    made = make("mf", log, SMALL | options)._replace(checkpoint_seconds=every)
    return made, train(made, log, checkpointer=checkpointer)


@pytest.mark.parametrize("objective", ["softmax", "ssm", "bpr", "bce"])
@pytest.mark.parametrize("score", ["cosine", "dot", "dot_bias"])
@pytest.mark.slow
def test_the_loss_falls_with_every_objective_and_score(
    log: sdx.Interactions, objective: str, score: str
) -> None:
    _, outcome = run(log, objective=objective, score=score)
    losses = [record["loss"] for record in outcome.history]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("encoder", ["user", "history", "mix"])
@pytest.mark.parametrize(
    "options",
    [{"index": "uniform"}, {"index": "popularity"}, {"objective": "softmax"}],
    ids=lambda o: next(iter(o.values())),
)
@pytest.mark.slow
def test_the_loss_falls_with_every_encoder_and_proposal(
    log: sdx.Interactions, encoder: str, options: dict[str, Any]
) -> None:
    _, outcome = run(log, encoder=encoder, **options)
    losses = [record["loss"] for record in outcome.history]
    assert losses[-1] < losses[0]


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(
    log: sdx.Interactions,
) -> None:
    first, again, other = (run(log, seed=s)[0] for s in (0, 0, 1))
    assert same(first, again)
    assert not same(first, other)


def test_the_weights_of_the_best_epoch_are_restored(log: sdx.Interactions) -> None:
    """The metric peaks at epoch 3 of 6; what remains is what epoch 3 left."""
    made = make("mf", log, (SMALL | {"epochs": 6}))
    marks = iter([0.1, 0.2, 0.5, 0.3, 0.2, 0.1])
    outcome = train(made, log, measure=lambda: next(marks))
    assert outcome.best_epoch == 2
    assert same(made, run(log, epochs=3)[0])


def test_training_stops_after_so_many_epochs_without_a_better_metric(log: sdx.Interactions) -> None:
    made = make("mf", log, (SMALL | {"epochs": 50, "patience": 3}))
    marks = iter([0.1, 0.9, *([0.5] * 48)])
    outcome = train(made, log, measure=lambda: next(marks))
    assert len(outcome.history) == 5


def test_a_loss_that_is_no_number_is_one_clear_error(log: sdx.Interactions) -> None:
    with pytest.raises(sdx.SoftdexError, match=r"not a number in epoch \d.*a lower lr"):
        run(log, score="dot", lr=1e30)


def test_an_event_of_next_to_no_weight_is_not_learned_from(log: sdx.Interactions) -> None:
    weighted = replace(log, weight=np.where(log.item < 60, 1.0, 1e-9).astype("float32"))
    rare = run(weighted, score="dot_bias", epochs=6)[0].parts.scorer.bias
    assert rare.weight[:60].mean() > rare.weight[60:].mean() + 0.05


def test_bf16_learns_too(log: sdx.Interactions) -> None:
    _, outcome = run(log, precision="bf16")
    assert outcome.history[-1]["loss"] < outcome.history[0]["loss"]


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(sdx.SoftdexError, match="device 'cuda:99' cannot be used"):
        pick_device("cuda:99")
    assert pick_device("cpu").type == "cpu"


@pytest.mark.parametrize(
    "bad", [{"dim": 0}, {"lr": 0.0}, {"power": -1.0}, {"objective": "smm"}, {"index": "unifrom"}]
)
def test_senseless_options_are_refused_before_any_work(
    log: sdx.Interactions, bad: dict[str, Any]
) -> None:
    with pytest.raises(sdx.SoftdexError, match=r"mf: (expected|unknown)"):
        sdx.fit("mf", log, **bad)


@pytest.mark.parametrize(("bad", "words"), [
    ({"objective": "bpr", "index": "full"}, "bpr needs draws"),
    ({"objective": "softmax", "index": "imi_uniform"}, "no effect with objective=.softmax."),
    ({"objective": "bpr", "correct": "all"}, "no effect with objective=.bpr."),
    ({"index": "popularity", "popularity": "log", "power": 0.7}, "no effect with popularity=.log."),
    ({"index": "uniform", "popularity": "log"}, "no effect with index=.uniform."),
])  # fmt: skip
def test_options_that_would_be_ignored_are_refused(
    log: sdx.Interactions, bad: dict[str, Any], words: str
) -> None:
    with pytest.raises(sdx.SoftdexError, match=f"mf: .*{words}"):
        sdx.fit("mf", log, **bad)


def test_auto_never_gives_a_pairwise_loss_all_items(log: sdx.Interactions) -> None:
    assert make("mf", log, {"objective": "bpr", "index": "auto"}).parts.negatives.draws > 0
    assert make("mf", log, {"objective": "ssm", "index": "auto"}).parts.negatives.draws == 0


@pytest.mark.parametrize("index", ["popularity", "imi_popularity"])
def test_a_proposal_by_popularity_weighs_items_as_it_was_told(
    log: sdx.Interactions, index: str
) -> None:
    """By a power of their counts, by log(1 + count), or by the count."""
    seen = torch.tensor(log.item_counts).double()
    words = {"codewords": 1} if index == "imi_popularity" else {}  # one cell of all items
    plus = seen + (index == "popularity")  # there counts are smoothed
    told = [
        ({}, plus**0.5), ({"power": 0.8}, plus**0.8),
        ({"popularity": "log"}, seen.log1p()), ({"popularity": "count"}, plus),
    ]  # fmt: skip
    for given, weight in told:
        made = make("ssm", log, SMALL | {"index": index} | words | given)
        law = made.parts.negatives.index.log_prob(torch.zeros(1, 8), torch.arange(len(seen)))
        assert torch.allclose(law.exp()[0].double(), weight / weight.sum(), rtol=1e-4), given


# checkpoints


class Killed(Exception):
    """Stands for a process that ends."""


def interrupted(
    log: sdx.Interactions, folder: Path, stop: int, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> None:
    """Train until step `stop` of the run, then end as if killed."""
    steps = 0
    plain = sgd.Trainer.step

    def step(self: sgd.Trainer, at: torch.Tensor) -> None:
        nonlocal steps
        steps += 1
        if steps > stop:
            raise Killed
        plain(self, at)

    with monkeypatch.context() as patch:
        patch.setattr(sgd.Trainer, "step", step)
        with pytest.raises(Killed):
            run(log, Checkpointer(folder, {"data": log.sha256}, resume=False), **options)


@pytest.fixture(scope="module", params=["ssm", "dns"])
def whole(request: pytest.FixtureRequest, log: sdx.Interactions) -> tuple[str, Descent, Outcome]:
    """An objective, and a run with it from beginning to end."""
    return request.param, *run(log, objective=request.param)


@pytest.mark.parametrize("stop", [1, 40, *slow(14, 31, 57)])
@pytest.mark.parametrize("every", [0.0, 300.0])
def test_a_killed_run_goes_on_to_the_very_same_weights(
    log: sdx.Interactions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: int,
    every: float,
    whole: tuple[str, Descent, Outcome],
) -> None:
    """With a checkpoint after every step (0 s), and with one after every epoch; with draws that a
    batch shares, and with draws per row."""
    objective, once, outcome = whole
    interrupted(log, tmp_path, stop, monkeypatch, every=every, objective=objective)
    resumed = Checkpointer(tmp_path, {"data": log.sha256}, resume=True)
    made, again = run(log, resumed, every, objective=objective)
    assert same(once, made)
    drop = [{k: v for k, v in r.items() if k not in CLOCKS} for r in again.history]
    assert drop == [{k: v for k, v in r.items() if k not in CLOCKS} for r in outcome.history]


def test_the_log_has_one_line_an_epoch(log: sdx.Interactions, tmp_path: Path) -> None:
    run(log, Checkpointer(tmp_path, {}, resume=False))
    lines = (tmp_path / LOG).read_text().splitlines()
    assert len(lines) == 4
    assert '"epoch": 4' in lines[-1]


def test_the_seconds_of_training_add_up_without_those_of_measuring(log: sdx.Interactions) -> None:
    made = make("mf", log, SMALL | {"epochs": 2})
    first, last = train(made, log, measure=lambda: time.sleep(0.1) or 0.0).history
    assert 0 < first["trained"] < last["trained"] < last["seconds"] - 0.2


def test_the_seconds_of_training_go_on_after_an_interruption(
    log: sdx.Interactions, tmp_path: Path
) -> None:
    run(log, Checkpointer(tmp_path, {}, resume=False), epochs=2)
    _, again = run(log, Checkpointer(tmp_path, {}, resume=True), epochs=3)
    before, last = again.history[1:]
    assert last["trained"] > before["trained"] > 0


def test_a_checkpoint_of_another_run_is_refused(log: sdx.Interactions, tmp_path: Path) -> None:
    run(log, Checkpointer(tmp_path, {"data": "a", "options": 1}, resume=False))
    with pytest.raises(sdx.SoftdexError, match=r"another run \(options differ\)"):
        Checkpointer(tmp_path, {"data": "a", "options": 2}, resume=True).load()


def test_a_damaged_checkpoint_is_refused(log: sdx.Interactions, tmp_path: Path) -> None:
    run(log, Checkpointer(tmp_path, {}, resume=False))
    raw = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(raw[: len(raw) // 2])
    with pytest.raises(sdx.ArtifactError, match=r"damaged.*without --resume"):
        Checkpointer(tmp_path, {}, resume=True).load()


def test_a_full_disk_is_one_clear_error_and_the_last_good_checkpoint_stays(
    log: sdx.Interactions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(tmp_path, {}, resume=True)
    run(log, checkpointer, epochs=2)
    before = (tmp_path / FILE).read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(sdx.ArtifactError, match="No space left"):
        run(log, checkpointer, epochs=4)
    monkeypatch.undo()
    assert (tmp_path / FILE).read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [FILE, LOG]


# the live report


def test_the_report_of_the_exact_softmax_is_perfect_and_of_others_is_not(
    log: sdx.Interactions,
) -> None:
    from softdex.index.flat import Flat

    made, _ = run(log, score="dot", epochs=8, lr=0.05)
    query = made.parts.encoder(torch.arange(10))
    target = torch.arange(10)
    generator = torch.Generator().manual_seed(0)
    exact = proposal_report(Flat(made.parts.scorer), query, target, 200, generator)
    assert exact["kl"] == pytest.approx(0, abs=1e-6)
    assert exact["ess"] == pytest.approx(1, abs=1e-4)
    uniform = proposal_report(made.parts.negatives.index, query, target, 200, generator)
    assert uniform["kl"] > 0.01
    assert uniform["ess"] < 0.99
    assert 0 <= uniform["hits"] < 0.1
