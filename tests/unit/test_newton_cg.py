"""Newton's method by conjugate gradients: steps that never rise, superlinear at the end (RG2 Table
2), equal to the linear solve on a quadratic, and a trainer of encoders without a closed form."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian

import softdex as sdx
from softdex.data.ragged import Ragged
from softdex.encode.history import Mixed
from softdex.encode.table import Users
from softdex.model.learn import learn
from softdex.objective.squared import squared_of_vectors
from softdex.objective.taylor import rg_of_vectors
from softdex.score.product import Cosine, Dot
from softdex.solve.checkpoint import Checkpointer
from softdex.solve.closed import als
from softdex.solve.closed import normal_equations as ne
from softdex.solve.closed.newton import Newton, NewtonSettings, NewtonSteps, penalty, query_of
from softdex.solve.closed.newton_cg import derivatives, minimise, newton_step, steihaug
from softdex.solve.loop import Outcome, Progress, Schedule, train

ENCODERS = {"user": 1.0, "history": 0.0, "mix": 0.5}
ALPHA, LAM, LENGTH = 0.02, 0.05, 20


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(
    log: sdx.Interactions, encoder: str, epochs: int = 6, dim: int = 4, **settings: Any
) -> Newton:
    """RG2 with each kind of encoder, from a random start."""
    users, items = (random(n, dim, seed=n).float() / 2 for n in (log.num_users, log.num_items))
    scorer, share = Dot(items), torch.tensor(ENCODERS[encoder])
    mixed = Mixed(users, share, torch.tensor(LENGTH), scorer.items)
    made = Users(users) if encoder == "user" else mixed
    quadratic = ne.rg(log.num_items, alpha=ALPHA, lam=LAM, nu=1.0)
    loss, schedule = partial(rg_of_vectors, alpha=ALPHA), Schedule(epochs, 0, "cpu")
    return Newton(made, scorer, loss, penalty(quadratic, log), schedule, NewtonSettings(**settings))


# any smooth function


def test_a_convex_quadratic_takes_one_step_to_the_linear_solve() -> None:
    root, b = random(20, 20), random(20, seed=1)
    matrix = root @ root.T + torch.eye(20, dtype=torch.float64)
    parts = {"a": random(2, 3, seed=2), "b": random(14, seed=3)}

    def loss(x: dict[str, Tensor]) -> Tensor:
        flat = torch.cat([x["a"].reshape(-1), x["b"]])
        return 0.5 * flat @ matrix @ flat - b @ flat

    found, steps = minimise(loss, parts, forcing=0.0, radius=1e6, tolerance=1e-9)
    flat = torch.cat([found["a"].reshape(-1), found["b"]])
    torch.testing.assert_close(flat, torch.linalg.solve(matrix, b), rtol=1e-9, atol=1e-9)
    assert [s.products > 0 for s in steps] == [True, False]


def test_a_scale_as_large_as_the_curvature_saves_products() -> None:
    curvature = torch.logspace(0, 8, 30, dtype=torch.float64)
    start = {"x": torch.ones(30, dtype=torch.float64)}

    def loss(x: dict[str, Tensor]) -> Tensor:
        return (curvature * (x["x"] - 2).square()).sum()

    def cost(**options: Any) -> int:
        _, steps = minimise(loss, start, forcing=0.0, radius=1e6, tolerance=1e-9, **options)
        return sum(s.products for s in steps)

    assert cost(scale={"x": curvature}) == 1
    assert cost(scale={"x": curvature * (1 + torch.arange(30) % 2)}) == 2  # two values are left
    assert cost() > 20


def test_a_narrow_curved_valley_is_followed_down_without_a_rise() -> None:
    """Rosenbrock's function from its usual start, where plain Newton steps rise."""

    def loss(x: dict[str, Tensor]) -> Tensor:
        a, b = x["x"]
        return 100 * (b - a**2) ** 2 + (1 - a) ** 2

    start = {"x": torch.tensor([-1.2, 1.0], dtype=torch.float64)}
    found, steps = minimise(loss, start, tolerance=1e-12)
    losses = [float(loss(start)), *(s.loss for s in steps)]
    assert all(b <= a for a, b in pairwise(losses))
    torch.testing.assert_close(found["x"], torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-9)


