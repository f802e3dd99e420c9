"""Versions of tensors: a cache of what a tensor determines is valid while its version is equal."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Version:
    """A tensor at a moment: equal to a later one if the tensor is the same and unchanged."""

    tensor: Tensor
    number: int

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Version)
            and self.tensor is other.tensor
            and self.number == other.number
        )

    __hash__ = None  # type: ignore[assignment]


def version_of(tensor: Tensor) -> Version:
    """Return the version of a tensor."""
    return Version(tensor, -1 if tensor.is_inference() else tensor._version)
