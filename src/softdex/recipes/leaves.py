"""Leaves: the order of items in a new tree, and the models that are quickly trained for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from softdex.data.interactions import Interactions
from softdex.encode.sequence import Sequence
from softdex.errors import SoftdexError, choose
from softdex.index.tree import build
from softdex.index.tree.tree import as_tree
from softdex.machine import pick_device
from softdex.messages import say
from softdex.recipes.compose import Sampling
from softdex.recipes.rg import rg
from softdex.recipes.sequence import sequence
from softdex.solve import loop
from softdex.solve.gradient.training import Training
from softdex.solve.tree.rectify import Estimate, estimate_by

LEAVES = ("sequence", "factors", "category", "random", "none")


@dataclass
class Quick:
    """Models that are quickly trained for a tree, each at most once.

    Attributes:
        train: the log.
        seed, device: of their training.
    """

    train: Interactions
    seed: int
    device: str
    made: dict[str, Any] = field(default_factory=dict)

    def sequence(self) -> Any:
        """Train a `sasrec`, once."""
        if "sequence" not in self.made:
            job = sequence(
                self.train, dim=64, max_history=50, objective="ssm",
                sampling=Sampling("uniform", 1000),
                training=Training(
                    epochs=8, lr=0.003, lr_end=0.05, patience=0, seed=self.seed, device=self.device
                ),
            )  # fmt: skip
            loop.train(job, self.train, name="quick sasrec")
            self.made["sequence"] = job
        return self.made["sequence"]

    def factors(self) -> Any:
        """Train an `rg2`."""
        job: Any = rg(self.train, dim=64, epochs=4, seed=self.seed, device=self.device)
        loop.train(job, self.train, name="quick rg2")
        return job

    def estimate(self) -> Estimate:
        """Log-probabilities of items by the `sasrec`."""
        if "sequence" not in self.made:
            say("a quick sequence model first, to rectify labels")
        job = self.sequence()
        return estimate_by(job.encoder.eval(), job.scorer.eval())


def order_of_leaves(
    how: str | Any, quick: Quick, shape: build.Shape, category: str | None
) -> np.ndarray:
    """Items in the order of their leaves.

    Args:
        how: a word of LEAVES, or a model with a tree: in the order that items have there.
        quick: trains the models whose vectors are clustered.
        shape: of the tree.
        category: the column of the item table, for "category".
    """
    train, seed = quick.train, quick.seed
    if not isinstance(how, str):
        return _order_in(train, how)
    if how == "none":
        return np.arange(train.num_items)
    if how == "random":
        return build.random(train.num_items, seed=seed)
    if how == "category":
        assert category is not None
        return build.by_category(categories(train, category, seed), seed=seed)
    say(f"vectors of a quick {how} model first, for the leaves")
    job = quick.factors() if how == "factors" else quick.sequence()
    vectors = job.scorer.items.weight.detach().float().cpu().numpy()
    return build.by_vectors(vectors, shape, seed=seed)


def _order_in(train: Interactions, model: Any) -> np.ndarray:
    """Items in the order of a saved tree, followed by those it does not know."""
    tree = as_tree(model.index)
    if tree is None:
        raise SoftdexError(f"tree: leaves= is a saved {model.recipe}, which has no tree.")
    lies = tree.item_of.cpu().numpy()
    known = train.items.lookup(model.items.take(lies[lies >= 0]))
    known = known[known >= 0]
    if not len(known):
        raise SoftdexError("tree: the tree of leaves= has no item in common with the log.")
    say(f"the saved tree has {len(known):,} of {train.num_items:,} items")
    return np.append(known, np.setdiff1d(np.arange(train.num_items), known))


def estimate_of(train: Interactions, model: Any, device: str) -> Estimate:
    """Log-probabilities of items by a saved sequence model."""
    encoder, scorer = model.encoder, model.index.scorer
    if not isinstance(encoder, Sequence):
        raise SoftdexError(f"tree: estimator= is a saved {model.recipe}. Give a saved sasrec.")
    if model.items.sha256 != train.items.sha256:
        raise SoftdexError("tree: estimator= knows other items than the log. Fit it on the log.")
    where = pick_device(device)
    return estimate_by(encoder.to(where).eval(), scorer.to(where).eval())


def categories(train: Interactions, column: str, seed: int = 0) -> np.ndarray:
    """The category of each item as a number (I,), -1 for none; of a list a random one (DTR)."""
    if train.item_table is None:
        raise SoftdexError(
            "fit: a tree by category reads the item table, and the log has none. Read it with "
            "items=, or --items."
        )
    choose("fit", "column", column, train.item_table.column_names)
    values = train.item_table[column].combine_chunks()
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        many = pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        share = np.random.default_rng(seed).random(len(many))
        at = values.offsets.to_numpy()[:-1] + (share * many).astype(np.int64)
        values = values.values.take(pa.array(at, mask=many == 0))
    codes = values.dictionary_encode().indices
    return np.asarray(codes.fill_null(-1), np.int64)
