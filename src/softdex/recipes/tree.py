"""Trees: a search follows the best nodes of each level, scored by attention to the history."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from softdex.data.interactions import Interactions
from softdex.encode.history import Recent
from softdex.encode.sequence import Sequence
from softdex.errors import SoftdexError, nearest
from softdex.index.tree import build as tree_build
from softdex.index.tree.deal import RULES
from softdex.index.tree.tree import Tree
from softdex.machine import pick_device
from softdex.messages import say
from softdex.model.retriever import load
from softdex.recipes.rg import rg
from softdex.recipes.sequence import sequence
from softdex.score.din import NORMS, random_din, windows_of
from softdex.solve import loop
from softdex.solve.gradient.feed import Reading
from softdex.solve.gradient.trainer import Composition, Job, Settings
from softdex.solve.loop import Schedule
from softdex.solve.tree.loss import SAMPLINGS, TreeLoss, categories
from softdex.solve.tree.rectify import KINDS, Estimate, Rectify, estimate_by
from softdex.solve.tree.relearn import BY, Rounds, starts_of

ABOUT = {
    "dtr": "A tree of items searched by a beam, each level trained by a sampled softmax.",
    "tdm": "A tree of items searched by a beam, each level trained by yes and no.",
    "jtm": "As tdm, and items move to the leaves whose paths suit them, round after round.",
    "otm": "A tree searched by a beam, trained on the nodes that the beam looks at.",
    "plt": "A tree of items, the probability of a leaf a product of yes and no along its path.",
    "din": "Every item is scored by attention to the history: what the trees stand in for.",
    "tree": "What all of these are variants of, with every option.",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "dtr": {"objective": "softmax"},
    "tdm": {"objective": "binary", "sampling": "uniform", "negatives": 6, "relearn": "cluster"},
    "jtm": {
        "objective": "binary",
        "sampling": "uniform",
        "negatives": 6,
        "relearn": "binary",
        "rounds": 2,
    },
    "otm": {
        "objective": "binary",
        "sampling": "beam",
        "beam": 50,
        "relearn": "binary",
        "rectify": "own",
    },
    "plt": {"objective": "binary", "sampling": "siblings", "relearn": "binary"},
    "din": {"sampling": "uniform", "leaves": "none"},
}
ROUNDS = ("rounds", "relearn", "gap", "deal", "per_item", "move", "restart")
LABELS = ("rectify", "normalise", "estimator", "warm_up")
FIXED = {
    "dtr": ("objective", "relearn"),
    "tdm": ("objective", "sampling", "relearn", "gap", "deal", "per_item", *LABELS),
    "jtm": ("objective", "sampling", "relearn", *LABELS),
    "otm": ("objective", "sampling", "negatives", "relearn", "rectify", "normalise", "estimator"),
    "plt": ("objective", "sampling", "negatives", "relearn", *LABELS),
    "din": ("sampling", "leaves", "category", "arity", "beam", "room", *ROUNDS, *LABELS),
}
SPACE = {"lr": (0.002, 0.02), "negatives": [20, 70], "sampling": ["tree", "uniform"]}
SPACES = {
    "tdm": {"lr": (0.002, 0.02), "negatives": [3, 6, 20]},
    "jtm": {"lr": (0.002, 0.02), "negatives": [3, 6, 20]},
    "otm": {"lr": (0.002, 0.02)},
    "plt": {"lr": (0.002, 0.02)},
    "din": {"lr": (0.002, 0.02), "negatives": [20, 70]},
}
READ_BY = (
    ("category", "leaves", ("category",)),
    ("negatives", "sampling", ("tree", "uniform", None)),
    ("normalise", "rectify", ("path", "child")),
    ("estimator", "rectify", ("path", "child")),
    ("warm_up", "rectify", ("path", "child", "own")),
    *((o, "rounds", range(2, 2**63)) for o in ("gap", "deal", "per_item", "move", "restart")),
)
LEAVES = ("sequence", "factors", "category", "random", "none")
WORDS = {
    "objective": ("softmax", "binary"),
    "sampling": SAMPLINGS,
    "windows": ("all", "last"),
    "norm": NORMS,
    "precision": ("float32", "bf16"),
    "relearn": BY,
    "deal": RULES,
    "rectify": KINDS,
}
POSITIVE = (
    "dim", "beam", "negatives", "max_history", "min_history", "epochs", "batch_size", "lr",
    "rounds", "gap", "per_item",
)  # fmt: skip
AT_LEAST_0 = ("max_instances", "decay", "patience", "seed", "warm_up")
AT_LEAST_2 = ("arity",)
FROM_0_TO_1 = ("lr_end", "room")
PRESET: dict[str, dict[str, Any]] = {  # a CPU sees fewer and shorter things, for an answer sooner
    "cuda": {
        "leaves": "sequence", "sampling": "tree", "negatives": 70, "max_history": 69,
        "batch_size": 512, "epochs": 3, "lr": 0.01,
    },
    "cpu": {
        "leaves": "factors", "sampling": "uniform", "negatives": 20, "max_history": 20,
        "batch_size": 128, "epochs": 2, "lr": 0.02,
    },
}  # fmt: skip


def tree(
    train: Interactions,
    *,
    objective: str = "softmax",
    sampling: str | None = None,
    leaves: str | None = None,
    category: str | None = None,
    arity: int = 2,
    room: float = 0.0,
    beam: int = 150,
    dim: int = 24,
    norm: str = "batch",
    negatives: int | None = None,
    max_history: int | None = None,
    min_history: int = 1,
    windows: str = "all",
    max_instances: int = 0,
    rounds: int = 1,
    relearn: str = "softmax",
    gap: int = 7,
    deal: str = "auction",
    per_item: int = 64,
    move: bool = True,
    restart: bool = False,
    rectify: str = "none",
    normalise: bool = False,
    estimator: str | None = None,
    warm_up: int = 0,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    lr_end: float = 0.05,
    decay: float = 0.0,
    per_row: bool = False,
    patience: int = 3,
    seed: int = 0,
    device: str = "auto",
    precision: str = "float32",
) -> Job:
    """Learn to score the nodes of a tree of items, so that a search sees few of them.

    Users need no vector of their own: whoever has a history is served.

    Args:
        objective: of each level: `softmax` (sampled), or `binary` (yes and no).
        sampling: what a label stands against: nodes that walks down the tree come by (`tree`), any
            nodes of the level (`uniform`), all that a search looks at (`beam`), or those of the
            same parent (`siblings`, whose yes and no make the product along a path the probability
            of a leaf); None: `tree` on a GPU, `uniform` on a CPU.
        leaves: how items come to their leaves: by clusters of vectors of a `sequence` model or of
            `factors`, both quickly trained; by `category`; or at `random`. With `none` there is
            one level: every item is scored. The path of a saved tree: in the order they have
            there. None: `sequence` on a GPU, `factors` on a CPU.
        category: the column of the item table, for leaves="category".
        arity: children of a node.
        room: leaves for so many more items, as a share of those there are.
        beam: nodes that a search keeps on each level; the first level has a few more.
        dim: length of the vectors of nodes.
        norm: of the layers: `none`, by the `layer`, or by the `batch`.
        negatives: nodes a level that a label stands against; None: 70 on a GPU, 20 on a CPU.
        max_history: how many of the latest items are read; None: 69 on a GPU, 20 on a CPU.
        min_history: an item is trained on if so many stand before it.
        windows: `all` items of a history are to be found from those before, or the `last`.
        max_instances: at most so many of these, drawn at random; 0: all.
        rounds: parts of the training; between two of them items move to better leaves.
        relearn: what says which are better: the `softmax` or the `binary` scores of nodes for the
            histories that items were found after, or a `cluster` of the leaves' vectors.
        gap: levels that items are dealt out over at a time.
        deal: `auction`, near the best there is, or the papers' `greedy`.
        per_item: histories of an item that are asked, at most.
        move: the vectors of leaves move with their items.
        restart: each round begins with the full learning rate.
        rectify: which labels count: all (`none`), those of an ancestor under which nothing is
            likelier than the item (`path`), where it lies under the likelier child (`child`), or
            where the way on leads through the best of siblings, by the scores as they are (`own`).
        normalise: labels of a level are divided so that they sum to 1.
        estimator: a saved `sasrec` that says what is likelier; None: a quickly trained one.
        warm_up: epochs with all labels first.
        epochs: at most so many passes over them; None: 3 on a GPU, 2 on a CPU.
        batch_size: of them in a step; None: 512 on a GPU, 128 on a CPU.
        lr: learning rate; None: .01 on a GPU, .02 on a CPU.
        lr_end: what of it is left at the end; it falls evenly, with every step.
        decay: weights shrink by lr * decay.
        per_row: one second moment a row: a third less memory and traffic, and wants a larger rate.
        patience: epochs without a better validation metric before stopping; 0 never stops.
        seed: of initial vectors, order, draws and the tree.
        device: `auto`, `cpu`, `cuda`.
        precision: `float32` or `bf16`.
    """
    given = {
        "leaves": leaves, "sampling": sampling, "negatives": negatives, "max_history": max_history,
        "batch_size": batch_size, "epochs": epochs, "lr": lr,
    }  # fmt: skip
    chosen = _chosen(given, device)
    _check(locals() | chosen)
    leaves, sampling, draws, most, size, epochs, lr = chosen.values()
    if sampling == "beam":  # a wider search would come by nodes that nothing was learned of
        draws = arity * beam
    _say_preset({n: chosen[n] for n in given if given[n] is None}, sampling)
    longest = int(train.histories.lengths.max(initial=1)) - 1
    length = max(1, min(most, longest))
    widest = max(beam, train.num_items) if leaves == "none" else beam
    shape = tree_build.shape_for(train.num_items, arity, widest, room)
    if shape.depth == 1 and (rounds > 1 or rectify != "none"):
        held = "" if leaves == "none" else f"a beam of {beam} holds all {train.num_items:,} items: "
        say(f"{held}no tree to learn or rectify for")
        rounds, rectify = 1, "none"
    given_estimate = None if estimator is None else _given_estimate(train, estimator, device)
    quick: dict[str, Any] = {}
    order = _order(train, leaves, shape, category, seed, device, quick)
    labels = None
    if rectify == "own":
        labels = Rectify(rectify, after=warm_up)
    elif rectify != "none":
        estimate = given_estimate or _quick_estimate(train, seed, device, quick)
        labels = Rectify(rectify, estimate, normalise, warm_up)
    generator = torch.Generator().manual_seed(seed)
    rows = sum(shape.level_sizes)
    scorer = random_din(rows, dim, windows_of(length), norm=norm, generator=generator)
    index = Tree(
        scorer,
        torch.from_numpy(tree_build.item_of(order, shape)),
        torch.ones(train.num_items, dtype=torch.bool),
        torch.tensor(arity),
        torch.tensor(shape.depth),
        torch.tensor(float(beam), dtype=torch.float64),
        torch.tensor(sampling == "siblings"),
    )
    loss = TreeLoss(objective, sampling, draws)
    reading = Reading(length, min_history, windows == "last", max_instances)
    learning = None
    if rounds > 1:
        learning = Rounds(starts_of(rounds, epochs), relearn, per_item, gap, deal, move)
    parts = Composition(
        Recent(torch.tensor(length)), scorer, index, loss, draws * shape.depth, proposes=False,
        shared=False, reading=reading, rounds=learning, rectify=labels,
    )  # fmt: skip
    settings = Settings(
        size, lr, decay, seed, precision, lr_end=lr_end, per_row=per_row,
        epochs=epochs, by_step=True, restart=restart,
    )  # fmt: skip
    return Job(parts, settings, Schedule(epochs, patience, device))


def _chosen(given: Mapping[str, Any], device: str) -> dict[str, Any]:
    """What was given, and where nothing was, what is right for the device."""
    preset = PRESET[pick_device(device).type]
    return {n: preset[n] if value is None else value for n, value in given.items()}


def _say_preset(taken: Mapping[str, Any], sampling: str) -> None:
    """What was taken because of the device; siblings, and what a beam sees, have their number."""
    counted = sampling in ("tree", "uniform")
    words = [f"{n}={v}" for n, v in taken.items() if n != "negatives" or counted]
    if words:
        say(f"for this device: {', '.join(words)}")


def _check(given: Mapping[str, Any]) -> None:
    """Refuse what makes no sense, before any work is done."""
    leaves = given["leaves"]
    if leaves not in LEAVES and not os.path.exists(leaves):
        raise SoftdexError(
            f"tree: there is no way to order leaves, and no saved tree, {leaves!r}. "
            f"{nearest(leaves, LEAVES)}"
        )
    if given["sampling"] in ("siblings", "beam") and given["objective"] == "softmax":
        raise SoftdexError(
            f"tree: {given['sampling']} is for objective='binary'. Use sampling='tree'."
        )
    if given["rounds"] > given["epochs"]:
        raise SoftdexError(
            f"tree: {given['rounds']} rounds need as many epochs, got {given['epochs']}."
        )
    if given["rectify"] != "none" and given["warm_up"] >= given["epochs"]:
        raise SoftdexError(
            f"tree: a warm_up of {given['warm_up']} epochs leaves none of {given['epochs']} for "
            "rectified labels. Give more epochs, or a smaller warm_up."
        )
    if given["rectify"] == "own" and given["objective"] == "softmax":
        raise SoftdexError("tree: rectify='own' is for objective='binary'. Use 'path'.")
    if given["leaves"] == "category" and given["category"] is None:
        raise SoftdexError("tree: leaves='category' needs category=, a column of the item table.")


def _order(
    train: Interactions,
    how: str,
    shape: tree_build.Shape,
    category: str | None,
    seed: int,
    device: str,
    quick: dict[str, Any],
) -> np.ndarray:
    """Items in the order of their leaves; a model that is trained for it is kept in `quick`."""
    if how == "none":
        return np.arange(train.num_items)
    if how == "random":
        return tree_build.random(train.num_items, seed=seed)
    if how == "category":
        assert category is not None
        return tree_build.by_category(categories(train, category), seed=seed)
    if how not in LEAVES:
        return _order_of(train, how)
    say(f"vectors of a quick {how} model first, for the leaves")
    if how == "factors":
        job: Any = rg(train, dim=64, epochs=4, seed=seed, device=device)
        loop.train(job, train)
    else:
        job = _sequence_model(train, seed, device, quick)
    vectors = job.scorer.items.weight.detach().float().cpu().numpy()
    return tree_build.by_vectors(vectors, shape, seed=seed)


def _order_of(train: Interactions, path: str) -> np.ndarray:
    """Items as they lie in a saved tree, those that it does not know behind them."""
    model = load(path)
    if not isinstance(model.index, Tree):
        raise SoftdexError(f"tree: leaves={path!r} is {model.recipe}, which has no tree.")
    lies = model.index.item_of.cpu().numpy()
    known = train.items.lookup(model.items.take(lies[lies >= 0]))
    known = known[known >= 0]
    if not len(known):
        raise SoftdexError(f"tree: the tree of leaves={path!r} has no item in common with the log.")
    say(f"the tree of {path} has {len(known):,} of {train.num_items:,} items")
    return np.append(known, np.setdiff1d(np.arange(train.num_items), known))


def _sequence_model(train: Interactions, seed: int, device: str, quick: dict[str, Any]) -> Any:
    """A quickly trained `sasrec`, once."""
    if "sequence" not in quick:
        job = sequence(
            train, dim=64, max_history=50, epochs=8, lr=0.003, patience=0, seed=seed,
            objective="ssm", index="uniform", negatives=1000, device=device,
        )  # fmt: skip
        loop.train(job, train)
        quick["sequence"] = job
    return quick["sequence"]


def _quick_estimate(train: Interactions, seed: int, device: str, quick: dict[str, Any]) -> Estimate:
    """What a quickly trained model says of how likely items are."""
    if "sequence" not in quick:
        say("a quick sequence model first, to rectify labels")
    job = _sequence_model(train, seed, device, quick)
    return estimate_by(job.encoder.eval(), job.scorer.eval())


def _given_estimate(train: Interactions, path: str, device: str) -> Estimate:
    """What a saved model says."""
    model = load(path)
    encoder: Any = model.encoder
    scorer: Any = model.index.scorer
    if not isinstance(encoder, Sequence):
        raise SoftdexError(f"tree: estimator={path!r} is {model.recipe}. Give a saved sasrec.")
    if model.items.sha256 != train.items.sha256:
        raise SoftdexError(
            f"tree: estimator={path!r} knows other items than the log. Fit it on it."
        )
    where = pick_device(device)
    return estimate_by(encoder.to(where).eval(), scorer.to(where).eval())
