"""Make a model of parts that were trained in a PyTorch loop of your own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softdex.data.interactions import Interactions
from softdex.data.ragged import empty
from softdex.encode.contract import Encoder
from softdex.encode.table import Users
from softdex.errors import DataError, SoftdexError
from softdex.index.contract import Index
from softdex.index.flat import Flat
from softdex.model.card import card_of
from softdex.model.kinds import kind_of
from softdex.model.learn import check_finite
from softdex.model.parts import known_from, parts_from
from softdex.model.retriever import Retriever


def from_torch(
    users: Tensor | np.ndarray | nn.Embedding | Encoder,
    index: Index,
    train: Interactions,
    *,
    name: str = "own",
    options: Mapping[str, Any] | None = None,
) -> Retriever:
    """Make a model of what you trained in a PyTorch loop: it recommends, is saved and exported.

    Vectors are copied as they are now, the index is refitted to them, and an index that only
    samples is served by scoring every item.

    Args:
        users: vectors (U, D) in the order of `train.users`, or an encoder: a class of yours that
            keeps the contract and is registered (docs/extend.md), and is put in evaluation mode.
        index: over items in the order of `train.items`; its scorer scores them.
        train: the log of the training, with the keys, histories and counts.
        name: recipe of the model's card.
        options: of the model's card.

    Example:
        >>> import softdex as sdx, torch
        >>> from softdex.index.flat import Flat
        >>> from softdex.score.product import Dot
        >>> log = sdx.read([("ann", "tea"), ("ann", "milk"), ("bob", "tea")], quiet=True)
        >>> items = torch.nn.Embedding.from_pretrained(torch.eye(2))
        >>> model = sdx.from_torch(torch.ones(2, 2), Flat(Dot(items)), log)
        >>> model.recommend("bob", k=1)["item"].to_pylist()
        ['milk']
    """
    if not isinstance(train, Interactions):
        raise DataError(
            f"from_torch: expected train as a log, got {type(train).__name__}. Give the log that "
            "the rows of your vectors were counted in."
        )
    _check_count("index", index.num_items, "item", train.num_items)
    order = np.arange(train.num_items)
    scorer = index.scorer.over(order).float()
    served = index.over(scorer, order) if index.searches else Flat(scorer, index.alive)
    served = served.refit(generator=torch.Generator(served.alive.device).manual_seed(0))
    encoder = _encoder(users, scorer, order, train)
    card = card_of(name, dict(options or {}), train)
    check_finite(card, encoder, scorer)
    model = Retriever(card, parts_from(encoder, scorer, served), known_from(train))
    try:
        model.search(np.zeros(1, np.int64), empty(1), 1)
    except RuntimeError as error:
        raise SoftdexError(
            f"from_torch: the queries do not fit the item vectors ({error}). Give both the same "
            "dimension."
        ) from None
    return model


def _encoder(users: Any, scorer: Any, order: np.ndarray, train: Interactions) -> Any:
    """Return what makes the queries: a table of given vectors, or a registered encoder."""
    vectors = users.weight if isinstance(users, nn.Embedding) else users
    if isinstance(vectors, Tensor | np.ndarray):
        given = torch.as_tensor(vectors).detach().float().clone()
        if given.ndim != 2:
            raise SoftdexError(
                f"from_torch: expected user vectors (U, D), got {tuple(given.shape)}."
            )
        _check_count("array of user vectors", len(given), "user", train.num_users)
        return Users(given)
    if not isinstance(users, nn.Module) or "reads_history" not in dir(type(users)):
        raise SoftdexError(
            "from_torch: expected user vectors (U, D), an Embedding, or an encoder that keeps the "
            f"contract (docs/extend.md), got {type(users).__name__}. The queries that your model "
            "makes of the training histories are such vectors."
        )
    kind_of(users)
    return users.over(scorer.items if users.reads_items else None, order)  # type: ignore[operator]


def _check_count(what: str, found: int, kind: str, expected: int) -> None:
    """Refuse rows that are not those of the log."""
    if found != expected:
        raise SoftdexError(
            f"from_torch: the {what} has {found:,} rows, the log {expected:,} {kind}s. Row i is "
            f"{kind} i of train.{kind}s."
        )
