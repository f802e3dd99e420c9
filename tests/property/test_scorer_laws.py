"""Every scorer keeps every law, and the suite rejects a scorer that breaks one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from own_parts import Distance, registered
from part_files import DIM
from scorers import BATCH, ITEMS, LAWS, Case, check
from softdex.encode.counting import Unpersonalised
from softdex.model import kinds
from softdex.score.counting import Constant, Sparse
from softdex.score.din import random_din
from softdex.score.product import Cosine, Dot, Euclidean


def vectors(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Items, queries, and an offset per item."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (ITEMS, DIM), (BATCH, DIM), (ITEMS,)
    items, query, offset = (torch.randn(*shape, generator=generator) for shape in shapes)
    return items, query, offset


def dot(bias: bool) -> Any:
    def make(seed: int) -> tuple[Any, Any, Any]:
        items, query, offset = vectors(seed)
        return Dot(items, offset if bias else None).eval(), query, Unpersonalised()

    return make


def cosine(prior: bool) -> Any:
    def make(seed: int) -> tuple[Any, Any, Any]:
        items, query, offset = vectors(seed)
        scorer = Cosine(items, torch.tensor(0.3), offset if prior else None)
        return scorer.eval(), query, Unpersonalised()

    return make


def euclidean(seed: int) -> tuple[Any, Any, Any]:
    items, query, _ = vectors(seed)
    return Euclidean(items).eval(), query, Unpersonalised()


def constant(seed: int) -> tuple[Any, Any, Any]:
    return Constant(vectors(seed)[2]), torch.empty(BATCH, 0), Unpersonalised()


def sparse(seed: int) -> tuple[Any, Any, Any]:
    query = sp.random_array((BATCH, ITEMS), density=0.3, rng=seed, format="csr", dtype=np.float32)
    return Sparse(-1 - torch.rand(ITEMS)), sp.csr_matrix(query), Unpersonalised()


def din(norm: str) -> Any:
    def make(seed: int) -> tuple[Any, Any, Any]:
        generator = torch.Generator().manual_seed(seed)
        small: dict[str, Any] = {"attention": 4, "layers": (8, 6, 4), "scale": 1.0}
        scorer = random_din(ITEMS, DIM, (3, 2, 1), norm=norm, generator=generator, **small)
        history = torch.randint(ITEMS, (BATCH, 5), generator=generator)
        length = torch.randint(1, 6, (BATCH, 1), generator=generator)
        query = torch.where(torch.arange(5) >= 5 - length, history, -1)
        return scorer.eval(), query, Unpersonalised()

    return make


def distance(seed: int) -> tuple[Any, Any, Any]:
    items, query, _ = vectors(seed)
    return Distance(items), query, Unpersonalised()


def longer(query: Tensor) -> Tensor:
    return pad(query, (4, 0), value=-1)


def renamed(query: Tensor, place: np.ndarray) -> Tensor:
    return torch.where(query >= 0, torch.from_numpy(place)[query.clamp(min=0)], -1)


def widened(query: sp.csr_matrix, place: np.ndarray) -> sp.csr_matrix:
    wide = query.copy()
    wide.resize(query.shape[0], len(place))
    return wide[:, np.argsort(place)]


CASES = [
    Case("dot", dot(bias=False)),
    Case("dot, bias", dot(bias=True)),
    Case("cosine", cosine(prior=False)),
    Case("cosine, prior", cosine(prior=True)),
    Case("euclidean", euclidean),
    Case("constant", constant),
    Case("sparse", sparse, moved=widened),
    Case("din", din("none"), padded=longer, moved=renamed),
    Case("din, layer", din("layer"), padded=longer, moved=renamed),
    Case("din, batch", din("batch"), padded=longer, moved=renamed),
    Case("your own", distance),
]


@pytest.fixture(autouse=True)
def _own() -> Iterator[None]:
    with registered(Distance):
        yield


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("seed", range(3))
def test_the_scorer_keeps_the_law(case: Case, law: str, seed: int) -> None:
    check(case, law, seed)


def test_every_scorer_of_the_package_is_in_the_suite() -> None:
    assert {type(case.make(0)[0]) for case in CASES} == set(kinds.SCORERS.values())


# a scorer that is wrong in one way, for each law


class Wrong(nn.Module):
    """A Dot with one fault; in training mode or not, it is the same."""

    pair_bytes = 0
    is_product = True

    def __init__(self, inner: Dot, spoil: str) -> None:
        super().__init__()
        self.inner, self.spoil, self.num_items = inner, spoil, inner.num_items
        self.items, self.kept = inner.items, None

    def num_queries(self, query: Tensor) -> int:
        return len(query)

    @property
    def version(self) -> Any:
        return self.inner.version

    def project(self, query: Tensor) -> Tensor:
        return 2 * query if self.spoil == "product" else query

    def vectors(self, ids: Any) -> Tensor:
        return self.inner.vectors(ids)

    def offsets(self, ids: Any) -> Tensor | None:
        return self.inner.offsets(ids)

    def directions(self, rows: Tensor) -> Tensor:
        return rows

    def everything(self) -> tuple[Tensor, Tensor | None]:
        return self.inner.everything()

    def forward(self, query: Tensor, ids: Tensor | slice) -> Tensor:
        if self.spoil == "padding":
            query = query[:, -DIM:] * (query.shape[1] / DIM)
        found = self.inner(query[:, -DIM:], ids)
        if self.spoil == "batch":
            return found + torch.arange(len(found)).unsqueeze(1)
        if self.spoil == "ids" and isinstance(ids, Tensor) and ids.ndim == 2:
            return found.flip(1)
        if self.spoil == "memory" and isinstance(ids, slice):
            self.kept = found if self.kept is None else self.kept
            return self.kept
        return found

    def over(self, order: np.ndarray, vectors: Any = None, offsets: Any = None) -> Wrong:
        order = np.roll(order, self.spoil == "remade")
        return Wrong(self.inner.over(order, vectors, offsets), self.spoil)


@pytest.mark.parametrize("law", LAWS)
def test_the_suite_rejects_a_scorer_that_breaks_the_law(law: str) -> None:
    def make(seed: int) -> tuple[Any, Any, Any]:
        items, query, _ = vectors(seed)
        return Wrong(Dot(items).eval(), law), query, Unpersonalised()

    def restore(encoder: Any, scorer: Any) -> tuple[Any, Any]:
        return encoder, Wrong(Dot(scorer.items.weight + 1.0), law)

    case = Case("wrong", make, padded=lambda query: pad(query, (4, 0)), restore=restore)
    with pytest.raises(AssertionError):
        check(case, law, seed=0)


@pytest.mark.parametrize("law", [law for law in LAWS if law != "round trip"])
def test_the_same_scorer_without_the_fault_keeps_the_law(law: str) -> None:
    def make(seed: int) -> tuple[Any, Any, Any]:
        items, query, _ = vectors(seed)
        return Wrong(Dot(items).eval(), "nothing"), query, Unpersonalised()

    check(Case("right", make), law, seed=0)
