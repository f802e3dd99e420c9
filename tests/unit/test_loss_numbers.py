"""Losses with margins, boundaries and points: what a step trains, and what a model serves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import softdex as sdx
from softdex.encode.table import Table, Touched, tables_in
from softdex.index.contract import Draws
from softdex.index.factor_ranks import FactorRanks
from softdex.recipes import make, options
from softdex.solve.gradient.rowwise import dense
from softdex.solve.gradient.trainer import Trainer
from softdex.solve.loop import Progress

SMALL: dict[str, Any] = {"dim": 6, "batch_size": 40, "negatives": 5, "device": "cpu"}
NAMES = ("warp", "pris", "sparsemax", "aobpr", "uib", "sml")
GIVEN: dict[str, dict[str, Any]] = {
    "warp": {"score": "cosine"},
    "pris": {"score": "cosine"},
    "uib": {"score": "cosine"},
    "sparsemax": {"index": "uniform", "score": "cosine"},
    "aobpr": {"rank_scale": 9.0},
}
softplus = torch.nn.functional.softplus


def given_for(name: str) -> dict[str, Any]:
    return SMALL | GIVEN.get(name, {})


def trainer_of(name: str, log: sdx.Interactions, **given: Any) -> Trainer:
    """What trains a recipe, in double precision and with vectors that tell items apart."""
    trainer = make(name, log, options(name) | given_for(name) | given).trainer(log)
    for table in tables_in(trainer.modules):
        table.weight.normal_(generator=torch.Generator().manual_seed(len(table) + table.dim))
    trainer.refit()
    trainer.modules.double().train()
    return trainer


def one_loss(trainer: Trainer, at: Tensor) -> tuple[Tensor, Draws]:
    """The losses of a batch as a step asks for them, and the draws they were computed on."""
    seen: list[Draws] = []
    sample, found = trainer.index.sample, []
    loss = trainer.loss

    def recorded(*given: Any, **named: Any) -> Draws:
        seen.append(sample(*given, **named))
        return seen[-1]

    def kept(*given: Any, **named: Any) -> Tensor:
        found.append(loss(*given, **named))
        return found[-1]

    kept.reads_users = getattr(loss, "reads_users", False)  # type: ignore[attr-defined]
    trainer.index.sample, trainer.loss = recorded, kept  # type: ignore[method-assign]
    optimizers, trainer.optimizers = trainer.optimizers, []
    trainer.step(at)
    trainer.optimizers, trainer.loss = optimizers, loss
    [draws], [losses] = seen, found
    return losses, draws


def ball(x: Tensor) -> Tensor:
    length = x.square().sum().sqrt()
    return x / length if length.item() > 1 else x


def distance(a: Tensor, b: Tensor) -> Tensor:
    return (ball(a) - ball(b)).square().sum()


def cosine(scorer: Any, of: dict[str, Tensor], user: int, item: int) -> Tensor:
    q, v = of["user"][user], of["item"][item]
    lengths = q.square().sum().sqrt() * v.square().sum().sqrt()
    return q @ v / lengths / scorer.temperature + scorer.prior[item]


def mean(terms: list[Tensor], like: Tensor) -> Tensor:
    return sum(terms, like * 0) / max(1, len(terms))


def sml_of_row(row: tuple[int, int], items: list[int], of: dict[str, Tensor]) -> Tensor:
    """`sml` with its default numbers."""
    x, y = of["user"][row[0]], of["item"][row[1]]
    near = distance(x, y)
    m, n = of["user_margin"][row[0], 0].sigmoid(), of["item_margin"][row[1], 0].sigmoid()
    kept = [of["item"][i] for i in items if i != row[1]]
    first = mean([(near - distance(x, z) + m).clamp(min=0) for z in kept], near)
    second = mean([(near - distance(y, z) + n).clamp(min=0) for z in kept], near)
    return first + 0.1 * second - 0.1 * (m + n)


def sparsemax_of_row(scores: list[Tensor]) -> Tensor:
    """`sparsemax` by sorting; the target's score is the first."""
    falling = sorted(scores, key=lambda o: o.item(), reverse=True)
    heads = [(k, sum(o.item() for o in falling[:k])) for k in range(1, len(falling) + 1)]
    size = max(k for k, total in heads if 1 + k * falling[k - 1].item() > total)
    level = (sum(falling[:size], scores[0] * 0) - 1) / size
    return sum((o**2 - level**2 for o in falling[:size]), scores[0] * 0) / 2 + 0.5 - scores[0]


