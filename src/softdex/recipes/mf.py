"""Matrix factorisation by gradient descent: one table of users, one of items, many objectives."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from softdex.data.interactions import Interactions
from softdex.errors import SoftdexError
from softdex.objective.table import ON_DRAWS, OVER_ALL
from softdex.options import from_0_to_1, one_of, only
from softdex.recipes.compose import Sampling, Towers
from softdex.recipes.loss_numbers import WITH_USERS, LossNumbers
from softdex.recipes.variant import Guide, Variant, first_line
from softdex.solve.gradient.composition import Composition
from softdex.solve.gradient.feed import Events
from softdex.solve.gradient.trainer import Descent
from softdex.solve.gradient.training import Training

SPACE = {"lr": (0.002, 0.05), "temperature": (0.05, 0.3), "prior": [0.0, 0.5, 0.7, 1.0]}
PAIRWISE = {"temperature": 0.2, "prior": 1.0, "negatives": 20}
OPTIONS: dict[str, dict[str, Any]] = {  # of objectives on draws that differ from the defaults
    "bpr": PAIRWISE,
    "bce": {"score": "dot", "lr": 0.002, "negatives": 20, "decay": 0.1},
    "dns": PAIRWISE | {"negatives": 5},
    "self_adversarial": PAIRWISE,
    "warp": {"score": "dot", "lr": 0.003, "negatives": 50, "decay": 0.3},
    "pris": {"score": "dot", "lr": 0.003, "negatives": 20, "decay": 0.1},
    "sparsemax": {"index": "full", "score": "dot_bias", "lr": 0.0005},
}
DRAWS = {"negatives": [5, 20, 100]}
DOTS = DRAWS | {"lr": (0.0005, 0.05), "decay": (0.001, 1.0)}
SPACES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bpr", "dns", "self_adversarial"), SPACE | DRAWS),
    **dict.fromkeys(("bce", "pris"), DOTS),
    "warp": DOTS | {"margin": [0.3, 1.0, 3.0]},
    "sparsemax": {"lr": (0.0001, 0.01), "decay": (0.001, 1.0)},
}
WHAT = {
    "bpr": "the target above a draw (BPR)",
    "bce": "binary cross-entropy on draws",
    "dns": "the target above the hardest draw (DNS)",
    "self_adversarial": "draws weighted by their scores",
    "warp": "above the first draw too close (WARP)",
    "pris": "draws weighted by importance (PRIS)",
    "sparsemax": "a softmax with probabilities of 0",
}


def _guide(have: Literal["log", "large"], what: str) -> Guide:
    return Guide(have, what, "minutes", "encoder=mix", "features=", "yes")


VARIANTS = {
    "mf": Variant("Every objective on vectors of users and items.", space=SPACE),
    "softmax": Variant(
        "Vectors by the full softmax over all items: the best loss, its cost grows with the items.",
        {"objective": "softmax", "lr": 0.005, "batch_size": 4096}, ("objective",), SPACE,
        {}, _guide("log", "vectors by the softmax over all items"),
    ),
    "ssm": Variant(
        "Vectors by sampled softmax: nearly as good at a cost that does not grow. Start here.",
        {"objective": "ssm"}, ("objective",), SPACE,
        {}, _guide("large", "vectors by sampled softmax"),
    ),
    **{
        name: Variant(
            f"Vectors by `{name}`. {first_line(loss)}",
            {"objective": name, **OPTIONS.get(name, {})}, ("objective",), SPACES.get(name, SPACE),
            {}, _guide("log", WHAT.get(name, f"the loss {name} on draws")),
        )
        for name, loss in ON_DRAWS.items()
    },
    "aobpr": Variant(
        "Vectors by `bpr` against items that rank high on a factor that matters to the user.",
        {"objective": "bpr", "index": "factor_ranks", **PAIRWISE}, ("objective", "index"),
        SPACE | DRAWS | {"rank_scale": (50.0, 5000.0)},
        {}, _guide("log", "bpr against hard items (AOBPR)"),
    ),
    "uib": Variant(
        "Vectors by `uib`: targets above a boundary of the user's own, draws below it.",
        {"objective": "uib", "score": "dot", "lr": 0.003, "negatives": 20, "decay": 0.1},
        ("objective",), DOTS,
        {}, _guide("log", "targets above a learned boundary (UIB)"),
    ),
    "sml": Variant(
        "Points in the unit ball by `sml`: targets nearer than draws, by margins that are learned.",
        {"objective": "sml", "score": "euclidean", "lr": 0.005, "negatives": 20},
        ("objective", "score"),
        {"lr": (0.001, 0.05), "symmetry": (0.01, 1.0), "reward": (0.01, 0.5)},
        {}, _guide("log", "points by learned margins (SML)"),
    ),
}  # fmt: skip
DRAWN = ("ssm", *ON_DRAWS, *WITH_USERS)


def mf(
    train: Interactions,
    *,
    objective: Annotated[str, one_of("softmax", *DRAWN)] = "ssm",
    correct: Annotated[Literal["draws", "all"], only(objective="ssm")] = "draws",
    smooth: Annotated[float, from_0_to_1] = 0.0,
    towers: Towers = Towers(),
    numbers: LossNumbers = LossNumbers(),
    sampling: Annotated[Sampling, only(objective=DRAWN)] = Sampling(),
    training: Training = Training(epochs=200),
) -> Descent:
    """Learn a vector per user and per item by a softmax, or by an objective that stands in for it.

    Args:
        objective: `softmax` (all items), `ssm` (sampled softmax), `bpr`, `bce`, `dns`,
            `self_adversarial`, `warp`, `pris`, `sparsemax` (of draws, or of all items with
            index="full"), `uib`, or `sml` (with score="euclidean").
        correct: how `ssm` corrects for the proposal: `draws` or `all`.
        smooth: fraction of the events in which one of the ten items most similar to the target
            stands in for it.
    """
    size = training.batch_size or min(8192, max(128, len(train) // 64))
    if objective == "sml" and towers.score != "euclidean":
        raise SoftdexError(
            f"mf: sml compares distances, so score={towers.score!r} is not for it. Use "
            "score='euclidean'."
        )
    if sampling.index == "full" and objective not in OVER_ALL:
        raise SoftdexError(f"mf: {objective} needs draws, so index='full' is not for it.")
    if objective != "softmax":
        sampling = sampling.chosen(train.num_items, towers.dim, size, training.device, objective)
    encoder, scorer = towers.build(train, training.seed)
    negatives = sampling.against(
        objective, scorer, train, correct=correct, seed=training.seed, numbers=numbers
    )
    parts = Composition(encoder, scorer, Events(train, smooth), negatives)
    return Descent(parts, replace(training, batch_size=size))
