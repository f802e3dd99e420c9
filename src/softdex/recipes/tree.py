"""Trees: a search follows the best nodes of each level, scored by attention to the history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch

from softdex.data.interactions import Interactions
from softdex.encode.history import Recent
from softdex.errors import SoftdexError
from softdex.index.tree import build
from softdex.index.tree.deal import RULES
from softdex.index.tree.tree import Tree
from softdex.machine import pick_device
from softdex.messages import say
from softdex.options import (
    at_least_0,
    at_least_2,
    count,
    from_0_to_1,
    model_or,
    one_of,
    only,
    width,
)
from softdex.recipes.leaves import LEAVES, Quick, estimate_of, order_of_leaves
from softdex.recipes.variant import Guide, Variant
from softdex.score.din import NORMS, random_din, windows_of
from softdex.solve.gradient.composition import Composition, Decline, Negatives
from softdex.solve.gradient.feed import Windows
from softdex.solve.gradient.trainer import Descent
from softdex.solve.gradient.training import Training
from softdex.solve.tree.epochs import TreeEpochs
from softdex.solve.tree.loss import SAMPLINGS, TreeLoss
from softdex.solve.tree.rectify import KINDS, Rectify
from softdex.solve.tree.relearn import BY, Rounds, starts_of

ROUNDS = ("rounds", "relearn", "gap", "deal", "per_item", "move", "restart")
LABELS = ("rectify", "normalise", "estimator", "warm_up")
LR = {"lr": (0.002, 0.02)}
SPACE = {**LR, "negatives": [20, 70], "sampling": ["tree", "uniform"]}
PRESETS: dict[str, dict[str, Any]] = {  # a CPU sees fewer and shorter histories, to end sooner
    "cuda": {
        "leaves": "sequence", "sampling": "tree", "negatives": 70, "max_history": 69,
        "batch_size": 512, "epochs": 3, "lr": 0.01,
    },
    "cpu": {
        "leaves": "factors", "sampling": "uniform", "negatives": 20, "max_history": 20,
        "batch_size": 128, "epochs": 2, "lr": 0.02,
    },
}  # fmt: skip


def _variant(
    what: str, about: str, options: dict[str, Any], fixed: tuple[str, ...], space: dict[str, Any]
) -> Variant:
    speed: Literal["minutes", "hours"] = "hours" if options.get("beam") else "minutes"
    guide = Guide("deep", what, speed, "yes", "columns", "best")
    return Variant(about, options, fixed, space, PRESETS, guide)


BINARY = {"objective": "binary", "relearn": "binary"}
VARIANTS = {
    "tree": Variant(
        "Every way to train a tree of items, with every option.", {}, (), SPACE, PRESETS
    ),
    "dtr": _variant(
        "sampled softmax per level of the tree",
        "A tree of items searched by a beam, each level trained by a sampled softmax (DTR).",
        {"objective": "softmax"}, ("objective", "relearn"), SPACE,
    ),
    "tdm": _variant(
        "cross-entropy per level of the tree",
        "A tree of items searched by a beam, each level trained with binary cross-entropy (TDM).",
        {"objective": "binary", "sampling": "uniform", "negatives": 6, "relearn": "cluster"},
        ("objective", "sampling", "relearn", "gap", "deal", "per_item", *LABELS),
        {**LR, "negatives": [3, 6, 20]},
    ),
    "jtm": _variant(
        "tdm whose items move to better leaves",
        "TDM, and items move to better leaves in every round (JTM).",
        {**BINARY, "sampling": "uniform", "negatives": 6, "rounds": 2},
        ("objective", "sampling", "relearn", *LABELS),
        {**LR, "negatives": [3, 6, 20]},
    ),
    "otm": _variant(
        "a tree trained on what its beam visits",
        "A tree trained on the nodes that its beam search visits (OTM).",
        {**BINARY, "sampling": "beam", "beam": 50, "rectify": "own"},
        ("objective", "sampling", "negatives", "relearn", "rectify", "normalise", "estimator"),
        LR,
    ),
    "plt": _variant(
        "a probabilistic label tree",
        "A probabilistic label tree: a leaf's probability is the product along its path (PLT).",
        {**BINARY, "sampling": "siblings"},
        ("objective", "sampling", "negatives", "relearn", *LABELS),
        LR,
    ),
    "din": _variant(
        "no tree: every item is scored",
        "Every item is scored by attention to the history (DIN): what the trees approximate.",
        {"sampling": "uniform", "leaves": "none"},
        ("sampling", "leaves", "category", "arity", "beam", "room", *ROUNDS, *LABELS),
        {**LR, "negatives": [20, 70]},
    ),
}  # fmt: skip
IN_ROUNDS = only(rounds=range(2, 2**63))
ESTIMATED = only(rectify=("path", "child"))


def tree(
    train: Interactions,
    *,
    objective: Literal["softmax", "binary"] = "softmax",
    sampling: Annotated[str | None, one_of(*SAMPLINGS)] = None,
    leaves: Annotated[str | None, model_or(*LEAVES)] = None,
    category: Annotated[str | None, only(leaves="category")] = None,
    arity: Annotated[int, at_least_2] = 2,
    room: Annotated[float, from_0_to_1] = 0.0,
    beam: Annotated[int, count] = 150,
    dim: Annotated[int, width] = 24,
    norm: Annotated[str, one_of(*NORMS)] = "batch",
    negatives: Annotated[int | None, count, only(sampling=("tree", "uniform", None))] = None,
    max_history: Annotated[int | None, count] = None,
    min_history: Annotated[int, count] = 1,
    windows: Literal["all", "last"] = "all",
    max_instances: Annotated[int, at_least_0] = 0,
    rounds: Annotated[int, count] = 1,
    relearn: Annotated[str, one_of(*BY)] = "softmax",
    gap: Annotated[int, count, IN_ROUNDS] = 7,
    deal: Annotated[str, one_of(*RULES), IN_ROUNDS] = "auction",
    per_item: Annotated[int, count, IN_ROUNDS] = 64,
    move: Annotated[bool, IN_ROUNDS] = True,
    restart: Annotated[bool, IN_ROUNDS] = False,
    rectify: Annotated[str, one_of(*KINDS)] = "none",
    normalise: Annotated[bool, ESTIMATED] = False,
    estimator: Annotated[str | None, model_or(), ESTIMATED] = None,
    warm_up: Annotated[int, at_least_0, only(rectify=("path", "child", "own"))] = 0,
    training: Training = Training(epochs=None, lr=None, lr_end=0.05, patience=3),
) -> Descent:
    """Learn to score the nodes of a tree of items, so that a search visits few of them.

    Users need no vector of their own: every user with a history is served.

    Args:
        objective: of each level: `softmax` (sampled), or `binary` (cross-entropy per node).
        sampling: where a level's negatives come from: sampled walks down the tree (`tree`),
            `uniform` nodes of the level, the nodes that a `beam` search visits, or the `siblings`
            of the label (PLT). None: `tree` on a GPU, `uniform` on a CPU.
        leaves: how items are assigned to leaves: by clustering the vectors of a quickly trained
            `sequence` model or of `factors`, by `category`, or at `random`; the path of a saved
            tree takes its order. `none` has one level: every item is scored. None: `sequence` on a
            GPU, `factors` on a CPU.
        category: column of the item table, for leaves="category"; an item with several gets a
            random one of them.
        arity: children per node.
        room: free leaves for new items, as a fraction of the number of items.
        beam: nodes that a search keeps per level; the first level has a few more.
        dim: length of the node vectors.
        norm: of the layers: `none`, `layer` or `batch`.
        negatives: nodes per level and label. None: 70 on a GPU, 20 on a CPU.
        max_history: number of the latest items that are read. None: 69 on a GPU, 20 on a CPU.
        min_history: train only on items with at least this many earlier ones.
        windows: train on `all` items of a history, each from those before it, or on the `last`.
        max_instances: train on at most this many of them, drawn at random; 0: all.
        rounds: parts of the training; between two of them the tree is learned again.
        relearn: how it is learned: by the `softmax` or the `binary` scores of nodes for the
            histories before an item, or by a `cluster`ing of the leaf vectors.
        gap: levels per stage of the assignment.
        deal: rule of the assignment: `auction`, close to the optimum, or the papers' `greedy`.
        per_item: maximum number of histories per item that are scored for it.
        move: move the leaf vectors with their items.
        restart: start each round from the full learning rate.
        rectify: which labels count: all (`none`); those of an ancestor whose likeliest item is the
            target (`path`), or whose likelier child leads to it (`child`); or where the path leads
            through the best of siblings by the model's own scores (`own`).
        normalise: divide the labels of a level so that they sum to 1.
        estimator: path of a saved `sasrec` that says which item is likelier. None: one is quickly
            trained.
        warm_up: epochs with all labels first.
    """
    taken: dict[str, Any] = {"leaves": leaves, "sampling": sampling, "negatives": negatives}
    taken |= {"max_history": max_history, "batch_size": training.batch_size}
    taken |= {"epochs": training.epochs, "lr": training.lr}
    chosen = _chosen(taken, training.device)
    epochs = chosen["epochs"]
    training = replace(training, batch_size=chosen["batch_size"], epochs=epochs, lr=chosen["lr"])
    _check(locals() | chosen)
    leaves, sampling, draws = chosen["leaves"], chosen["sampling"], chosen["negatives"]
    if sampling == "beam":  # a wider search would visit nodes that were never trained
        draws = arity * beam
    _say_preset({n: chosen[n] for n in taken if taken[n] is None}, sampling)
    longest = int(train.histories.lengths.max(initial=1)) - 1
    length = max(1, min(chosen["max_history"], longest))
    one_level = isinstance(leaves, str) and leaves == "none"
    widest = max(beam, train.num_items) if one_level else beam
    shape = build.shape_for(train.num_items, arity, widest, room)
    if shape.depth == 1 and (rounds > 1 or rectify != "none"):
        held = "" if one_level else f"a beam of {beam} holds all {train.num_items:,} items: "
        say(f"{held}no tree to learn or rectify for")
        rounds, rectify = 1, "none"
    seed, device = training.seed, training.device
    given = None if estimator is None else estimate_of(train, estimator, device)
    quick = Quick(train, seed, device)
    order = order_of_leaves(leaves, quick, shape, category)
    labels = None
    if rectify == "own":
        labels = Rectify(rectify, after=warm_up)
    elif rectify != "none":
        labels = Rectify(rectify, given or quick.estimate(), normalise, warm_up)
    generator = torch.Generator().manual_seed(seed)
    rows = sum(shape.level_sizes)
    scorer = random_din(rows, dim, windows_of(length), norm=norm, generator=generator)
    index = Tree(
        scorer,
        torch.from_numpy(build.item_of(order, shape)),
        torch.ones(train.num_items, dtype=torch.bool),
        torch.tensor(arity),
        torch.tensor(shape.depth),
        torch.tensor(float(beam), dtype=torch.float64),
        torch.tensor(sampling == "siblings"),
    )
    learning = None
    if rounds > 1:
        learning = Rounds(starts_of(rounds, epochs), relearn, per_item, gap, deal, move)
    parts = Composition(
        Recent(torch.tensor(length)),
        scorer,
        Windows(
            train, length, least=min_history, last=windows == "last", most=max_instances, seed=seed
        ),
        Negatives(
            index, TreeLoss(objective, sampling, draws), draws * shape.depth, shared=False,
            proposes=False, recall=None,
        ),
        TreeEpochs(index, learning, labels),
        Decline(learning.starts if learning and restart else (), by_step=True),
    )  # fmt: skip
    return Descent(parts, training)


def _chosen(given: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The given options, those that are None as the device presets them."""
    preset = PRESETS[pick_device(device).type]
    return {n: preset[n] if value is None else value for n, value in given.items()}


