"""A file whose numbers would make scores that are not finite is refused, for every class of part;
such a model is neither returned nor saved."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hostile
import softdex as sdx
from softdex.model.kinds import KINDS
from softdex.recipes.popular import popular

SMALL = {"dim": 4, "epochs": 1, "device": "cpu"}
DEEP = {**SMALL, "max_history": 5}
TREE = {**DEEP, "leaves": "random", "beam": 5, "norm": "batch"}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {  # a model that has the part
    "anyone": ("popular", {}),
    "constant": ("popular", {}),
    "neighbours": ("item_cf", {}),
    "sparse": ("item_cf", {}),
    "users": ("ssm", SMALL),
    "cosine": ("ssm", SMALL),
    "mixed": ("mf", {**SMALL, "encoder": "mix", "score": "dot_bias"}),
    "dot": ("mf", {**SMALL, "encoder": "mix", "score": "dot_bias"}),
    "euclidean": ("sml", SMALL),
    "vae": ("mult_vae", {**SMALL, "hidden": 4, "latent": 2}),
    "sequence": ("sasrec", {**DEEP, "hidden": 4}),
    "dnn": ("sequence", {**DEEP, "encoder": "dnn"}),
    "foldin": ("rg2", SMALL),
    "recent": ("dtr", TREE),
    "din": ("dtr", TREE),
    "tree": ("dtr", TREE),
    "imi": ("bir", {**SMALL, "index": "imi"}),
    "flat": ("popular", {}),
    "uniform": ("rg2", SMALL),
    "popularity": ("rg2", SMALL),
    "kernel": ("rg2", SMALL),
}
NAN, INF, BIG, OVER = math.nan, math.inf, 2e8, "numbers beyond 1e\\+08, scores would overflow"
WRONG: list[tuple[str, str, float, str]] = [  # part, tensors, a value in them, the words
    ("constant", "scorer.weight", NAN, "scorer.weight: not finite"),
    ("neighbours", "encoder.values", 1e20, "its layers make numbers beyond 1e\\+16"),
    ("sparse", "scorer.fallback", INF, "scorer.fallback: not finite"),
    ("users", "encoder.vectors.weight", BIG, f"vectors.weight: {OVER}"),
    ("cosine", "scorer.items.weight", BIG, f"items.weight: {OVER}"),
    ("cosine", "scorer.temperature", 0.0, "the scorer's temperature is below 1e-08"),
    ("cosine", "scorer.temperature", 1e-45, "the scorer's temperature is below 1e-08"),
    ("cosine", "scorer.temperature", NAN, "scorer.temperature: not finite"),
    ("cosine", "scorer.prior", INF, "scorer.prior: not finite"),
    ("cosine", "scorer.prior", -3e38, f"prior: {OVER}"),
    ("mixed", "encoder.share", BIG, f"share: {OVER}"),
    ("mixed", "encoder.length", 0, "the encoder's length is below 1"),
    ("dot", "scorer.items.weight", -BIG, f"items.weight: {OVER}"),
    ("dot", "scorer.bias.weight", 1e30, f"bias.weight: {OVER}"),
    ("euclidean", "scorer.items.weight", NAN, "items.weight: not finite"),
    ("euclidean", "scorer.items.weight", BIG, f"items.weight: {OVER}"),
    ("vae", "encoder.bag.weight", BIG, f"bag.weight: {OVER}"),
    ("vae", "encoder.mix encoder.out", 9e7, "the encoder: its layers make numbers"),
    ("sequence", "encoder.norm", BIG, f"norm: {OVER}"),
    ("sequence", "encoder.attend encoder.mix", 9e7, "the encoder: its layers make numbers"),
    ("dnn", "encoder.second", 9e7, "the encoder: its layers make numbers"),
    ("dnn", "encoder.length", -1, "the encoder's length is below 1"),
    ("recent", "encoder.length", 0, "the encoder's length is below 1"),
    ("foldin", "encoder.vectors.weight", BIG, f"vectors.weight: {OVER}"),
    ("foldin", "encoder.total", -1.0, "encoder.total holds numbers below 0"),
    ("foldin", "encoder.total", 1e30, "the encoder: its layers make numbers"),
    ("foldin", "encoder.terms", -1.0, "belong to no loss that has a minimum"),
    ("din", "scorer.second_stats", -1.0, "the scorer holds a variance below 0"),
    ("din", "scorer.see", BIG, f"see: {OVER}"),
    ("din", "scorer.nodes.weight", 9e7, "the scorer: its layers make numbers"),
    ("din", "scorer.third scorer.last", 9e7, "the scorer: its layers make numbers"),
    ("tree", "index.effort", NAN, "slots, levels and nodes do not fit together"),
    ("imi", "index.words", BIG, f"words: {OVER}"),
    ("imi", "index.logw", -1e9, f"logw: {OVER}"),
    ("imi", "index.effort", NAN, "the index's cells or settings do not exist"),
    ("popularity", "index.power", 1e4, "no law of popularity has power=10000.0 and smooth=1.0"),
    ("popularity", "index.smooth", 0.0, "no law of popularity has power=1.0 and smooth=0.0"),
    ("kernel", "index.alpha", -1.0, "the index's alpha or block does not exist"),
    ("kernel", "index.gram", 1e30, "the index: its layers make numbers"),
]
WITHOUT_NUMBERS = {"anyone", "flat", "uniform"}


@functools.cache
def _log() -> sdx.Interactions:
    return sdx.synthetic.world(users=40, items=20, seed=1, events=6).interactions()


def model_with(part: str) -> sdx.Retriever:
    recipe, options = RECIPES[part]
    model = sdx.fit(recipe, _log(), **options)
    if part in ("popularity", "kernel"):
        counts = torch.from_numpy(model.item_counts.copy())
        given = {"counts": counts} if part == "popularity" else {}
        model.index = KINDS["index"][part](model.index.scorer, **given)
    return model


def spoilt(model: sdx.Retriever, name: str, value: float) -> Tensor:
    """The tensor with the value in its last place, or in all of a layer."""
    role, _, rest = name.partition(".")
    part = {"encoder": model.encoder, "scorer": model.index.scorer}.get(role)
    found = model.index.state() if part is None else part.state_dict()
    tensor = found[rest].clone()
    if value == 9e7:
        return torch.full_like(tensor, value)
    tensor.view(-1)[-1 if name != "encoder.terms" else 0] = value
    return tensor


def test_every_class_is_here() -> None:
    every = [pair for known in KINDS.values() for pair in known.items()]
    classes = {name for name, made in every if made.__module__.startswith("softdex.")}
    assert {part for part, *_ in WRONG} | WITHOUT_NUMBERS == classes == set(RECIPES)


@pytest.mark.parametrize(("part", "name", "value", "words"), WRONG)
def test_a_file_whose_scores_would_not_be_finite_is_refused(
    part: str, name: str, value: float, words: str, tmp_path: Path
) -> None:
    model, file = model_with(part), tmp_path / "m.sdx"
    model.save(file)
    assert sdx.load(file).recipe == model.recipe
    changed = {each.replace(".", "__"): spoilt(model, each, value) for each in name.split()}
    file.write_bytes(hostile.with_tensors(file, **changed))
    with pytest.raises(sdx.ArtifactError, match=words):
        sdx.load(file)


@pytest.mark.parametrize("value", [NAN, INF, 1e30])
def test_a_model_that_no_file_could_hold_is_not_saved(value: float, tmp_path: Path) -> None:
    model, file = model_with("dot"), tmp_path / "m.sdx"
    model.save(file)
    before = file.read_bytes()
    model.index.scorer.items.weight[0, 0] = value
    with pytest.raises(sdx.SoftdexError, match=r"^save: a file of this model could not be loaded "):
        model.save(file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("value", [-1, 2**60])
def test_counts_that_cannot_be_are_refused(value: int, tmp_path: Path) -> None:
    file = tmp_path / "m.sdx"
    model = model_with("anyone")
    model.save(file)
    counts = torch.from_numpy(model.item_counts.copy())
    counts[0] = value
    file.write_bytes(hostile.with_tensors(file, item_counts=counts))
    with pytest.raises(sdx.ArtifactError, match="item_counts holds numbers below 0 or beyond"):
        sdx.load(file)


@pytest.mark.parametrize("value", [NAN, INF])
def test_a_recipe_whose_parts_are_not_finite_gives_no_model(value: float) -> None:
    def own(train: sdx.Interactions) -> Any:
        encoder, scorer = popular(train)
        scorer.weight[0] = value
        return encoder, scorer

    with pytest.raises(sdx.SoftdexError, match=r"^fit: own with .* gave weight that are not fin"):
        sdx.fit(own, _log())
