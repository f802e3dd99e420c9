"""A PyTorch loop of one's own: scorers learn, indexes sample for them, and the result is served."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import softdex as sdx
from marks import slow
from softdex.encode.table import Users, tables_in
from softdex.index.flat import Flat
from softdex.index.imi.index import build
from softdex.index.kernel import Kernel
from softdex.index.popularity import Popularity
from softdex.index.uniform import Uniform
from softdex.objective.sampled import sampled_softmax
from softdex.recipes import Composition, Descent, Negatives, Training
from softdex.recipes.compose import drawn_loss
from softdex.score.product import Cosine, Dot
from softdex.solve.gradient.feed import Events

ITEMS, DIM, BATCH = 30, 6, 5
TRAINING = Training(epochs=2, lr=0.05, batch_size=32)


class Mlp(nn.Module):
    """Item vectors of numbers that describe the items, with layers that notice their mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("features", torch.randn(ITEMS, 4))
        self.layers = nn.Sequential(nn.Linear(4, DIM), nn.Dropout(0.5))

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.layers(self.features[ids])
        return found


SOURCES: dict[str, Callable[[], Any]] = {
    "a parameter": lambda: nn.Parameter(torch.randn(ITEMS, DIM)),
    "an embedding": lambda: nn.Embedding(ITEMS, DIM),
    "a sparse embedding": lambda: nn.Embedding(ITEMS, DIM, sparse=True),
    "any module": Mlp,
}
INDEXES: dict[str, Callable[[Any], Any]] = {
    "flat": Flat,
    "uniform": Uniform,
    "popularity": lambda scorer: Popularity(scorer, torch.arange(ITEMS)),
    "kernel": Kernel,
    "imi": lambda scorer: build(scorer, codewords=3, generator=torch.Generator().manual_seed(0)),
    "exact imi": lambda scorer: build(
        scorer, codewords=3, last="exact", generator=torch.Generator().manual_seed(0)
    ),
}


def scorer_of(source: str, kind: type = Dot) -> Any:
    made = SOURCES[source]()
    count = ITEMS if source == "any module" else None
    if kind is Cosine:
        hot, prior = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.zeros(ITEMS))
        return Cosine(made, hot, prior, num_items=count)
    return Dot(made, nn.Parameter(torch.zeros(ITEMS)), num_items=count)


def loss_of(index: Any, query: Tensor, target: Tensor, draws: int = 8) -> Tensor:
    """Sampled softmax, as the page writes it."""
    generator = torch.Generator().manual_seed(1)
    drawn = index.sample(query, draws, generator=generator)
    return sampled_softmax(
        index.scorer(query, target)[:, 0],
        index.scorer(query, drawn.ids),
        drawn.logq,
        index.log_prob(query, target)[:, 0],
        drawn.ids == target,
    ).mean()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(BATCH, DIM), torch.randint(ITEMS, (BATCH, 1))


# train -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Dot, Cosine])
@pytest.mark.parametrize("source", SOURCES)
def test_a_scorer_hands_your_parameters_to_the_optimiser_and_learns(
    source: str, kind: type, batch: tuple[Tensor, Tensor]
) -> None:
    query, target = batch
    scorer = scorer_of(source, kind)
    dense = [p for name, p in scorer.named_parameters() if "items" not in name]
    mine = list(scorer.items.parameters())
    one_kind = torch.optim.SparseAdam if "sparse" in source else torch.optim.Adam
    optimisers = [one_kind(mine, lr=0.05), torch.optim.Adam(dense, lr=0.05)]
    first = None
    for _ in range(30):
        loss = loss_of(Uniform(scorer), query, target, 100)
        first = float(loss.detach()) if first is None else first
        for optimiser in optimisers:
            optimiser.zero_grad()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
    assert float(loss.detach()) < 0.6 * first  # type: ignore[operator]
    assert len(dense) == (2 if kind is Cosine else 1)


def test_the_parameter_that_learns_is_yours() -> None:
    weight, embedding, tower = nn.Parameter(torch.randn(ITEMS, DIM)), nn.Embedding(9, 2), Mlp()
    assert [p is weight for p in Dot(weight).parameters()] == [True]
    assert [p is embedding.weight for p in Dot(embedding).parameters()] == [True]
    assert list(Dot(tower, num_items=ITEMS).parameters()) == list(tower.parameters())