def test_a_step_stays_in_its_radius_and_foretells_the_gain_of_the_model() -> None:
    slope, scale = random(12), random(12, seed=1).square() + 0.1
    for seed, kind in ((2, "convex"), (3, "saddle")):
        root = random(12, 12, seed=seed)
        hessian = root @ root.T if kind == "convex" else root + root.T
        for radius in (0.01, 0.3, 1e4):
            found = steihaug(lambda v, h=hessian: h @ v, slope, scale, radius, 1e-10, 100)
            length = float((scale * found.step.square()).sum().sqrt())
            gain = -float(slope @ found.step + 0.5 * found.step @ hessian @ found.step)
            assert found.gain == pytest.approx(gain)
            assert length <= radius * (1 + 1e-9)
            assert found.at_edge == (kind == "saddle" or radius < 1)
            if found.at_edge:
                assert length == pytest.approx(radius)


def test_no_point_of_the_gradients_line_inside_the_radius_is_lower() -> None:
    """What makes a truncated step sufficient: it gains at least as much as steepest descent."""
    slope, root, scale = random(12), random(12, 12, seed=4), torch.ones(12, dtype=torch.float64)
    hessian = root + root.T
    found = steihaug(lambda v: hessian @ v, slope, scale, 0.5, 1e-10, 100)
    for t in torch.linspace(0, 0.5, 50, dtype=torch.float64):
        step = -t * slope / slope.norm()
        assert -float(slope @ step + 0.5 * step @ hessian @ step) <= found.gain + 1e-12


def test_a_start_at_the_minimum_goes_nowhere_and_costs_no_product() -> None:
    start = {"x": torch.zeros(3, dtype=torch.float64)}
    found, steps = minimise(lambda x: x["x"].square().sum(), start)
    assert torch.equal(found["x"], start["x"])
    assert [s.products for s in steps] == [0]


# convergence on a factorisation


def small_problem() -> tuple[Any, dict[str, Tensor]]:
    """RG2 of 40 users and 25 items, each user 2 to 9 events; float64."""
    draw = np.random.default_rng(0)
    row = torch.from_numpy(np.repeat(np.arange(40), draw.integers(2, 10, 40)))
    item = torch.from_numpy(draw.zipf(1.6, len(row)) % 25)
    start = {"users": random(40, 3) / 2, "items": random(25, 3, seed=1) / 2}

    def loss(v: dict[str, Tensor]) -> Tensor:
        fit = rg_of_vectors(v["users"], v["items"], row, item, alpha=0.05)
        return fit + 0.3 * sum(t.square().sum() for t in v.values())

    return loss, start


def test_the_last_steps_are_superlinear_and_gradient_descent_is_not() -> None:
    """RG2 Table 2: |g_k+1| / |g_k| goes to 0 for Newton-CG, to a constant for descent, although
    every turn of the vectors is a minimum too, so none is strict as the theorem asks."""
    loss, start = small_problem()
    found, steps = minimise(loss, start, tolerance=1e-11)
    sizes = [s.gradient for s in steps]
    first, second, third = (b / a for a, b in list(pairwise(sizes))[-3:])
    assert sizes[-1] < 1e-8 * max(sizes)
    assert first > 1e-2  # .048, .011, .0012 were seen
    assert second < first / 2
    assert third < second / 4

    def of_flat(x: Tensor) -> Tensor:
        users, items = x.split([120, 75])
        return loss({"users": users.view(40, 3), "items": items.view(25, 3)})

    x = torch.cat([t.reshape(-1) for t in found.values()]) + 1e-3
    sizes, curvature = [], float(torch.linalg.eigvalsh(hessian(of_flat, x))[-1])
    for _ in range(300):
        _, slope, _ = derivatives(of_flat, x)
        sizes.append(float(slope.norm()))
        x = x - slope / curvature
    ratios = [b / a for a, b in pairwise(sizes)]
    assert 0.9 < ratios[-100] <= ratios[-1] < 1  # .974, .985 were seen


