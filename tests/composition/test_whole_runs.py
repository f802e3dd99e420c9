"""A training as a whole, by loops: the order, the epoch that serves, refits, measures, reports."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

import softdex as sdx
from composition import matrix, towers
from composition.loops import Ran, close, ndcg, trained
from composition.products import Pair, featured, living, offsets, start_of
from composition.proposals import books, new_books
from composition.suite import SMALL, row, tiny
from softdex.data.holdout import Holdout
from softdex.model import learn
from softdex.recipes import catalogue, compose
from softdex.solve.gradient import rowwise

KINDS = ({"popularity": "count"}, {"popularity": "log"}, {"power": 0.8})
MIXED = {"encoder": "mix", "negatives": 5, "lr": 0.3, "epochs": 8, "seed": 1}


def lists(ran: Ran, state: dict[str, Tensor], asked: Holdout) -> list[list[int]]:
    """The items of each user of a holdout, best first, without the masked ones."""
    pair, found = Pair(ran, state), []
    for n, user in enumerate(asked.users.tolist()):
        history, masked = (part[n].tolist() for part in (asked.history, asked.masked))
        scores = pair.scores(pair.query(user, history))
        left = [i for i in range(len(scores)) if i not in masked]
        found.append(sorted(left, key=lambda i: -scores[i]))
    return found


def mean_ndcg(ran: Ran, state: dict[str, Tensor], asked: Holdout, k: int) -> float:
    """Mean NDCG over the users with targets."""
    targets = [asked.targets[n].tolist() for n in range(len(asked))]
    pairs = zip(lists(ran, state, asked), targets, strict=True)
    found = [ndcg(ranked, wanted, k) for ranked, wanted in pairs if wanted]
    return sum(found) / len(found)


FEATURES = {"features": "all", "user_features": "all", "id_dropout": 0.6}
WORDS = {"index": "imi_popularity", "codewords": 3, "refit_every": 2}


@pytest.mark.parametrize("more", [{"patience": 2}, {"patience": 0}, FEATURES, WORDS])
def test_the_best_epoch_by_ndcg_serves_and_patience_ends_the_run(more: dict[str, Any]) -> None:
    parts = sdx.split.leave_last(featured() if "features" in more else tiny())
    case = row("ssm", matrix.check, **MIXED | more)
    ran = trained(case, parts.train, valid=parts.valid)
    per, patience = -(-len(parts.train) // case.options["batch_size"]), ran.options["patience"]
    ends = [step.after for step in ran.steps[per - 1 :: per]]
    metrics = [mean_ndcg(ran, state, parts.valid, 20) for state in ends]
    best, record = metrics.index(max(metrics)), ran.model.card.training
    assert record is not None
    assert [r["metric"] for r in record["history"]] == pytest.approx(metrics, abs=2e-6)
    assert record["best_epoch"] == best + 1 < len(ends), "the case shows nothing"
    stop = best + 1 + patience if patience else case.options["epochs"]
    assert len(ends) == min(stop, case.options["epochs"])
    close(ran.model.card.metrics["valid"]["ndcg@20"], metrics[best], "the metric on the card", 1)
    pair = Pair(ran, ends[best])
    served = torch.stack([pair.item(i) for i in range(pair.items)])
    close(ran.model.index.scorer.items.weight, served, "the items that serve")
    users = torch.stack([pair.user(u) for u in range(ran.log.num_users)])
    close(ran.model.encoder.vectors.weight, users, "the users that are served")
    if more is WORDS:  # refitted from the index of that epoch
        points = torch.stack([pair.direction(i) for i in range(pair.items)])
        words = books(points, ran.steps[per * (best + 1)].before["index.words"], 4)
        close(ran.model.index.state()["words"], words, "the codebooks that serve")
    found = ran.model.evaluate(parts.test, k=(3, 5))
    for k in (3, 5):
        wanted = mean_ndcg(ran, ends[best], parts.test, k)
        assert found[f"ndcg@{k}"] == pytest.approx(wanted, abs=1e-6)


def test_many_users_are_measured_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "MEASURED_USERS", 3)
    parts = sdx.split.leave_last(tiny())
    ran = trained(row("ssm", matrix.check, **MIXED | {"epochs": 1}), parts.train, valid=parts.valid)
    asked = np.flatnonzero(parts.valid.targets.lengths)
    drawn = np.sort(np.random.default_rng(0).choice(asked, 3, replace=False))
    wanted = mean_ndcg(ran, ran.steps[-1].after, parts.valid.take(drawn), 20)
    assert ran.model.card.training is not None
    record = ran.model.card.training["history"][0]
    assert record["metric"] == pytest.approx(wanted, abs=2e-6)


def test_refit_trains_on_validation_too_for_the_best_number_of_epochs() -> None:
    parts = sdx.split.leave_last(tiny())
    case = row("ssm", matrix.check, **MIXED)
    ran = trained(case, parts.train, valid=parts.valid, refit=True)
    again = [step for step in ran.steps if step.trainer is ran.steps[-1].trainer]
    assert ran.steps[0].trainer is not again[0].trainer
    events = len(parts.train) + len(parts.valid.targets.ids)
    record = ran.model.card.training
    assert record is not None
    first = len(ran.steps) - len(again)
    epochs = len(again) // -(-events // case.options["batch_size"])
    metrics = [
        r["metric"]
        for r in trained(case, parts.train, valid=parts.valid).model.card.training["history"]
    ]
    assert first == len(metrics) * -(-len(parts.train) // case.options["batch_size"])
    assert epochs == record["best_epoch"] == metrics.index(max(metrics)) + 1
    whole, weight = again[0].trainer.log, parts.train.weight
    mean = float(weight.mean())
    assert whole.weight.tolist() == pytest.approx([*weight, *[mean] * (events - len(weight))])
    rows = sorted(at for step in again for at in step.at.tolist())
    assert rows == sorted(list(range(events)) * epochs)
    for n, user in enumerate(parts.valid.users.tolist()):
        wanted = parts.train.histories[user].tolist() + parts.valid.targets[n].tolist()
        assert ran.model.seen[user].tolist() == wanted


def test_the_order_of_the_events_follows_the_seed() -> None:
    orders = [
        [step.at.tolist() for step in trained(row("ssm", matrix.check, seed=seed)).steps]
        for seed in (3, 4, 3)
    ]
    assert orders[0] == orders[2] != orders[1]


def test_without_weights_every_event_counts_alike() -> None:
    matrix.check(row("ssm", matrix.check, negatives=5), tiny(weights=False))


@pytest.mark.parametrize("recipe", ["ssm", "bir"])
def test_on_several_threads_a_training_equals_the_loops(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rowwise, "WORTH_A_THREAD", 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    family = {"ssm": matrix, "bir": towers}[recipe]
    family.check(row(recipe, family.check, encoder="mix"))


def test_an_item_without_similar_ones_stands_for_itself() -> None:
    events = tiny().to_arrow().to_pydict()
    alone = {"user": "u8", "item": "i12", "time": 7, "weight": 2.0}
    log = sdx.read({n: [*events[n], value] for n, value in alone.items()}, quiet=True)
    matrix.check(row("ssm", matrix.check, negatives=5, smooth=0.9, epochs=3), log)


CELLS = {"index": "imi_popularity", "codewords": 3}


@pytest.mark.parametrize(
    "more", [{}, *({"index": "popularity"} | kind for kind in KINDS), *(CELLS | k for k in KINDS)]
)
def test_items_without_events_are_trained_as_negatives(more: dict[str, Any]) -> None:
    matrix.check(row("ssm", matrix.check, negatives=20, **more), featured())


@pytest.mark.parametrize("encoder", ["user", "mix"])
def test_in_batch_training_gives_items_without_events_no_vector(encoder: str) -> None:
    log = featured()
    towers.check(row("ssl_pop", towers.check, encoder=encoder), log)


@pytest.mark.parametrize(
    "more", [{}, {"index": "popularity", "power": 0.9}, {"features": "all"}], ids=str
)
def test_the_report_of_a_proposal_equals_the_loop(more: dict[str, Any]) -> None:
    case = row("ssm", matrix.check, encoder="mix", negatives=40, prior=0.4, **more)
    ran = trained(case, featured() if "features" in more else None)
    pair, alive = Pair(ran, ran.steps[-1].after), living(ran)
    assert ran.model.card.training is not None
    record, events = ran.model.card.training["history"][-1], len(ran.log)
    at = np.random.default_rng(case.options["seed"]).choice(events, 16, replace=False)
    weight = torch.tensor([(ran.facts.counts[i] + 1) ** more.get("power", 0.0) for i in alive])
    q = weight.double() / weight.sum()
    generator = torch.Generator().manual_seed(case.options["seed"])
    if "power" in more:
        points = torch.rand(16, 40, generator=generator, dtype=torch.float64)
        draws = (points[:, :, None] > q.cumsum(0)).sum(2)
    else:
        draws = torch.randint(len(alive), (16, 40), generator=generator)
    kl, ess, hits = 0.0, 0.0, 0.0
    for drawn, n in zip(draws.tolist(), at.tolist(), strict=True):
        user, target = ran.facts.user[n], ran.facts.item[n]
        history = [i for i in ran.facts.histories[user] if i != target]
        scores = pair.scores(pair.query(user, history))
        p = torch.tensor([scores[i] for i in alive]).double().softmax(0)
        kl += float((q * (q.log() - p.log())).sum()) / 16
        w = p[drawn] / q[drawn]
        ess += float(w.sum() ** 2 / w.square().sum()) / 40 / 16
        hits += sum(alive[place] == target for place in drawn) / 40 / 16
    wanted = {"kl": kl, "ess": ess, "hits": hits}
    assert {n: record[n] for n in wanted} == pytest.approx(wanted, rel=1e-3)


def test_a_start_gives_known_users_and_items_their_vectors() -> None:
    log = tiny()
    start = sdx.fit("ssm", log, quiet=True, **SMALL)
    rows = np.arange(len(log))[::-1]
    other = sdx.read(log.to_arrow().take(rows.copy()), quiet=True)
    ran = trained(row("ssm", matrix.check, seed=9), other, start=start)
    for part, keys, name in (
        (start.encoder.vectors, "users", "model.encoder.vectors.weight"),
        (start.index.scorer.items, "items", "model.scorer.items.weight"),
    ):
        old, new = (getattr(m, keys).all().to_pylist() for m in (start, ran.model))
        wanted = part.weight[[old.index(key) for key in new]]
        assert torch.equal(ran.steps[0].before[name], wanted.double())


def test_the_first_index_belongs_to_the_vectors_of_the_start() -> None:
    start = sdx.fit("ssm", tiny(), quiet=True, **SMALL | {"lr": 0.3})
    ran = trained(row("ssm", matrix.check, negatives=5, **WORDS), start=start)
    fresh = {f"model.{name}": tensor.double() for name, tensor in start_of(ran).items()}
    points = []
    for state in (fresh, ran.steps[0].before):
        pair = Pair(ran, state)
        points.append(torch.stack([pair.direction(i) for i in range(pair.items)]))
    words = books(points[1], new_books(points[0], 3, ran.options["seed"]), 4)
    close(ran.steps[0].before["index.words"], words, "the first codebooks")


@pytest.mark.parametrize(
    ("recipe", "events", "size"),
    [
        ("ssm", 29, 128),
        ("ssm", 12_800, 200),
        ("softmax", 12_800, 4096),
        ("bir", 29, 128),
        ("bir", 12_800, 200),
        ("bir", 200_000, 2048),
        ("ssm", 600_000, 8192),
    ],
)
def test_batches_are_as_large_as_the_log_allows(recipe: str, events: int, size: int) -> None:
    n = np.arange(events)
    log = sdx.read({"user": n % 7, "item": n % 11}, quiet=True)
    made = catalogue.make(recipe, log, {"dim": 2})
    assert made.training.batch_size == size


@pytest.mark.parametrize(
    ("recipe", "shared", "many", "kind"),
    [
        ("ssm", None, 20, "Imi"),
        ("ssm", True, 20, "Uniform"),
        ("ssm", False, 20, "Uniform"),
        ("ssm", False, 5, "Imi"),
        ("bpr", None, 20, "Uniform"),
        ("bpr", None, 5, "Imi"),
        ("bpr", True, 5, "Uniform"),
    ],
)
def test_auto_chooses_a_proposal_by_what_shares_its_draws(
    recipe: str, shared: bool | None, many: int, kind: str
) -> None:
    given = SMALL | {"index": "auto", "shared": shared}
    with patch.object(compose, "CPU_WORK", 0), patch.object(compose, "MANY", many):
        negatives = catalogue.make(recipe, tiny(), given).parts.negatives
    assert type(negatives.index).__name__ == kind
    assert negatives.shared == bool(shared)


@pytest.mark.parametrize(("users", "size"), [(29, 16), (6_400, 100), (25_600, 256)])
def test_batches_of_histories_are_as_large_as_the_log_allows(users: int, size: int) -> None:
    n = np.arange(users)
    log = sdx.read({"user": n, "item": n % 11}, quiet=True)
    small = {"dim": 2, "hidden": 2, "latent": 2}
    assert catalogue.make("fastvae", log, small).training.batch_size == size
    assert math.isclose(catalogue.make("fastvae", log, small).training.lr, 0.003)


@pytest.mark.parametrize(
    ("recipe", "more"),
    [("sml", {}), ("sml", {"encoder": "history"}), ("ssm", {"score": "dot"}), ("ssm", {})],
)
def test_a_new_item_has_the_minimum_of_its_loss(recipe: str, more: dict[str, Any]) -> None:
    case = row(recipe, matrix.check, negatives=5, lr=0.05, **more)
    ran = trained(case)
    pair, facts, met = Pair(ran, ran.steps[-1].after), ran.facts, (1, 2, 2)
    users = ran.model.users.all().to_pylist()
    ran.model.add_items(sdx.read({"user": [users[u] for u in met], "item": ["new"] * len(met)}))
    rows, place = ran.model.index.scorer.items, ran.model.items.all().to_pylist().index("new")
    every = torch.stack([pair.item(i) for i in range(pair.items)])
    mean, spread = every.mean(0), every.var(0, correction=0)
    slope = np.polyfit([math.log1p(c) for c in facts.counts], offsets(ran), 1)
    prior = float(np.polyval(slope, math.log1p(len(met)))) if pair.cosine else 0.0

    def loss(x: Tensor) -> Tensor:
        total = ((x - mean) ** 2 / spread).sum() / 2
        far = x / x.norm().clamp(min=1)
        vector, offset = (x, 0.0) if case.options.get("score") == "dot" else (x / x.norm(), prior)
        if pair.euclidean:
            vector, offset = far, -(far**2).sum()
        for u, past in enumerate(facts.histories):
            query = pair.query(u, past)
            mass = torch.tensor(pair.scores(query), dtype=torch.float64).logsumexp(0)
            score = pair.projected(query) @ vector + offset
            grown = torch.nn.functional.softplus(score - mass)
            total = total + (len(past) + met.count(u)) * grown - met.count(u) * score
        return total

    start, found = (x.double().clone().requires_grad_() for x in (mean, rows.weight[place]))
    for x in (start, found):
        loss(x).backward()
    assert float(found.grad.norm()) < 0.01 * float(start.grad.norm())