def _say_preset(taken: Mapping[str, Any], sampling: str) -> None:
    """Say what the device decided; siblings and a beam have a number of their own."""
    counted = sampling in ("tree", "uniform")
    words = [f"{n}={v}" for n, v in taken.items() if n != "negatives" or counted]
    if words:
        say(f"for this device: {', '.join(words)}")


def _check(given: Mapping[str, Any]) -> None:
    """Refuse options that contradict each other, before any work is done."""
    rectify, epochs, leaves = given["rectify"], given["epochs"], given["leaves"]
    if given["sampling"] in ("siblings", "beam") and given["objective"] == "softmax":
        raise SoftdexError(
            f"tree: {given['sampling']} is for objective='binary'. Use sampling='tree'."
        )
    if given["rounds"] > epochs:
        raise SoftdexError(f"tree: {given['rounds']} rounds need as many epochs, got {epochs}.")
    if rectify != "none" and given["warm_up"] >= epochs:
        raise SoftdexError(
            f"tree: a warm_up of {given['warm_up']} epochs leaves none of {epochs} for rectified "
            "labels. Give more epochs, or a smaller warm_up."
        )
    if rectify == "own" and given["objective"] == "softmax":
        raise SoftdexError("tree: rectify='own' is for objective='binary'. Use 'path'.")
    if isinstance(leaves, str) and leaves == "category" and given["category"] is None:
        raise SoftdexError("tree: leaves='category' needs category=, a column of the item table.")