@pytest.mark.parametrize("scale", [1e-6, 1.0, 30.0])
def test_the_objective_never_rises_from_beside_the_saddle_or_from_far(scale: float) -> None:
    loss, start = small_problem()
    start = {n: scale * t for n, t in start.items()}
    _, steps = minimise(loss, start, tolerance=1e-9)
    losses = [float(loss(start)), *(s.loss for s in steps)]
    assert all(b <= a for a, b in pairwise(losses))
    zero = float(loss({n: 0 * t for n, t in start.items()}))
    assert losses[-1] < zero - 1  # the saddle at 0 was left


def test_from_the_same_start_it_ends_no_higher_than_alternating_least_squares(
    log: sdx.Interactions,
) -> None:
    made = make(log, "user", epochs=30, products=100, precision="float64")
    quadratic = ne.rg(log.num_items, alpha=ALPHA, lam=LAM, nu=1.0)
    parts = Users(made.encoder.vectors.weight.clone()), Dot(made.scorer.items.weight.clone())
    closed = als.Alternating(*parts, quadratic, 0, Schedule(60, 0, "cpu"))
    other = train(closed, log).history[-1]["loss"]
    own = train(made, log).history[-1]["loss"] - ALPHA  # als leaves the constant alpha out
    assert own <= other + 1e-5
    assert own == pytest.approx(other, abs=1e-3)


# encoders


@pytest.mark.parametrize("encoder", ENCODERS)
def test_hessian_products_equal_finite_differences(log: sdx.Interactions, encoder: str) -> None:
    trainer = make(log, encoder, precision="float64").trainer(log)
    at, way = trainer.at, random(len(trainer.at), seed=5)
    _, _, times = derivatives(trainer.objective, at)
    h = 1e-5
    up, down = (derivatives(trainer.objective, at + s * h * way)[1] for s in (1, -1))
    expected = (up - down) / (2 * h)
    torch.testing.assert_close(times(way), expected, rtol=1e-6, atol=1e-6 * float(expected.norm()))
    other = random(len(at), seed=6)
    assert float(other @ times(way)) == pytest.approx(float(way @ times(other)))


@pytest.mark.parametrize("encoder", ENCODERS)
def test_queries_in_training_are_those_that_are_served(log: sdx.Interactions, encoder: str) -> None:
    made = make(log, encoder)
    history = log.histories
    assert history.lengths.max() > LENGTH  # some histories are cut
    tables = {"users": made.encoder.vectors.weight, "items": made.scorer.items.weight}
    trained = query_of(made.encoder, log, tables["items"])(tables)
    served = made.encoder.eval()(np.arange(log.num_users), history)
    torch.testing.assert_close(trained, served)


def test_a_user_without_history_and_an_item_had_twice_are_served_as_trained() -> None:
    items = Dot(random(5, 3).float())
    encoder = Mixed(random(3, 3).float(), torch.tensor(0.25), torch.tensor(4), items.items).eval()
    history = Ragged(np.array([0, 0, 3, 8]), np.array([1, 1, 2, 4, 3, 3, 0, 1], np.int32))

    class Log:
        histories, num_items = history, 5

    tables = {"users": encoder.vectors.weight, "items": items.items.weight}
    trained = query_of(encoder, Log(), tables["items"])(tables)  # type: ignore[arg-type]
    torch.testing.assert_close(trained, encoder(np.arange(3), history))
    torch.testing.assert_close(trained[0], 0.25 * tables["users"][0])


