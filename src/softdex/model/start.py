"""Start from an earlier model: take over its vectors, found by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softdex.data.interactions import Interactions
from softdex.data.keys import Keys
from softdex.encode.features.tower import tower_in
from softdex.errors import SoftdexError
from softdex.messages import say
from softdex.model.kinds import letters_of, saved_tensors

if TYPE_CHECKING:
    from softdex.model.retriever import Retriever


def take_over(recipe: str, encoder: Any, scorer: Any, log: Interactions, start: Retriever) -> None:
    """Copy the vectors of users and items that an earlier model knows, and the weights of layers.

    Args:
        recipe: name of the recipe, for errors.
        encoder, scorer: parts to train, changed in place.
        log: the log they are to be trained on; its keys are the rows of their tables.
        start: the earlier model.
    """
    if tower_in(scorer, "items") is not None or tower_in(encoder, "vectors") is not None:
        raise SoftdexError("fit: start= and features= cannot be combined. Leave one of them out.")
    keys = {"U": (log.users, start.users), "I": (log.items, start.items)}
    known = saved_tensors(start.encoder, start.index.scorer)
    solved = encoder.history_first  # its training begins by solving for the users
    copied = 0
    for name, tensor in saved_tensors(encoder, scorer).items():
        letters = letters_of(name, encoder, scorer)
        if name not in known or letters[:1] not in keys or tensor.ndim != 2:
            continue
        if tensor.shape[1] != known[name].shape[1]:
            raise SoftdexError(
                f"fit: start= has vectors of length {known[name].shape[1]}, this model of "
                f"{tensor.shape[1]}. Use the same dim."
            )
        zero = solved and letters[0] == "I"
        count = _copy_rows(tensor, known[name], *keys[letters[0]], zero_others=zero)
        copied += count if zero or not solved else 0
    if not copied:
        raise SoftdexError(
            f"fit: start= is {start.recipe}, which shares no vectors with {recipe} (the nodes of "
            "trees have no keys). Start from a model of the same recipe, or give a tree "
            "leaves='MODEL.sdx'."
        )
    _copy_layers(encoder, known)
    say(f"start: took over {copied:,} vectors")


def _copy_layers(encoder: Any, known: Mapping[str, Tensor]) -> None:
    """Copy the weights that belong to no user and no item."""
    for name, layer in encoder.named_parameters():
        old = known.get(f"encoder.{name}")
        if old is not None and name == "positions":  # counted from the end
            most = min(len(old), len(layer))
            layer.data[len(layer) - most :] = old[len(old) - most :]
            continue
        if old is None or old.shape != layer.shape:
            had = "none" if old is None else tuple(old.shape)
            raise SoftdexError(
                f"fit: start= has {had} where this model has {tuple(layer.shape)} ({name}). Use "
                "the same recipe and the same sizes of its layers."
            )
        layer.data.copy_(old)


def _copy_rows(to: Tensor, source: Tensor, keys: Keys, old_keys: Keys, *, zero_others: bool) -> int:
    """Copy the rows of shared keys; return their number."""
    rows = torch.from_numpy(old_keys.lookup(keys.all()))
    shared = rows >= 0
    if zero_others:
        to.zero_()
    to[shared] = source[rows[shared]]
    return int(shared.sum())