def test_plain_vectors_stay_a_table_that_no_optimiser_sees() -> None:
    scorer = Dot(torch.randn(ITEMS, DIM), torch.zeros(ITEMS))
    assert list(scorer.parameters()) == []
    assert len(tables_in(scorer)) == 2


@pytest.mark.parametrize("kind", INDEXES)
@pytest.mark.parametrize(
    "source", ["an embedding", "any module", *slow("a parameter", "a sparse embedding")]
)
def test_every_index_samples_for_your_module_and_the_gradient_is_that_of_the_table(
    source: str, kind: str, batch: tuple[Tensor, Tensor]
) -> None:
    query, target = batch
    yours = scorer_of(source).eval()
    ours = Dot(yours.items.weight, yours.bias.weight[:, 0]).train()
    found, expected = (loss_of(INDEXES[kind](s), query, target) for s in (yours, ours))
    assert torch.allclose(found, expected, atol=1e-6)
    found.backward()
    expected.backward()
    dense = torch.zeros(ITEMS, 1)
    assert ours.bias is not None
    for seen in ours.bias.touched():
        dense.index_add_(0, seen.ids, seen.grad)
    bias = yours.bias.source.weight.grad
    assert torch.allclose(bias, dense[:, 0], atol=1e-6)
    assert bias.abs().sum() > 0.1


def test_without_a_gradient_a_module_is_read_in_evaluation_mode_and_left_in_its_own() -> None:
    scorer = scorer_of("any module").train()
    frozen = scorer.items.source.layers[1].eval()
    index, query = Flat(scorer), torch.randn(BATCH, DIM)
    first = index.log_prob(query, torch.arange(ITEMS))
    assert torch.equal(first, index.log_prob(query, torch.arange(ITEMS)))
    assert scorer.items.source.training
    assert not frozen.training


def test_padding_gives_zero_and_no_gradient() -> None:
    scorer = Dot(nn.Embedding(ITEMS, DIM))
    rows = scorer.items(torch.tensor([[2, -1]]))
    assert torch.equal(rows[0, 1], torch.zeros(DIM))
    (rows.sum() + scorer.items.bag(torch.tensor([[-1, 4]]), torch.ones(1, 2)).sum()).backward()
    assert scorer.items.source.weight.grad.sum(1).nonzero()[:, 0].tolist() == [2, 4]


def test_a_step_of_the_optimiser_shows_in_the_next_search() -> None:
    scorer = Dot(nn.Embedding(ITEMS, DIM))
    index, query = build(scorer, codewords=3), torch.randn(BATCH, DIM, requires_grad=True)
    before = index.search(query, 3, effort=5.0)
    optimiser = torch.optim.SGD(scorer.parameters(), lr=1.0)
    scorer.items.source.weight.grad = torch.randn(ITEMS, DIM)
    optimiser.step()
    after = index.refit().search(query, 3, effort=float("inf"))
    exact = (query @ scorer.items.source.weight.T).topk(3)
    assert not torch.equal(after.scores, before.scores)
    assert torch.equal(after.ids, exact.indices)


def test_the_gradient_is_that_of_the_full_softmax_in_float64(batch: tuple[Tensor, Tensor]) -> None:
    query, target = batch[0].double().requires_grad_(), batch[1]
    weight, bias = nn.Parameter(torch.randn(ITEMS, DIM).double()), torch.randn(ITEMS).double()
    scorer = Dot(weight, nn.Parameter(bias))
    full = nn.functional.cross_entropy(scorer(query, slice(None)), target[:, 0], reduction="sum")
    full.backward()
    sampled = BATCH * loss_of(Flat(scorer), query, target)
    assert abs((sampled - full).item()) < 1e-4
    found = [p.grad.clone() for p in (query, *scorer.parameters())]  # type: ignore[union-attr]
    plain = [t.detach().clone().requires_grad_() for t in (query, weight, bias)]
    scores = plain[0] @ plain[1].T + plain[2]
    (scores.logsumexp(1) - scores.gather(1, target)[:, 0]).sum().backward()
    for mine, theirs in zip(found, plain, strict=True):
        assert theirs.grad is not None
        assert (mine - theirs.grad).abs().max() < 1e-12