def row_loss(
    name: str, pos: Tensor, others: list[tuple[Tensor, float]], edge: Tensor, living: int
) -> Tensor:
    """A loss by its definition, from the scores of draws that are not the target and their log q;
    `edge` is the user's boundary."""
    if name == "uib":
        return softplus(edge - pos) + mean([softplus(o - edge) for o, _ in others], pos)
    if name == "aobpr":
        return mean([softplus(o - pos) for o, _ in others], pos)
    if name == "sparsemax":
        return sparsemax_of_row([pos, *(o for o, _ in others)])
    if name == "pris":
        weight = [math.exp(o.item() - logq) for o, logq in others]
        pairs = zip(weight, others, strict=True)
        total = sum((w * softplus(o - pos) for w, (o, _) in pairs), pos * 0)
        return total / max(1e-300, sum(weight))
    assert name == "warp"
    for trial, (o, logq) in enumerate(others, 1):
        if o.item() > pos.item() - 1:
            assert logq == pytest.approx(-math.log(living))
            rank = max(1, (living - 1) // trial)
            return sum(1 / r for r in range(1, rank + 1)) * (1 - pos + o)
    return pos * 0


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_are_those_of_loops_over_each_rows_draws(
    log: sdx.Interactions, name: str
) -> None:
    trainer = trainer_of(name, log)
    at = torch.arange(0, 400, 10)
    losses, draws = one_loss(trainer, at)
    assert draws.ids.shape == (40, 5)
    encoder, scorer, loss = trainer.parts.encoder, trainer.parts.scorer, trainer.loss
    tables: dict[str, Table] = {"user": encoder.vectors, "item": scorer.items}
    if name == "uib":
        tables["boundary"] = loss.boundary  # type: ignore[attr-defined]
    if name == "sml":
        tables |= {"user_margin": loss.of_users, "item_margin": loss.of_items}  # type: ignore[attr-defined]
    leaves = {key: table.weight.clone().requires_grad_() for key, table in tables.items()}
    total = torch.zeros(()).double()
    for b, event in enumerate(at.tolist()):
        row = int(log.user[event]), int(log.item[event])
        if name == "sml":
            each = sml_of_row(row, draws.ids[b].tolist(), leaves)
        else:
            drawn = zip(draws.ids[b].tolist(), draws.logq[b].tolist(), strict=True)
            pos, *others = (cosine(scorer, leaves, row[0], i) for i in (row[1], *draws.ids[b]))
            kept = [(o, q) for o, (i, q) in zip(others, drawn, strict=True) if i != row[1]]
            edge = leaves["boundary"][row[0], 0] if name == "uib" else pos
            each = row_loss(name, pos, kept, edge, log.num_items)
        assert losses[b].item() == pytest.approx(each.item(), rel=1e-5, abs=1e-9)
        total = total + each / len(at)
    total.backward()  # type: ignore[no-untyped-call]
    for key, table in tables.items():
        found = torch.zeros_like(table.weight)
        for touched in table.touched():
            found += dense([Touched(None, torch.zeros_like(found)), touched], table.weight)
        wanted = leaves[key].grad
        assert wanted is not None
        assert float(wanted.abs().max()) > 0, key
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-7), key


@pytest.mark.parametrize("name", ["uib", "sml"])
def test_a_step_moves_only_the_numbers_of_its_users(log: sdx.Interactions, name: str) -> None:
    trainer = make(name, log, options(name) | SMALL).trainer(log)
    trainer.modules.train()
    at = torch.arange(40)
    trainer.step(at)
    table = trainer.loss.boundary if name == "uib" else trainer.loss.of_users  # type: ignore[attr-defined]
    moved = table.weight[:, 0].nonzero()[:, 0].tolist()
    assert moved == sorted(set(log.user[:40].tolist()))


@pytest.mark.parametrize("name", ["uib", "sml", "aobpr"])
def test_a_state_holds_the_numbers_and_the_ranks(log: sdx.Interactions, name: str) -> None:
    """A run that goes on from a saved state takes the very same steps."""
    given = options(name) | given_for(name)
    one, other = (make(name, log, given).trainer(log) for _ in range(2))
    for trainer in (one, other):
        trainer.modules.train()
    one.step(torch.arange(40))
    one.refit()
    other.load({key: tensor.clone() for key, tensor in one.state().items()})
    for trainer in (one, other):
        trainer.step(torch.arange(40, 80))
    last, again = one.state(), other.state()
    assert last.keys() == again.keys()
    assert all(torch.equal(last[key], again[key]) for key in last)


# all items ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["cosine", "dot_bias", "euclidean"])
def test_over_all_items_sparsemax_is_the_projection(log: sdx.Interactions, score: str) -> None:
    trainer = trainer_of("sparsemax", log, index="full", score=score, negatives=None)
    trainer.modules.float()
    at = torch.arange(0, 400, 40)
    asked = trainer.feed.ask(trainer.parts.encoder, at, trainer.generator)
    losses = trainer.loss(trainer.index, asked.query, asked.target, trainer.generator)
    scores = trainer.parts.scorer(asked.query, slice(0, log.num_items)).detach()
    for row, target, loss in zip(scores.tolist(), asked.target.tolist(), losses, strict=True):
        falling = sorted(row, reverse=True)
        size = max(k for k in range(1, len(row) + 1) if 1 + k * falling[k - 1] > sum(falling[:k]))
        level = (sum(falling[:size]) - 1) / size
        expected = sum(o**2 - level**2 for o in falling[:size]) / 2 + 0.5 - row[target]
        assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