@pytest.mark.parametrize("kind", ["rg2", "rgx", "ials"])
def test_the_objective_is_that_of_the_normal_equations(log: sdx.Interactions, kind: str) -> None:
    n, beta = log.num_items, 0.5 if kind == "rgx" else 0.0
    if kind == "ials":
        quadratic, constant = ne.ials(n, alpha=ALPHA, lam=LAM, nu=0.5), 1.0
        loss: Any = partial(squared_of_vectors, background=ALPHA)
    else:
        quadratic, constant = ne.rg(n, alpha=ALPHA, lam=LAM, nu=0.5, beta=beta), ALPHA
        loss = partial(rg_of_vectors, alpha=ALPHA, beta=beta)
    made = make(log, "user")._replace(loss=loss, penalty=penalty(quadratic, log))
    trainer = made.trainer(log)
    matrix = log.csr()
    side = ne.users_side(matrix, quadratic)
    total = np.asarray(matrix.sum(1, dtype=np.float64)).ravel()
    reg = ne.items_side(matrix.T.tocsr(), total, quadratic).reg
    users, items = made.encoder.vectors.weight, made.scorer.items.weight
    expected = float(ne.objective(quadratic, side, users, items, reg)) + constant * len(log)
    assert float(trainer.objective(trainer.at)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("encoder", ["history", "mix"])
def test_it_trains_encoders_without_a_closed_form_and_beats_popularity(encoder: str) -> None:
    """NDCG@10 observed: history .134, mix .143, popularity .075."""
    world = sdx.synthetic.world(users=500, items=150, seed=1, events=25, strength=2.0, skew=0.5)
    parts = sdx.split.leave_last(world.interactions())
    model = learn("newton_cg", {}, make(parts.train, encoder, 15, 8), parts.train)
    losses = [r["loss"] for r in model.card.training["history"]]
    assert all(b <= a for a, b in pairwise(losses))
    own = model.evaluate(parts.test, 10)["ndcg@10"]
    popular = sdx.fit("popular", parts.train).evaluate(parts.test, 10)["ndcg@10"]
    assert own > popular + 0.03


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_gpu_takes_the_same_steps(log: sdx.Interactions, encoder: str) -> None:
    """Sums are taken in another order there, so results agree to rounding."""
    made = [make(log, encoder, 5, precision="float64") for _ in range(2)]
    made[1] = made[1]._replace(schedule=made[1].schedule._replace(device="cuda"))
    here, there = (train(m, log).history for m in made)
    assert [r["loss"] for r in here] == pytest.approx([r["loss"] for r in there], rel=1e-5)
    a, b = (m.scorer.items.weight.cpu() for m in made)
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_with_share_0_own_vectors_are_left_alone(log: sdx.Interactions) -> None:
    made = make(log, "history", epochs=2)
    users, items = made.encoder.vectors.weight.clone(), made.scorer.items.weight.clone()
    train(made, log)
    assert torch.equal(made.encoder.vectors.weight, users)
    assert not torch.equal(made.scorer.items.weight, items)


def test_weights_count_events_so_many_times(log: sdx.Interactions) -> None:
    """An event of weight 2 counts as two; in `csr` two events of a pair without weights are one."""
    heavy = replace(log, weight=np.full(len(log), 2.0, np.float32))
    made = make(log, "mix")
    plain, double = made.trainer(log), made.trainer(heavy)
    at = plain.at
    assert float(double.objective(at)) > float(plain.objective(at))
    free = made._replace(penalty=made.penalty._replace(lam=0.0))
    one, two = (float(free.trainer(x).objective(at)) for x in (log, heavy))
    assert two == pytest.approx(2 * one, rel=1e-5)


def test_other_scores_are_refused(log: sdx.Interactions) -> None:
    made = make(log, "user")
    items = made.scorer.items.weight
    for scorer in (Cosine(items, torch.tensor(0.1)), Dot(items, torch.zeros(len(items)))):
        with pytest.raises(sdx.SoftdexError, match="newton_cg: expected a plain dot product"):
            made._replace(scorer=scorer).trainer(log)
    with pytest.raises(sdx.SoftdexError, match="precision"):
        make(log, "user", precision="bf16").trainer(log)


def test_memory_grows_with_the_log_and_the_vectors(log: sdx.Interactions) -> None:
    made = make(log, "mix")
    half = log.select(np.arange(len(log)) % 2 == 0)
    assert made.memory(half) < made.memory(log)
    assert made.memory(log) < made._replace(settings=NewtonSettings(precision="float64")).memory(
        log
    )
    assert make(log, "history").memory(log) < made.memory(log)
    assert made.probe(log, None) is None


# runs that are stopped


class Killed(Exception):
    """Stands for the end of a process."""


def weights(made: Newton) -> list[Tensor]:
    return [made.encoder.vectors.weight, made.scorer.items.weight]


@pytest.mark.parametrize("stop", [2, 7, 14])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_run_that_was_killed_resumes_bit_by_bit(
    log: sdx.Interactions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: int,
    precision: str,
) -> None:
    """Killed after this many products, inside a step; nothing of that step is kept."""
    whole = make(log, "mix", precision=precision)
    expected = train(whole, log)
    products, plain = 0, NewtonSteps.run_epoch

    def run_epoch(self: NewtonSteps, progress: Progress, pause: Any) -> float:
        def watched() -> None:
            nonlocal products
            products += 1
            if products == stop:
                raise Killed
            pause()

        return plain(self, progress, watched)

    def run(resume: bool) -> tuple[Newton, Outcome]:
        made = make(log, "mix", precision=precision)
        made = made._replace(schedule=made.schedule._replace(checkpoint_seconds=0.0))
        return made, train(made, log, checkpointer=Checkpointer(tmp_path, {}, resume=resume))

    with monkeypatch.context() as patched:
        patched.setattr(NewtonSteps, "run_epoch", run_epoch)
        with pytest.raises(Killed):
            run(resume=False)
    made, outcome = run(resume=True)
    assert all(torch.equal(a, b) for a, b in zip(weights(made), weights(whole), strict=True))
    assert [r["loss"] for r in outcome.history] == [r["loss"] for r in expected.history]


def test_a_step_that_is_stopped_inside_changes_nothing_and_can_be_done_again(
    log: sdx.Interactions,
) -> None:
    trainer = make(log, "mix").trainer(log)
    for epoch in range(9):
        trainer.run_epoch(Progress(epoch=epoch), lambda: None)
    before = {n: t.clone() for n, t in trainer.state().items()}
    at, step = newton_step(trainer.objective, trainer.at, trainer.scale, trainer.trust)
    assert step.products > 2
    pauses = iter([None])

    def pause() -> None:
        next(pauses)  # ends at the second product

    progress = Progress(epoch=9)
    with pytest.raises(StopIteration):
        trainer.run_epoch(progress, pause)
    assert progress.step == 0
    assert all(torch.equal(t, before[n]) for n, t in trainer.state().items())
    trainer.run_epoch(progress, lambda: None)
    assert torch.equal(trainer.at, at)


def test_a_run_stopped_after_its_step_does_not_take_it_twice(log: sdx.Interactions) -> None:
    trainer, progress = make(log, "mix").trainer(log), Progress()
    loss = trainer.run_epoch(progress, lambda: None)
    after, state = trainer.at.clone(), {n: t.clone() for n, t in trainer.state().items()}
    again = make(log, "mix").trainer(log)
    again.load(state)
    assert progress.step == 1
    assert again.run_epoch(progress, lambda: None) == loss
    assert torch.equal(again.at, after)


def test_the_best_epoch_is_restored_to_the_tables(log: sdx.Interactions) -> None:
    marks = iter([0.1, 0.9, 0.2, 0.3])
    made = make(log, "mix", epochs=4)
    outcome = train(made, log, measure=lambda: next(marks))
    short = make(log, "mix", epochs=2)
    train(short, log)
    assert outcome.best_epoch == 1
    assert all(torch.equal(a, b) for a, b in zip(weights(made), weights(short), strict=True))


def test_a_converged_run_stays_where_it_is_at_the_cost_of_a_gradient(
    log: sdx.Interactions,
) -> None:
    made = make(log, "history", epochs=40, precision="float64", tolerance=1e-5)
    train(made, log)
    trainer = made.trainer(log)
    found, calls = made.scorer.items.weight.clone(), 0

    def pause() -> None:
        nonlocal calls
        calls += 1

    trainer.trust = trainer.trust._replace(steepest=1e9)
    trainer.run_epoch(Progress(), pause)
    assert calls == 1  # after the step; none for a product
    assert torch.equal(made.scorer.items.weight, found)
