"""Shapes: the letters of tensor sizes, what a part says of its saved tensors, and their check.

    B queries                    I items                     C codewords per codebook
    N draws, or ids, per query   U users                     S leaf slots of a tree
    K hits per query             L items per history         H levels of a tree
    D dimension of vectors       P positives per query       W beam width

Prose writes (B, D). A layout writes the letters alone: "UD" is (U, D), "" a scalar. In a layout U,
I and D have one size in the whole model, a digit is a size itself, and any other letter has one
size within its part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

FLOATS, DOUBLES, INTS = torch.float32, torch.float64, torch.int32
LONGS, FLAGS = torch.int64, torch.bool

Layout = Mapping[str, tuple[torch.dtype, str]]
"""Name of a tensor -> dtype and letters. A final "?" marks a tensor that may be missing. The part's
constructor takes the tensor by its name up to the first dot: "vectors.weight" as `vectors`."""

Tensors = Mapping[str, Tensor]
"""The tensors of one part, by the names in its layout."""

Sizes = Mapping[str, int]
"""Letter -> size."""

MOST, MOST_MADE = 1e8, 1e16
"""Largest number of a vector, an offset or a layer, and of what layers make of these: squares,
inner products and their softmax then are finite in float32."""


def check_shapes(where: str, layout: Layout, tensors: Tensors, shared: dict[str, int]) -> Sizes:
    """Check tensors against a layout and return the size of every letter.

    Args:
        where: prefix of tensor names in messages, such as "index.".
        layout: what is expected.
        tensors: what is there.
        shared: sizes of U, I and D as far as they are known; the others are added.
    """
    sizes = shared | {str(n): n for n in range(10)}
    for name, (dtype, letters) in layout.items():
        tensor, needed = tensors.get(name), letters.rstrip("?")
        if tensor is not None or needed == letters:
            _check_shape(where + name, tensor, dtype, needed, sizes)
    if unknown := sorted(tensors.keys() - layout.keys()):
        raise ValueError(f"tensors {', '.join(where + n for n in unknown)} belong to nothing")
    shared |= {letter: sizes[letter] for letter in "UID" if letter in sizes}
    return sizes


def shapes_suffice(tensors: Tensors, sizes: Sizes) -> None:
    """Check nothing: the `check` of a part whose tensors may hold any finite values."""


def moderate(tensors: Tensors, sizes: Sizes) -> None:
    """Refuse numbers beyond MOST: the `check` of a part whose tensors may hold any other values."""
    floats = {name: most_of(t) for name, t in tensors.items() if t.is_floating_point()}
    if wrong := [name for name, most in floats.items() if most > MOST]:
        raise ValueError(f"{', '.join(wrong)}: numbers beyond {MOST:g}, scores would overflow")


def most_of(tensor: Tensor) -> float:
    """Return the largest absolute value, 0 of none."""
    return max(map(abs, map(float, tensor.aminmax()))) if tensor.numel() else 0.0


def most_through(most: float, weight: Tensor, bias: Tensor | None = None) -> float:
    """Return a bound of inputs (E,) up to `most` after a layer: weights (..., E, F) and bias."""
    gain = most_of(weight.double().abs().sum(-2))
    return most * gain + (0.0 if bias is None else most_of(bias))


def check_made(what: str, *bounds: float) -> None:
    """Refuse layers that can make numbers beyond MOST_MADE."""
    if not max(bounds) <= MOST_MADE:
        raise ValueError(f"{what}: its layers make numbers beyond {MOST_MADE:g}")


def check_lists(what: str, indptr: Tensor, ids: Tensor, rows: int, columns: int) -> None:
    """Refuse lists whose row pointers or ids point outside."""
    starts, values = indptr.numpy(), ids.numpy()
    good = (
        len(starts) == rows + 1
        and starts[0] == 0
        and starts[-1] == len(values)
        and bool((starts[1:] >= starts[:-1]).all())
        and values.min(initial=0) >= 0
        and values.max(initial=-1) < columns
    )
    if not good:
        raise ValueError(f"{what}: lists of {rows} rows over {columns} items point outside")


def not_finite(tensors: Tensors) -> list[str]:
    """Return the names of the tensors that hold a NaN or an infinity."""
    floats = {name: t for name, t in tensors.items() if t.is_floating_point()}
    return [name for name, t in floats.items() if not bool(torch.isfinite(t).all())]


def kept(part: Any) -> dict[str, Tensor]:
    """Return the tensors of a module that a file keeps, by the names in its layout."""
    state, names = part.state_dict(), type(part).tensors
    return {name: state[name].detach() for name in names if name in state}


def arguments(tensors: Tensors) -> dict[str, Tensor]:
    """Return the same tensors by the names of the constructor's arguments."""
    return {name.partition(".")[0]: tensor for name, tensor in tensors.items()}


def _check_shape(
    name: str, tensor: Tensor | None, dtype: torch.dtype, letters: str, sizes: dict[str, int]
) -> None:
    found = None if tensor is None else (str(tensor.dtype), *tensor.shape)
    good = found is not None and found[0] == str(dtype) and len(found) == len(letters) + 1
    if not good or any(
        sizes.setdefault(letter, size) != size
        for letter, size in zip(letters, found[1:], strict=True)  # type: ignore[index]
    ):
        wanted = (str(dtype), *(sizes.get(letter, letter) for letter in letters))
        raise ValueError(f"tensor {name}: expected {wanted}, got {found}")