@pytest.mark.parametrize("objective", ["ssm", "bpr"])
def test_a_loop_of_yours_takes_the_step_that_mf_takes_in_float64(objective: str) -> None:
    """The library's trainer, on tables, and plain autograd, on parameters, end at one place."""
    log = sdx.synthetic.world(users=40, items=ITEMS, seed=0).interactions()
    start = [torch.randn(n, DIM, dtype=torch.float64) for n in (log.num_users, ITEMS)]
    encoder, scorer = Users(start[0].clone()), Dot(start[1].clone())
    loss = drawn_loss(objective, scorer, 5, shared=False)
    parts = Composition(
        encoder, scorer, Events(log, 0.0), Negatives(Uniform(scorer), loss, 5, shared=False)
    )
    training = Training(
        epochs=1, batch_size=len(log), lr=0.01, decay=0.0, per_row=False, device="cpu"
    )
    trainer = Descent(parts, training).trainer(log)
    trainer.modules.train()
    rows = torch.arange(len(log))

    users, items = (nn.Parameter(t.clone()) for t in start)
    mine = Dot(items)
    own_loss = drawn_loss(objective, mine, 5, shared=False)
    generator = torch.Generator()
    generator.set_state(trainer.generator.get_state())
    trainer.step(rows)
    user, item = (torch.tensor(c, dtype=torch.int64) for c in (log.user, log.item))
    total = own_loss(Uniform(mine), users[user], item, generator).mean()
    adam = torch.optim.Adam([users, items], lr=0.01)
    total.backward()
    adam.step()
    assert (scorer.items.weight - items).abs().max() < 1e-9
    assert (encoder.vectors.weight - users).abs().max() < 1e-9
    assert (items - start[1]).abs().max() > 0.009


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Dot(torch.randn(3, 2, requires_grad=True)),
            "item vectors: expected a Parameter, a module, or a tensor without a gradient; got a "
            "tensor that requires one, and would not be trained. Wrap it in nn.Parameter, or give "
            "the module that computes it and num_items=.",
        ),
        (
            lambda: Dot(Mlp()),
            "item vectors: expected vectors (I, D), a Parameter, an Embedding, or any module and "
            "num_items=, got Mlp alone.",
        ),
        (
            lambda: Dot([[1.0, 2.0]]),  # type: ignore[arg-type]
            "item vectors: expected vectors (I, D), a Parameter, an Embedding, or any module and "
            "num_items=, got list alone.",
        ),
        (
            lambda: Dot(nn.Linear(4, 2), num_items=4),
            "item vectors: Linear failed on the ids 0 and 3 (*). Give a module that makes vectors "
            "(..., D) of ids (...,), and the num_items= that it knows.",
        ),
        (
            lambda: Dot(nn.Flatten(0), num_items=4),
            "item vectors: Flatten made (2,) of 2 ids. Expected (2, D).",
        ),
        (
            lambda: Dot(torch.randn(3)),
            "item vectors: expected floats (I, D), got torch.float32 (3,).",
        ),
        (
            lambda: Dot(torch.ones(3, 2, dtype=torch.int64)),
            "item vectors: expected floats (I, D), got torch.int64 (3, 2).",
        ),
        (
            lambda: Dot(nn.Embedding(3, 2), num_items=4),
            "item vectors: num_items=4 contradicts the 3 vectors given. Leave it out: only other "
            "modules need it.",
        ),
        (
            lambda: Dot(nn.Embedding(3, 2), torch.zeros(5)),
            "bias: expected a tensor or a Parameter (3,), got (5,).",
        ),
        (
            lambda: Dot(nn.Embedding(3, 2), nn.Embedding(3, 1)),  # type: ignore[arg-type]
            "bias: expected a tensor or a Parameter (3,), got Embedding.",
        ),
        (
            lambda: Cosine(nn.Embedding(3, 2), torch.ones(()), torch.zeros(2)),
            "prior: expected a tensor or a Parameter (3,), got (2,).",
        ),
    ],
)
def test_what_gives_no_vectors_of_ids_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(sdx.ShapeError) as refused:
        make()
    pattern = re.escape(said).replace(re.escape("*"), ".*")
    assert re.fullmatch(pattern, str(refused.value))