# draws -------------------------------------------------------------------------------------------


def test_aobpr_draws_by_ranks_that_are_refitted(log: sdx.Interactions) -> None:
    trainer = trainer_of("aobpr", log, refit_every=2, lr=0.3)
    assert isinstance(trainer.index, FactorRanks)
    trainer.modules.float()
    steps, places = [], []
    step = trainer.step

    def watched(at: Tensor) -> None:
        places.append(trainer.index.state()["place"].clone())
        step(at)
        steps.append(at)

    trainer.step = watched  # type: ignore[method-assign]
    trainer.run_epoch(Progress(), lambda: None)
    assert len(steps) > 4
    assert torch.equal(places[0], places[1])
    assert not torch.equal(places[1], places[2])
    assert torch.equal(places[2], places[3])
    fresh = FactorRanks(trainer.parts.scorer, scale=9.0)
    last = len(steps) // 2 * 2 == len(steps)
    assert torch.equal(trainer.index.state()["place"], fresh.place) == last


@pytest.mark.parametrize(
    "given", [{"index": "factor_ranks"}, {"index": "imi_uniform", "codewords": 4},
              {"index": "popularity"}, {"index": "popularity", "shared": True}]
)  # fmt: skip
@pytest.mark.parametrize("name", ["warp", "pris", "sparsemax", "uib", "sml", "ssm"])
def test_they_take_any_proposal(log: sdx.Interactions, name: str, given: dict[str, Any]) -> None:
    trainer = make(name, log, options(name) | SMALL | given).trainer(log)
    trainer.modules.train()
    losses, draws = one_loss(trainer, torch.arange(40))
    shares = given.get("shared") or (name == "ssm" and given["index"] == "popularity")
    assert draws.ids.shape == ((5,) if shares else (40, 5))
    assert losses.shape == (40,)
    assert bool(losses.isfinite().all())


def test_pris_and_warp_read_log_q_of_the_proposal(log: sdx.Interactions) -> None:
    """The same draws under another stated probability give another loss."""
    for name in ("pris", "warp"):
        trainer = trainer_of(name, log, index="popularity", power=1.0)
        whole, _ = one_loss(trainer, torch.arange(40))
        again = trainer_of(name, log, index="popularity", power=1.0)
        sample = again.index.sample

        def wrong(*given: Any, sample: Any = sample, **named: Any) -> Draws:
            draws = sample(*given, **named)
            return Draws(draws.ids, draws.logq * 0 - math.log(log.num_items))

        again.index.sample = wrong  # type: ignore[method-assign]
        other, _ = one_loss(again, torch.arange(40))
        assert not torch.allclose(whole, other)


# options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given", "match"),
    [
        ("mf", {"objective": "sml"}, "mf: sml compares distances, so score='cosine' is not for it"),
        ("uib", {"index": "full"}, "uib: uib needs draws"),
        ("sml", {"score": "dot"}, "sml: score= is fixed"),
        ("aobpr", {"index": "uniform"}, "aobpr: index= is fixed"),
        ("aobpr", {"shared": True}, "aobpr: shared= has no effect with index='factor_ranks'"),
        ("bpr", {"margin": 2.0}, "bpr: margin= has no effect with objective='bpr'"),
        ("warp", {"link": "hinge"}, "warp: link= has no effect with objective='warp'"),
        ("warp", {"rank_weight": "lag"}, "Did you mean 'log'"),
        ("uib", {"rank_scale": 3.0}, "uib: rank_scale= has no effect with index='uniform'"),
        ("sml", {"temperature": 0.2}, "sml: temperature= has no effect with score='euclidean'"),
    ],
)
def test_what_has_no_effect_is_refused(
    log: sdx.Interactions, name: str, given: dict[str, Any], match: str
) -> None:
    with pytest.raises(sdx.SoftdexError, match=match):
        sdx.fit(name, log, **given)


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("warp", "margin", (1.0, 3.0)),
        ("warp", "rank_weight", ("harmonic", "log")),
        ("uib", "link", ("logistic", "hinge")),
        ("sml", "most_margin", (1.0, 0.3)),
        ("sml", "symmetry", (0.1, 0.9)),
        ("sml", "reward", (0.1, 0.4)),
        ("aobpr", "rank_scale", (9.0, 2.0)),
    ],
)
def test_every_option_changes_the_loss(
    log: sdx.Interactions, name: str, option: str, values: tuple[Any, Any]
) -> None:
    one, other = (
        one_loss(trainer_of(name, log, **{option: v}), torch.arange(40))[0] for v in values
    )
    assert not torch.allclose(one, other)


