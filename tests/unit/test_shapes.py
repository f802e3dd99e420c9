"""Layouts: what a part says of its tensors, and what does not fit it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from softdex.score.product import Dot
from softdex.shapes import FLOATS, LONGS, Layout, arguments, check_shapes, kept

TABLE: Layout = {"table.weight": (FLOATS, "ID"), "pair": (LONGS, "2C"), "more": (FLOATS, "C?")}


def given(**changed: Any) -> dict[str, torch.Tensor]:
    tensors = {"table.weight": torch.zeros(4, 3), "pair": torch.zeros(2, 5, dtype=torch.int64)}
    changed = {name.replace("__", "."): tensor for name, tensor in changed.items()}
    return {name: t for name, t in (tensors | changed).items() if t is not None}


def test_every_letter_has_a_size_and_the_shared_ones_are_handed_on() -> None:
    shared = {"I": 4}
    sizes = check_shapes("x.", TABLE, given(more=torch.zeros(5)), shared)
    assert {letter: sizes[letter] for letter in "IDC"} == {"I": 4, "D": 3, "C": 5}
    assert shared == {"I": 4, "D": 3}


def test_a_letter_that_is_not_shared_may_have_another_size_in_another_part() -> None:
    shared: dict[str, int] = {}
    check_shapes("x.", {"a": (FLOATS, "CD")}, {"a": torch.zeros(2, 3)}, shared)
    check_shapes("y.", {"a": (FLOATS, "CD")}, {"a": torch.zeros(5, 3)}, shared)
    with pytest.raises(ValueError, match=r"tensor y.a: expected \('torch.float32', 5, 3\)"):
        check_shapes("y.", {"a": (FLOATS, "CD")}, {"a": torch.zeros(5, 4)}, shared)


@pytest.mark.parametrize(("changed", "words"), [
    ({"table__weight": None}, "tensor x.table.weight: expected .*got None"),
    ({"table__weight": torch.zeros(4)}, "tensor x.table.weight"),
    ({"table__weight": torch.zeros(4, 3, dtype=torch.float64)}, "torch.float64"),
    ({"table__weight": torch.zeros(5, 3)}, "expected .*4, 'D'"),
    ({"pair": torch.zeros(3, 5, dtype=torch.int64)}, r"expected \('torch.int64', 2, 'C'\)"),
    ({"more": torch.zeros(4)}, r"expected \('torch.float32', 5\)"),
    ({"other": torch.zeros(1)}, "tensors x.other belong to nothing"),
])  # fmt: skip
def test_what_does_not_fit_is_named(changed: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_shapes("x.", TABLE, given(**changed), {"I": 4})


def test_a_part_is_made_of_what_is_kept_of_it() -> None:
    whole, bare = Dot(torch.ones(3, 2), torch.zeros(3)), Dot(torch.ones(3, 2))
    assert set(kept(whole)) == {"items.weight", "bias.weight"}
    assert set(kept(bare)) == {"items.weight"}
    for part in (whole, bare):
        again = Dot(**arguments(kept(part)))
        assert torch.equal(again.items.weight, part.items.weight)
        assert (again.bias is None) == (part.bias is None)
