"""Matrix factorisation by gradient descent: one table of users, one of items, many objectives."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from softdex.data.interactions import Interactions
from softdex.errors import SoftdexError
from softdex.objective.table import ON_DRAWS
from softdex.options import from_0_to_1, one_of, only
from softdex.recipes.compose import Sampling, Towers
from softdex.recipes.variant import Guide, Variant, first_line
from softdex.solve.gradient.feed import Events
from softdex.solve.gradient.trainer import Composition, Descent
from softdex.solve.gradient.training import Training

SPACE = {"lr": (0.002, 0.05), "temperature": (0.05, 0.3), "prior": [0.0, 0.5, 0.7, 1.0]}
PAIRWISE = {"temperature": 0.2, "prior": 1.0, "negatives": 20}
OPTIONS: dict[str, dict[str, Any]] = {  # of objectives on draws that differ from the defaults
    "bpr": PAIRWISE,
    "bce": {"score": "dot", "lr": 0.002, "negatives": 20, "decay": 0.1},
    "dns": PAIRWISE | {"negatives": 5},
    "self_adversarial": PAIRWISE,
}
SPACES = {
    **dict.fromkeys(("bpr", "dns", "self_adversarial"), SPACE | {"negatives": [5, 20, 100]}),
    "bce": {"lr": (0.0005, 0.05), "decay": (0.001, 1.0), "negatives": [5, 20, 100]},
}
WHAT = {
    "bpr": "the target above a draw (BPR)",
    "bce": "binary cross-entropy on draws",
    "dns": "the target above the hardest draw (DNS)",
    "self_adversarial": "draws weighted by their scores",
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
}  # fmt: skip
DRAWN = ("ssm", *ON_DRAWS)


def mf(
    train: Interactions,
    *,
    objective: Annotated[str, one_of("softmax", *DRAWN)] = "ssm",
    correct: Annotated[Literal["draws", "all"], only(objective="ssm")] = "draws",
    smooth: Annotated[float, from_0_to_1] = 0.0,
    towers: Towers = Towers(),
    sampling: Annotated[Sampling, only(objective=DRAWN)] = Sampling(),
    training: Training = Training(epochs=200),
) -> Descent:
    """Learn a vector per user and per item by a softmax, or by an objective that stands in for it.

    Args:
        objective: `softmax` (all items), `ssm` (sampled softmax), `bpr`, `bce`, `dns` or
            `self_adversarial`.
        correct: how `ssm` corrects for the proposal: `draws` or `all`.
        smooth: fraction of the events in which one of the ten items most similar to the target
            stands in for it.
    """
    size = training.batch_size or min(8192, max(128, len(train) // 64))
    if sampling.index == "full" and objective in ON_DRAWS:
        raise SoftdexError(f"mf: {objective} needs draws, so index='full' is not for it.")
    if objective != "softmax":
        sampling = sampling.chosen(train.num_items, towers.dim, size, training.device, objective)
    encoder, scorer = towers.build(train, training.seed)
    negatives = sampling.against(objective, scorer, train, correct=correct, seed=training.seed)
    parts = Composition(encoder, scorer, Events(train, smooth), negatives)
    return Descent(parts, replace(training, batch_size=size))