# serve -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log() -> sdx.Interactions:
    return sdx.synthetic.world(users=25, items=ITEMS, seed=0).interactions()


@pytest.mark.parametrize("kind", INDEXES)
@pytest.mark.parametrize("score", [Dot, Cosine])
def test_from_torch_serves_your_scores_and_survives_its_file(
    kind: str, score: type, log: sdx.Interactions, tmp_path: Path
) -> None:
    users, scorer = nn.Embedding(log.num_users, DIM), scorer_of("any module", score)
    index = INDEXES[kind](scorer)
    model = sdx.from_torch(users, index, log, options={"lr": 0.1})
    scorer.eval()
    with torch.no_grad():
        expected = scorer(users.weight, slice(None)).numpy().copy()
        users.weight.zero_()  # the model has a copy
    model.save(tmp_path / "own.sdx")
    again = sdx.load(tmp_path / "own.sdx")
    assert (again.recipe, dict(again.options)) == ("own", {"lr": 0.1})
    assert type(again.index) is (type(index) if index.searches else Flat)
    best = -np.sort(-expected, 1)[:, :4]
    for served in (model, again):
        found = served.recommend(log.users.all(), k=4, exclude_seen=False)
        scores = found["score"].to_numpy().reshape(-1, 4)
        assert np.allclose(scores, best, atol=1e-4)
        rows = log.items.lookup(found["item"].combine_chunks()).reshape(-1, 4)
        assert np.allclose(np.take_along_axis(expected, rows, 1), scores, atol=1e-4)
    unseen = set(model.recommend(log.users.all()[:1])["item"].to_pylist())
    assert unseen
    assert not unseen & set(log.items.take(log.histories[0]).to_pylist())


def test_what_does_not_fit_the_log_is_refused(log: sdx.Interactions) -> None:
    users, index = torch.randn(log.num_users, DIM), Flat(Dot(nn.Embedding(ITEMS, DIM)))
    for wrong, said in (
        ((users[:3], index, log), "from_torch: the array of user vectors has 3 rows, the log 25 "
         "users. Row i is user i of train.users."),
        ((users, Flat(Dot(nn.Embedding(4, DIM))), log), "from_torch: the index has 4 rows, the log "
         "30 items. Row i is item i of train.items."),
        ((users, index, [1]), "from_torch: expected train as a log, got list. Give the log that "
         "the rows of your vectors were counted in."),
        ((users[0], index, log), "from_torch: expected user vectors (U, D), got (6,)."),
        ((nn.Linear(DIM, DIM), index, log), "from_torch: expected user vectors (U, D), an "
         "Embedding, or an encoder that keeps the contract (docs/extend.md), got Linear. The "
         "queries that your model makes of the training histories are such vectors."),
    ):  # fmt: skip
        with pytest.raises(sdx.SoftdexError) as refused:
            sdx.from_torch(*wrong)
        assert str(refused.value) == said
    with pytest.raises(sdx.SoftdexError, match="the queries do not fit the item vectors"):
        sdx.from_torch(users[:, :2], index, log)
    with pytest.raises(sdx.SoftdexError, match="not finite"):
        sdx.from_torch(users / 0, index, log)


def test_a_recipe_of_yours_may_train_an_embedding_and_is_saved_as_a_table(
    log: sdx.Interactions, tmp_path: Path
) -> None:
    def own(train: sdx.Interactions, *, training: Training = TRAINING) -> Descent:
        scorer = Dot(nn.Embedding(train.num_items, DIM))
        loss = drawn_loss("ssm", scorer, 5, shared=False)
        against = Negatives(Uniform(scorer), loss, 5, shared=False)
        users = Users(torch.randn(train.num_users, DIM))
        return Descent(Composition(users, scorer, Events(train, 0.0), against), training)

    model = sdx.fit(own, log)
    model.save(tmp_path / "own.sdx")
    again = sdx.load(tmp_path / "own.sdx")
    found, expected = (m.recommend(log.users.all(), k=3).to_pydict() for m in (again, model))
    assert found == expected
