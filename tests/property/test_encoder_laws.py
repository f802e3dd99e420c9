"""Every encoder keeps every law, and the suite rejects an encoder that breaks one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from encoders import ITEMS, LAWS, USERS, Case, check
from own_parts import LastItem, registered
from part_files import DIM
from softdex.data.ragged import Ragged
from softdex.encode.counting import Neighbours, Unpersonalised
from softdex.encode.history import Mixed, Recent, latest
from softdex.encode.sequence import Dnn, Sequence
from softdex.encode.table import Users
from softdex.encode.terms import Terms
from softdex.encode.vae import Vae
from softdex.model import kinds
from softdex.score.counting import Constant, Sparse
from softdex.score.din import random_din
from softdex.score.product import Cosine, Dot
from softdex.shapes import LONGS, Layout, arguments
from softdex.solve.closed.fold_in import FoldIn
from softdex.solve.closed.normal_equations import ials

SIZES = {"W": 5, "R": 2, "A": 3 * DIM, "F": 7, "G": 6, "K": 5, "H": 6, "L": 6, "Z": 3, "T": 12}


def random_parts(layout: Layout, seed: int) -> dict[str, Any]:
    """Random tensors of these shapes, without those that may be missing; whole numbers are 2."""
    generator = torch.Generator().manual_seed(seed)
    sizes = SIZES | {"U": USERS, "I": ITEMS, "D": DIM} | {str(n): n for n in range(10)}
    made = {
        name: torch.tensor(2) if dtype == LONGS
        else torch.randn([sizes[s] for s in letters], generator=generator)
        for name, (dtype, letters) in layout.items() if letters[-1:] != "?"
    }  # fmt: skip
    return arguments(made)


def made(kind: Any, cosine: bool = False, **given: Any) -> Any:
    """An encoder with random tensors, over random items."""

    def make(seed: int) -> tuple[Any, Any]:
        items = torch.randn(ITEMS, DIM, generator=torch.Generator().manual_seed(seed + 100))
        scorer = Cosine(items, torch.tensor(0.3)) if cosine else Dot(items, items[:, 0].clone())
        more = {"items": scorer.items} if kind.reads_items else {}
        return kind(**random_parts(kind.tensors, seed) | given | more).eval(), scorer.eval()

    return make


def popular(seed: int) -> tuple[Any, Any]:
    return Unpersonalised(), Constant(torch.arange(ITEMS).float())


def counted(seed: int) -> tuple[Any, Any]:
    lists = sp.random_array((ITEMS, ITEMS), density=0.4, rng=seed, format="csr", dtype=np.float32)
    types = (lists.indptr, np.int64), (lists.indices, np.int32), (lists.data, np.float32)
    arrays = (torch.from_numpy(array.astype(kind)) for array, kind in types)
    return Neighbours(*arrays), Sparse(-1 - torch.arange(ITEMS).float())


def attended(seed: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    scorer = random_din(
        ITEMS, DIM, (3, 2, 1), attention=4, layers=(8, 6, 4), scale=1.0, generator=generator
    )
    return Recent(torch.tensor(6)), scorer.eval()


FOLDED = {"terms": ials(ITEMS, alpha=0.2, lam=0.1, nu=0.0).terms(), "total": torch.ones(USERS)}
CASES = [
    Case("unpersonalised", popular),
    Case("neighbours", counted, dense=False),
    Case("users", made(Users)),
    Case("users, cosine", made(Users, cosine=True)),
    Case("mixed", made(Mixed, share=torch.tensor(0.4))),
    Case("history", made(Mixed, cosine=True, share=torch.tensor(0.0))),
    Case("vae", made(Vae)),
    Case("vae, relu", made(Vae, relu=torch.tensor(True))),
    Case("sequence", made(Sequence)),
    Case("dnn", made(Dnn)),
    Case("recent", attended),
    Case("fold-in", made(FoldIn, **FOLDED)),
    Case("your own", made(LastItem, factor=torch.tensor(0.5))),
]


@pytest.fixture(autouse=True)
def _own() -> Iterator[None]:
    with registered(LastItem):
        yield


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("seed", range(3))
def test_the_encoder_keeps_the_law(case: Case, law: str, seed: int) -> None:
    check(case, law, seed)


def test_every_encoder_of_the_package_is_in_the_suite() -> None:
    suite = {type(case.make(0)[0]) for case in CASES}
    assert suite == set(kinds.ENCODERS.values())


# an encoder that is wrong in one way, for each law


class Wrong(nn.Module):
    """The mean of a history's vectors, spoilt."""

    reads_items = reads_history = True
    answers_strangers = history_first = False

    def __init__(self, items: Any, spoil: str) -> None:
        super().__init__()
        self.items, self.spoil = items, spoil
        self.query_bytes = 1 if spoil == "bytes" else 4 * items.dim

    def forward(self, users: Any, history: Ragged, leave_out: Tensor | None = None) -> Tensor:
        ids = latest(history, ITEMS)
        real = (ids >= 0).float()
        count = ids.shape[1] if self.spoil == "padding" else real.sum(1, keepdim=True)
        query = self.items.bag(ids, real / count)
        if self.spoil == "batch":
            query = query + torch.arange(len(query)).unsqueeze(1)
        if self.spoil == "strangers":
            query = query / (torch.from_numpy(users) >= 0).float().unsqueeze(1)
        return query

    def summands(self, user: int, history: Ragged) -> Terms:
        ids = np.unique(history.ids)
        items = self.items.weight[ids].double().numpy() / len(ids)
        rest = np.full(self.items.dim, float(self.spoil == "summands"))
        return Terms("mean", ids, items, None, rest)

    def over(self, items: Any, order: np.ndarray) -> Wrong:
        items = Dot(items.weight.roll(1, 0)).items if self.spoil == "remade" else items
        return Wrong(items, self.spoil)


@pytest.mark.parametrize("law", LAWS)
def test_the_suite_rejects_an_encoder_that_breaks_the_law(law: str) -> None:
    def make(seed: int) -> tuple[Any, Any]:
        items = torch.randn(ITEMS, DIM, generator=torch.Generator().manual_seed(seed))
        scorer = Dot(items)
        return Wrong(scorer.items, law), scorer

    def restore(encoder: Any, scorer: Any) -> tuple[Any, Any]:
        return Wrong(Dot(scorer.items.weight + 1.0).items, law), scorer

    case = Case("wrong", make, restore)
    with pytest.raises(AssertionError):
        check(case, law, seed=0)


@pytest.mark.parametrize("law", [law for law in LAWS if law != "round trip"])
def test_the_same_encoder_without_the_fault_keeps_the_law(law: str) -> None:
    scorer = Dot(torch.randn(ITEMS, DIM, generator=torch.Generator().manual_seed(0)))
    check(Case("right", lambda seed: (Wrong(scorer.items, "nothing"), scorer)), law, seed=0)
