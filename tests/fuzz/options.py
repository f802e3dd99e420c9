"""Hostile options of every recipe, on small logs: refused in one sentence, or a finite model."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import pyarrow as pa

import softdex as sdx
from softdex.options import notes, words_of

WHOLE = [1, 2, 3, 7, 40, 300, 0, -1, 2**12, 2**16, 2**20, 2**24, 2**31, 2**53, 2**62, 10**30]
NUMBERS = [0.0, 1.0, -1.0, 1e-300, 1e-45, 1e-12, 1e-4, 0.5, 0.999, 10.0, 1e3, 1e6, 1e9, 1e300]
ODD = [None, True, "", "x", [], [1], {}, float("nan"), float("inf"), b"x"]
LONG = {  # values between these train for long, and end well
    "epochs": (3, 2**31), "rounds": (3, 2**31), "layers": (3, 2**31), "steps": (300, 2**31),
    "dim": (300, 2**20), "hidden": (300, 2**20), "latent": (300, 2**20),
    "negatives": (2**12, 2**31),
}  # fmt: skip
SMALL = {
    "dim": 4, "hidden": 4, "latent": 2, "epochs": 1, "batch_size": 16, "negatives": 5,
    "max_history": 4, "device": "cpu", "beam": 5, "leaves": "random", "patience": 0,
}  # fmt: skip


@functools.cache
def log_of(which: int) -> sdx.Interactions:
    """A log: ordinary, with features, of hostile weights, without time, of one event."""
    world = sdx.synthetic.world(users=24, items=15, seed=2, events=6)
    log = world.interactions()
    ages = pa.table({"age": np.arange(log.num_users) % 7})
    log = replace(log, item_table=world.item_table(), user_table=ages)
    draw = np.random.default_rng(0)
    if which == 1:
        weights = draw.choice([1e-30, 1e-3, 1.0, 1e6, 1e30], len(log))
        return replace(log, weight=weights.astype(np.float32))
    if which == 2:
        return replace(log, time=None, item_table=None, user_table=None)
    if which == 3:
        return sdx.read([("ann", "tea", 1)], quiet=True)
    return log


def warm() -> None:
    """Make the logs, and train once: the first training imports for a while."""
    for which in range(4):
        log_of(which)
    sdx.fit("ssm", log_of(0), dim=2, epochs=1, device="cpu")


def hostile(kind: Any, name: str, draw: np.random.Generator) -> Any:
    """A value for an option of this annotation."""
    if draw.random() < 0.05:
        return ODD[draw.integers(len(ODD))]
    bare = get_args(kind)[0] if notes(kind) else kind
    inside = get_args(bare) if get_origin(bare) in (Union, type(int | None)) else (bare,)
    if words := words_of(kind):
        return words[draw.integers(len(words))]
    if bool in inside:
        return bool(draw.integers(2))
    if int in inside:
        most, least = LONG.get(name, (2**16, 0))
        among = [n for n in WHOLE if n <= most or n >= least]
        return among[draw.integers(len(among))]
    if float in inside:
        return NUMBERS[draw.integers(len(NUMBERS))]
    if get_origin(bare) is Literal:
        return get_args(bare)[draw.integers(len(get_args(bare)))]
    among = [None, "all", "x", "", ["x"], "/no/such/file"]
    return among[draw.integers(len(among))]


def read(recipe: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options without those of SMALL that the other ones make ineffective."""
    try:
        sdx.recipes.check_options(recipe, given)
    except sdx.SoftdexError:
        return given
    unread = sdx.recipes.unread(recipe, sdx.recipes.options(recipe) | given)
    return {name: v for name, v in given.items() if name not in unread or name not in SMALL}


def attempt(seed: int, folder: Path, recipes: list[str]) -> str:
    """Fit a recipe with one to three hostile options, use the model and save it."""
    draw = np.random.default_rng(seed)
    recipe = recipes[seed % len(recipes)]
    kinds, choices = sdx.recipes.kinds(recipe), sdx.recipes.choices(recipe)
    given = {name: value for name, value in SMALL.items() if name in choices}
    for name in draw.choice(choices, min(len(choices), int(draw.integers(1, 4))), replace=False):
        given[str(name)] = hostile(kinds[name], str(name), draw)
    log = log_of(int(draw.choice(4, p=[0.7, 0.15, 0.1, 0.05])))
    given = read(recipe, given)
    try:
        split = sdx.split.leave_last(log) if draw.random() < 0.3 and log.time is not None else None
        if split is None:
            model = sdx.fit(recipe, log, **given)
        else:
            model = sdx.fit(recipe, split.train, split.valid, **given)
    except sdx.SoftdexError:
        return "refused"
    found = model.recommend(model.users.all(), 3, exclude_seen=False, unknown="popular")
    assert np.isfinite(np.asarray(found["score"])).all(), f"{recipe} {given}: scores not finite"
    model.save(folder / "m.sdx")
    again = sdx.load(folder / "m.sdx")
    repeated = again.recommend(again.users.all(), 3, exclude_seen=False, unknown="popular")
    assert repeated.equals(found.table)
    return "done"


def closed(seed: int, folder: Path) -> str:
    """Recipes in closed form."""
    return attempt(seed, folder, ["popular", "item_cf", "ials", "rg2", "rg", "rgx"])


def gradient(seed: int, folder: Path) -> str:
    """Recipes of two towers and autoencoders."""
    rest = set(sdx.recipes.names()) - {"popular", "item_cf", "ials", "rg2", "rg", "rgx"}
    return attempt(seed, folder, sorted(rest - set(DEEP)))


def deep(seed: int, folder: Path) -> str:
    """Sequence models and trees."""
    return attempt(seed, folder, DEEP)


DEEP = ["sasrec", "sequence", "tree", "dtr", "tdm", "jtm", "otm"]
KINDS = {"closed": closed, "gradient": gradient, "deep": deep}