# served ------------------------------------------------------------------------------------------


def test_sml_serves_the_nearest_points_of_the_unit_ball(log: sdx.Interactions) -> None:
    model = sdx.fit("sml", log, epochs=1, patience=0, lr=0.5, **SMALL)
    users = model.encoder.vectors.weight.double().numpy()
    points = model.index.scorer.items.weight.double().numpy()
    assert (np.linalg.norm(points, axis=1) > 1).any()
    users, points = (x / np.maximum(1, np.linalg.norm(x, axis=1))[:, None] for x in (users, points))
    found = model.recommend(log.users.all()[:10], k=log.num_items).to_pydict()
    keys = log.items.all().to_pylist()
    for u, name in enumerate(log.users.all()[:10].to_pylist()):
        distance = ((users[u] - points) ** 2).sum(1)
        seen = set(log.item[log.user == u].tolist())
        rows = zip(*(found[n] for n in ("user", "item", "score")), strict=True)
        mine = [(keys.index(i), s) for who, i, s in rows if who == name]
        order = [i for i in np.argsort(distance, kind="stable") if i not in seen]
        assert [i for i, _ in mine] == order
        for i, score in mine:
            assert score == pytest.approx((users[u] ** 2).sum() - distance[i], abs=1e-5)


@pytest.mark.parametrize("name", ["uib", "sml"])
def test_numbers_of_users_are_not_served(log: sdx.Interactions, name: str, tmp_path: Path) -> None:
    model = sdx.fit(name, log, epochs=1, patience=0, **SMALL)
    model.save(tmp_path / "model.sdx")
    again = sdx.load(tmp_path / "model.sdx")
    users = log.users.all()[:20]
    assert model.recommend(users, 5).table.equals(again.recommend(users, 5).table)
    parts = (again.encoder, again.index.scorer)
    assert all(table.dim == 6 for part in parts for table in tables_in(part))


@pytest.mark.parametrize("encoder", ["history", "mix"])
@pytest.mark.parametrize("name", ["uib", "sml", "aobpr", "sparsemax"])
def test_histories_serve_users_that_were_not_in_training(
    log: sdx.Interactions, name: str, encoder: str
) -> None:
    model = sdx.fit(name, log, encoder=encoder, epochs=1, patience=0, **given_for(name))
    lists = model.recommend(history=[log.items.all()[:3].to_pylist()], k=5).to_pydict()
    assert len(lists["item"]) == 5
    assert np.isfinite(lists["score"]).all()


def test_new_items_of_sml_are_near_the_users_who_chose_them(log: sdx.Interactions) -> None:
    model = sdx.fit("sml", log, epochs=1, patience=0, **SMALL)
    fans = log.users.all().to_pylist()[:15]
    more = sdx.read({"user": fans, "item": ["new"] * len(fans)}, quiet=True)
    model.add_items(more)
    new = int(model.items.lookup(more.items.all())[0])
    query = model.encoder(np.arange(log.num_users))
    scores = model.index.scorer(query, slice(0, log.num_items + 1))
    assert bool(scores.isfinite().all())
    place = (scores > scores[:, [new]]).sum(1).double()
    assert place[:15].mean() < place[15:].mean()


# device ------------------------------------------------------------------------------------------


class Waits(torch.utils._python_dispatch.TorchDispatchMode):
    """Refuse what a GPU would have to wait for: numbers read back, and shapes that data decide."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        masks = func is torch.ops.aten.index.Tensor and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        waits = masks or name.startswith(self.FORBIDDEN)
        assert not waits, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [*NAMES, "bpr"])
def test_a_loss_and_its_gradient_wait_for_nothing(
    log: sdx.Interactions, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A captured step may not; a CPU may look whether thresholds have settled."""
    monkeypatch.setattr("softdex.objective.sparsemax.float", lambda x: 1.0, raising=False)
    for more in ({}, {"index": "full"}) if name == "sparsemax" else ({},):
        trainer = make(name, log, options(name) | given_for(name) | more).trainer(log)
        trainer.modules.train()
        at = torch.arange(40)
        with Waits():
            asked = trainer.feed.ask(trainer.parts.encoder, at, trainer.generator)
            users = {"users": asked.users} if getattr(trainer.loss, "reads_users", False) else {}
            loss = trainer.loss(trainer.index, *asked[:2], trainer.generator, **users)
            loss.sum().backward()
        with pytest.raises(AssertionError, match="waits"), Waits():
            float(loss.sum())
