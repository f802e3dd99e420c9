"""Losses on draws: each row has draws of its own by default, or the batch shares them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import softdex as sdx
from softdex.encode.table import Touched, tables_in
from softdex.index.contract import Draws
from softdex.machine import pick_device
from softdex.recipes import make, options
from softdex.recipes.compose import MANY, automatic
from softdex.solve.gradient.rowwise import dense
from softdex.solve.gradient.trainer import Trainer

SMALL: dict[str, Any] = {"dim": 6, "batch_size": 40, "negatives": 5, "device": "cpu"}
PAIRWISE = ["bpr", "bce", "dns", "self_adversarial"]


def trainer_of(name: str, log: sdx.Interactions, **given: Any) -> Trainer:
    """What trains a recipe, in double precision and with vectors that tell items apart."""
    trainer = make(name, log, options(name) | SMALL | given).trainer(log)
    for table in tables_in(trainer.modules):
        table.weight.normal_(generator=torch.Generator().manual_seed(len(table)))
    trainer.modules.double().train()
    return trainer


def one_loss(trainer: Trainer, at: Tensor) -> tuple[Tensor, Draws]:
    """The losses of a batch, and the draws they were computed on."""
    seen: list[Draws] = []
    sample = trainer.index.sample

    def recorded(*given: Any, **named: Any) -> Draws:
        seen.append(sample(*given, **named))
        return seen[-1]

    trainer.index.sample = recorded  # type: ignore[method-assign]
    query, target, *_ = trainer.feed.ask(trainer.parts.encoder, at, trainer.generator)
    losses = trainer.loss(trainer.index, query, target, trainer.generator)
    [draws] = seen
    return losses, draws


def score(trainer: Trainer, tables: list[Tensor], row: int, item: int) -> Tensor:
    """One score by the definition of the scorer, from dense tables."""
    scorer = trainer.parts.scorer
    query, vector = tables[0][row], tables[1][item]
    product = sum((q * v for q, v in zip(query, vector, strict=True)), torch.zeros(()).double())
    if hasattr(scorer, "temperature"):
        lengths = query.square().sum().sqrt() * vector.square().sum().sqrt()
        return product / lengths / scorer.temperature + scorer.prior[item]
    return product + tables[2][item, 0]


def looped(name: str, pos: Tensor, neg: list[Tensor]) -> Tensor:
    """The loss of one row on draws that are not its target."""

    def below(x: Tensor) -> Tensor:  # -log sigmoid(-x)
        return (1 + x.exp()).log()

    if not neg:
        return below(-pos) if name == "bce" else pos * 0
    if name == "dns":
        return below(torch.stack(neg).amax() - pos)
    if name == "bpr":
        return sum((below(o - pos) for o in neg), pos * 0) / len(neg)
    if name == "bce":
        return below(-pos) + sum((below(o) for o in neg), pos * 0) / len(neg)
    weight = [math.exp(o.item()) for o in neg]
    total = sum((w * below(o - pos) for w, o in zip(weight, neg, strict=True)), pos * 0)
    return total / sum(weight)


# draws -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRWISE)
def test_losses_on_draws_give_each_row_draws_of_its_own(log: sdx.Interactions, name: str) -> None:
    _, draws = one_loss(trainer_of(name, log), torch.arange(40))
    assert draws.ids.shape == (40, 5)
    assert len({tuple(row) for row in draws.ids.tolist()}) == 40


def test_their_default_is_a_few_draws_per_row() -> None:
    few = {"bpr": 20, "bce": 20, "dns": 5, "self_adversarial": 20}
    assert {name: options(name)["negatives"] for name in few} == few


@pytest.mark.parametrize(
    ("name", "given", "shape"),
    [
        ("ssm", {}, (5,)),
        ("ssm", {"shared": False}, (40, 5)),
        ("ssm", {"index": "imi_uniform", "codewords": 4}, (40, 5)),
        ("bpr", {"shared": True}, (5,)),
        ("bpr", {"index": "popularity"}, (40, 5)),
        ("bpr", {"index": "popularity", "shared": True}, (5,)),
        ("bpr", {"index": "imi_uniform", "codewords": 4}, (40, 5)),
        ("mf", {"objective": "dns"}, (40, 5)),
    ],
)
def test_shared_says_how_many_sets_of_draws_a_batch_has(
    log: sdx.Interactions, name: str, given: dict[str, Any], shape: tuple[int, ...]
) -> None:
    trainer = trainer_of(name, log, **given)
    losses, draws = one_loss(trainer, torch.arange(40))
    assert draws.ids.shape == shape
    assert losses.shape == (40,)
    assert trainer.negatives.shared == (len(shape) == 1)


@pytest.mark.parametrize(
    ("name", "given"), [("fastvae", {"index": "uniform"}), ("youtube_dnn", {})]
)
def test_other_sampled_recipes_take_own_draws_too(
    log: sdx.Interactions, name: str, given: dict[str, Any]
) -> None:
    small = {"dim": 8, "batch_size": 16, "negatives": 5, "device": "cpu"}
    for shared, rank in ((None, 1), (True, 1), (False, 2)):
        made = options(name) | small | given | {"shared": shared}
        trainer = make(name, log, made).trainer(log)
        losses, draws = one_loss(trainer, torch.arange(16))
        assert draws.ids.ndim == rank
        assert bool(losses.isfinite().all())


# losses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["cosine", "dot_bias"])
@pytest.mark.parametrize("name", PAIRWISE)
def test_losses_and_gradients_are_those_of_loops_over_each_rows_draws(
    log: sdx.Interactions, name: str, kind: str, shared: bool
) -> None:
    trainer = trainer_of(name, log, score=kind, shared=shared)
    at = torch.arange(0, 400, 10)
    losses, draws = one_loss(trainer, at)
    losses.sum().backward()  # type: ignore[no-untyped-call]
    tables = tables_in(trainer.modules)
    leaves = [t.weight.clone().requires_grad_() for t in tables]
    total = torch.zeros(()).double()
    for b, event in enumerate(at.tolist()):
        user, target = int(log.user[event]), int(log.item[event])
        items = draws.ids.tolist() if shared else draws.ids[b].tolist()
        others = [score(trainer, leaves, user, i) for i in items if i != target]
        each = looped(name, score(trainer, leaves, user, target), others)
        assert losses[b].item() == pytest.approx(each.item(), rel=1e-12)
        total = total + each
    total.backward()  # type: ignore[no-untyped-call]
    for table, leaf in zip(tables, leaves, strict=True):
        found = torch.zeros_like(leaf)
        for touched in table.touched():
            found += dense([Touched(None, torch.zeros_like(leaf)), touched], table.weight)
        assert torch.allclose(found, leaf.grad, rtol=1e-9, atol=1e-12)


def test_the_hardest_draw_of_dns_is_each_rows_own(log: sdx.Interactions) -> None:
    """The best-scored draw of the batch is that of a few rows, not of all."""
    trainer = trainer_of("dns", log, score="dot")
    losses, draws = one_loss(trainer, torch.arange(40))
    losses.sum().backward()  # type: ignore[no-untyped-call]
    [items] = [t for t in tables_in(trainer.modules) if len(t) == log.num_items]
    moved = {int(i) for t in items.touched() for i, w in zip(*rows(t), strict=True) if w > 0}
    users, vectors = trainer.parts.encoder.vectors.weight, items.weight
    query = users[torch.tensor(log.user[:40]).long()]
    hit = draws.ids == torch.tensor(log.item[:40])[:, None]
    scores = torch.einsum("bd,bnd->bn", query, vectors[draws.ids]).masked_fill(hit, -torch.inf)
    hardest = draws.ids.gather(1, scores.argmax(1, keepdim=True))[:, 0]
    assert moved == set(hardest.tolist())
    assert len(moved) > 20


def rows(touched: Any) -> tuple[list[int], list[float]]:
    """Ids and weights of lookups."""
    return touched.ids.tolist(), touched.weight.tolist()


# options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given", "because"),
    [
        ("mf", {"objective": "softmax", "shared": False}, "objective='softmax'"),
        ("bpr", {"index": "imi_uniform", "shared": False}, "index='imi_uniform'"),
        ("ssm", {"index": "kernel", "shared": True}, "index='kernel'"),
        ("ssm", {"index": "full", "shared": True}, "index='full'"),
        ("sasrec", {"shared": True}, "objective='softmax'"),
        ("mult_vae", {"shared": True}, "index='full'"),
    ],
)
def test_shared_is_refused_where_it_has_no_effect(
    log: sdx.Interactions, name: str, given: dict[str, Any], because: str
) -> None:
    with pytest.raises(sdx.SoftdexError, match=f"{name}: shared= has no effect with {because}"):
        sdx.fit(name, log, **given)


def test_auto_takes_own_draws_uniformly_and_shares_them_where_that_is_asked() -> None:
    cpu, few = pick_device("cpu"), 100_000
    for given, index in [
        ({"shared": None}, "imi_popularity"), ({"shared": False}, "uniform"),
        ({"shared": True}, "uniform"),
    ]:  # fmt: skip
        assert automatic(few, 64, 128, cpu, softmax=False, **given) == index
    assert automatic(2 * MANY, 64, 128, cpu, softmax=False, shared=False) == "imi_popularity"
    assert automatic(2 * MANY, 64, 128, cpu, softmax=False, shared=True) == "uniform"


def test_own_draws_count_once_per_row_in_the_memory_of_a_training(log: sdx.Interactions) -> None:
    def bytes_of(**given: Any) -> int:
        return int(make("bpr", log, options("bpr") | SMALL | given).memory(log))

    more = bytes_of(negatives=100) - bytes_of(negatives=50)
    assert 70 * 40 * 50 < more < 130 * 40 * 50  # measured: about 70 bytes per draw, of any dim
    assert bytes_of(negatives=100, dim=60) - bytes_of(negatives=50, dim=60) == more
    shared = bytes_of(negatives=100, shared=True) - bytes_of(negatives=50, shared=True)
    assert shared < more


@pytest.mark.parametrize("name", PAIRWISE)
def test_a_saved_model_that_was_trained_on_own_draws_recommends_the_same(
    log: sdx.Interactions, name: str, tmp_path: Any
) -> None:
    model = sdx.fit(name, log, epochs=1, patience=0, **SMALL)
    assert model.options.get("shared") is None
    model.save(tmp_path / "model.sdx")
    users = log.users.all()[:20]
    again = sdx.load(tmp_path / "model.sdx")
    assert model.recommend(users, 5).table.equals(again.recommend(users, 5).table)
