"""Two towers trained from the batch itself: every objective, what it remembers, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import softdex as sdx
from marks import slow
from softdex.index.flat import Flat
from softdex.index.imi.index import Imi
from softdex.recipes import make
from softdex.score.product import Dot
from softdex.solve.gradient.in_batch import OBJECTIVES, InBatch

SMALL: dict[str, Any] = {"dim": 8, "batch_size": 64, "lr": 0.03, "patience": 0, "device": "cpu"}
every_objective = pytest.mark.parametrize("objective", OBJECTIVES)


@pytest.fixture(scope="module")
def log() -> sdx.Interactions:
    """Four groups of users with ten items each."""
    draw = np.random.default_rng(0)
    events = [
        (u, 10 * (u % 4) + int(i))
        for u in range(120)
        for i in draw.choice(10, draw.integers(4, 9), replace=False)
    ]
    return sdx.read(events)


def in_group(model: sdx.Retriever) -> float:
    """The share of the best three items that are of the user's own group."""
    found = model.recommend(list(range(120)), k=3, exclude_seen=False).to_pydict()
    own = [int(i) // 10 == int(u) % 4 for u, i in zip(found["user"], found["item"], strict=True)]
    return float(np.mean(own))


@every_objective
@pytest.mark.parametrize("encoder", ["mix", *slow("user", "history")])
@pytest.mark.slow
def test_every_objective_learns_the_groups_with_every_encoder(
    log: sdx.Interactions, objective: str, encoder: str
) -> None:
    model = sdx.fit(objective, log, encoder=encoder, epochs=15, **SMALL)
    assert in_group(model) > 0.9


@pytest.mark.parametrize(
    ("objective", "score"),
    [
        ("ssl_pop", "dot_bias"), ("bir", "dot_bias"),
        *slow(*(pair for name in OBJECTIVES for pair in ((name, "dot"), (name, "dot_bias"))
                if pair not in (("ssl_pop", "dot_bias"), ("bir", "dot_bias")))),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_every_objective_learns_with_inner_products(
    log: sdx.Interactions, objective: str, score: str
) -> None:
    model = sdx.fit(objective, log, score=score, epochs=25, **SMALL)
    assert in_group(model) > 0.8


@pytest.mark.parametrize("correction", ["proposal", *slow("none", "uniform")])
@pytest.mark.parametrize("objective", ["bir", "xir"])
@pytest.mark.slow
def test_every_correction_learns(log: sdx.Interactions, objective: str, correction: str) -> None:
    model = sdx.fit(objective, log, correction=correction, epochs=20, **SMALL)
    assert in_group(model) > 0.85


def test_the_cache_may_be_divided_by_its_own_counts_and_fade(log: sdx.Interactions) -> None:
    options = {"cache_weight": "occurrence", "cache_decay": 0.9, "cache_share": 0.5}
    assert in_group(sdx.fit("xir", log, epochs=20, **options, **SMALL)) > 0.9


@every_objective
def test_items_without_an_event_are_not_recommended_by_chance(objective: str) -> None:
    events = [(u, i % 12, i) for u in range(40) for i in range(u, u + 5)]
    log = sdx.read([*events, *((99, 100 + i, 0) for i in range(30))])
    train = log.select(log.item < 12)  # the other items are known, and nobody has had them
    model = sdx.fit(objective, train, epochs=15, **SMALL)
    found = model.recommend([0, 1, 2], k=3, exclude_seen=False).to_pydict()
    assert max(found["item"]) < 100


def test_a_model_is_served_from_the_multi_index_if_asked(log: sdx.Interactions) -> None:
    model = sdx.fit("bir", log, index="imi", epochs=15, **SMALL)
    assert isinstance(model.index, Imi)
    assert in_group(model) > 0.9


def gradients(block: int, objective: str, correction: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(23, 4, generator=generator).requires_grad_()
    scorer = Dot(torch.randn(11, 4, generator=generator), torch.randn(11, generator=generator))
    scorer.train()
    target = torch.randint(11, (23,), generator=generator)
    logp = torch.rand(11, generator=generator).log_softmax(0)
    made = InBatch(objective, logp, 23, correction=correction, block=block)
    loss = made(Flat(scorer), query, target, generator)
    loss.sum().backward()
    assert query.grad is not None
    touched = [t.grad for table in (scorer.items, scorer.bias) for t in table.touched()]  # type: ignore[union-attr]
    return [loss.detach(), query.grad, *touched]


@pytest.mark.parametrize("objective", ["ssl", "ssl_pop", "mns", "g_tower"])
def test_in_blocks_the_loss_and_its_gradients_are_the_same(objective: str) -> None:
    for whole, blocks in zip(
        gradients(0, objective, "none"), gradients(5, objective, "none"), strict=True
    ):
        assert torch.allclose(whole, blocks, atol=1e-5)


@pytest.mark.parametrize("objective", ["bir", "xir"])
@pytest.mark.parametrize("correction", ["none", "uniform", "proposal"])
def test_in_blocks_what_was_drawn_again_is_kept_for_the_gradient(
    objective: str, correction: str
) -> None:
    """The loss and its gradient are of the same draws: a block of all rows changes nothing."""
    whole, blocks = (gradients(n, objective, correction) for n in (0, 23))
    for a, b in zip(whole, blocks, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(("objective", "more"), [("g_tower", {}), ("xir", {"cache_decay": 0.95})])
def test_a_killed_run_goes_on_to_the_very_same_model(
    log: sdx.Interactions,
    objective: str,
    more: dict[str, Any],
    killed: Callable[..., sdx.Retriever],
) -> None:
    """The cache and the stream's counts are part of the checkpoint."""
    options = SMALL | more | {"epochs": 5}
    whole, again = sdx.fit(objective, log, **options), killed(objective, log, after=25, **options)
    assert torch.equal(again.index.scorer.items.weight, whole.index.scorer.items.weight)


def test_a_smaller_last_batch_and_a_batch_of_one_are_trained_on(log: sdx.Interactions) -> None:
    for objective in OBJECTIVES:
        job = make("two_tower", log, SMALL | {"objective": objective, "batch_size": 64})
        trainer = job.trainer(log)
        trainer.modules.train()
        for size in (64, 7, 1):
            trainer.step(torch.arange(size))
        assert trainer.total.isfinite()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"objective": "bri"}, "bir"),
        ({"correction": "popularity"}, "proposal"),
        ({"cache_share": 1.5}, "cache_share from 0 to 1"),
        ({"negatives": 0}, "negatives"),
        ({"block": -1}, "block"),
        ({"batch_size": 0}, "batch_size > 0"),
        ({"own": "maybe"}, "keep"),
        ({"index": "uniform"}, "imi"),
        ({"temperature": 0.0}, "temperature"),
    ],
    ids=lambda o: next(iter(o)) if isinstance(o, dict) else "",
)
def test_options_that_make_no_sense_are_refused(
    log: sdx.Interactions, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(sdx.SoftdexError, match=said):
        sdx.fit("two_tower", log, **options)


@pytest.mark.parametrize(
    ("name", "options", "because"),
    [
        ("ssl", {"negatives": 5}, "negatives= has no effect with objective='ssl'"),
        ("bir", {"cache_share": 0.1}, "cache_share= has no effect with objective='bir'"),
        ("bir", {"power": 0.7}, "power= has no effect with popularity='count'"),
        ("xir", {"score": "dot", "prior": 0.4}, "prior= has no effect with score='dot'"),
        ("ssm", {"share": 0.3}, "share= has no effect with encoder='user'"),
        ("sasrec", {"negatives": 5}, "negatives= has no effect with objective='softmax'"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    log: sdx.Interactions, name: str, options: dict[str, Any], because: str
) -> None:
    with pytest.raises(sdx.SoftdexError, match=f"{name}: {because}"):
        sdx.fit(name, log, **options)


def test_what_has_no_effect_is_not_tuned(log: sdx.Interactions) -> None:
    train, valid, _ = sdx.split.per_user(log)
    found = sdx.tune("bir", train, valid, settings=2, score="dot", epochs=2, dim=4, device="cpu")
    assert not {"temperature", "prior"} & set(found.options)


def test_the_objective_of_a_recipe_by_its_name_is_no_option(log: sdx.Interactions) -> None:
    with pytest.raises(sdx.SoftdexError, match="objective"):
        sdx.fit("bir", log, objective="ssl")
