"""Model files, changed and sealed again: refused, or a model that works in every method."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.torch
import torch
from harness import Partial

import hostile
import softdex as sdx
from softdex.model.artifact import DIGEST, MEMBERS

SMALL = {"dim": 4, "epochs": 1, "device": "cpu"}
DEEP = {**SMALL, "batch_size": 64}
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("popular", {}),
    ("item_cf", {"neighbours": 4}),
    ("rg2", SMALL),
    ("ssm", {**DEEP, "negatives": 5}),
    ("mf", {**DEEP, "encoder": "mix", "score": "dot_bias", "negatives": 5}),
    ("mult_vae", {**DEEP, "hidden": 4, "latent": 2}),
    ("sasrec", {**DEEP, "hidden": 4, "max_history": 5}),
    ("sequence", {**DEEP, "encoder": "dnn", "max_history": 5}),
    ("tdm", {**DEEP, "max_history": 5, "leaves": "random", "beam": 5}),
    ("dtr", {**DEEP, "max_history": 5, "leaves": "random", "beam": 5, "norm": "batch"}),
    ("ssm", {**DEEP, "negatives": 5, "features": "all"}),
    ("bir", {**DEEP, "index": "imi"}),
    ("fastvae", {**DEEP, "hidden": 4, "latent": 2}),
    ("ssm", {**DEEP, "negatives": 5, "score": "cosine", "user_features": "all"}),
    ("rgx", SMALL),
    ("din", {**DEEP, "max_history": 5}),
]
NUMBERS = [0.0, -0.0, -1.0, 1e-45, 1e-30, 1e8, 1e19, 3e38, -3e38, np.inf, -np.inf, np.nan]
LIMITS = [1e-8, 1e-4, 1e4, 1e6, 9.9e7, -9.9e7]  # numbers that a file may hold
WHOLE = [0, 1, -1, 2, 7, 2**31 - 1, -(2**31), 2**40, 2**62, -(2**63)]
VALUES = [None, True, 0, -1, 10**30, 1e300, 1e-300, 0.5, "", "x", [], {}, [1, [2]], {"a": {}}]


@functools.cache
def world() -> tuple[sdx.Split, sdx.Interactions]:
    """A small split, and the log it was made of."""
    made = sdx.synthetic.world(users=30, items=20, seed=1, events=6)
    log = made.interactions()
    ages = np.arange(log.num_users) % 7
    people = pa.table({"age": ages, "town": [f"town {age % 2}" for age in ages]})
    log = replace(log, item_table=made.item_table(), user_table=people)
    return sdx.split.leave_last(log), log


@functools.cache
def saved(which: int) -> Path:
    """A model that was saved."""
    recipe, options = MODELS[which]
    path = Path(tempfile.mkdtemp(prefix="softdex-fuzz-model-")) / "m.sdx"
    sdx.fit(recipe, world()[0].train, **options).save(path)
    return path


def warm() -> None:
    """Save every model."""
    for which in range(len(MODELS)):
        saved(which)


def tried(raw: bytes, folder: Path) -> str:
    """Load and use a file."""
    file = folder / "m.sdx"
    file.write_bytes(raw)
    try:
        model = sdx.load(file)
    except sdx.ArtifactError:
        return "refused"
    for use in USES:
        try:
            use(model)
        except sdx.SoftdexError:
            continue
    try:
        model.save(folder / "again.sdx")
    except sdx.SoftdexError:
        if list(folder.iterdir()) != [file]:
            raise Partial("a model that was not saved left a file") from None
        return "refused"
    again = sdx.load(folder / "again.sdx")
    try:
        expected = model.recommend(model.users.all(), 3, unknown="popular")
    except sdx.SoftdexError:
        return "done"
    assert again.recommend(model.users.all(), 3, unknown="popular").equals(expected.table)
    return "done"


def recommends(model: sdx.Retriever) -> None:
    table = model.recommend(model.users.all(), 3, exclude_seen=False, unknown="popular")
    finite(table["score"])
    assert table._repr_html_()


def answers_histories(model: sdx.Retriever) -> None:
    keys = model.items.all().to_pylist()
    finite(model.recommend(history=[keys[:1], keys[:9]], k=len(keys), unknown="skip")["score"])


def finds_similar(model: sdx.Retriever) -> None:
    finite(model.similar(model.items.all().to_pylist()[:5], 4)["score"])


def gives_vectors(model: sdx.Retriever) -> None:
    finite(model.query_vectors(model.users.all().to_pylist()))


def gives_probabilities(model: sdx.Retriever) -> None:
    logp = model.log_prob(model.users.all().to_pylist())
    alive = model.index.alive.numpy()
    finite(logp[:, alive])
    best = model.recommend(model.users.all(), 1, exclude_seen=False, unknown="popular")["score"]
    if abs(np.asarray(best)).max() < 1e3:  # float32 has no more digits for larger scores
        assert np.allclose(np.exp(logp.astype(float)).sum(1), 1, atol=1e-2)
    for _, block in model.distributions(model.users.all().to_pylist()):
        finite(block[:, alive])


def calibrates(model: sdx.Retriever) -> None:
    valid = world()[0].valid
    assert valid is not None
    finite([model.calibrate(valid)])


def measures(model: sdx.Retriever) -> None:
    finite([float(model.evaluate(world()[0].test, 5)["ndcg@5"])])


def grows(model: sdx.Retriever) -> None:
    model.remove_items(model.items.all().to_pylist()[:1])
    keys = model.users.all().to_pylist()[:3]
    model.add_items(sdx.read([(key, "new one") for key in keys], quiet=True))
    recommends(model)


def takes_users(model: sdx.Retriever) -> None:
    keys = model.items.all().to_pylist()[:3]
    model.add_users(sdx.read([("new one", key) for key in keys], quiet=True))
    recommends(model)


def changes_its_index(model: sdx.Retriever) -> None:
    model.build_index("imi", codewords=2)
    recommends(model)


USES: list[Callable[[sdx.Retriever], None]] = [
    recommends,
    answers_histories,
    finds_similar,
    gives_vectors,
    gives_probabilities,
    measures,
    calibrates,
    changes_its_index,
    grows,
    takes_users,
]


def finite(numbers: Any) -> None:
    numbers = np.asarray(numbers, np.float64)
    assert np.isfinite(numbers).all(), f"not finite: {numbers[~np.isfinite(numbers)][:3]}"


# inputs ------------------------------------------------------------------------------------------


def bits(seed: int, folder: Path) -> str:
    """Other bytes in a member, or in the archive itself."""
    draw = np.random.default_rng(seed)
    path = saved(seed % len(MODELS))
    member = draw.choice([*MEMBERS, "all"])
    raw = bytearray(path.read_bytes() if member == "all" else hostile.members(path)[member])
    for _ in range(draw.integers(1, 5)):
        place = int(draw.integers(len(raw) - (DIGEST if member == "all" else 0)))
        raw[place] ^= 1 << int(draw.integers(8))
    if member == "all":
        return tried(hostile.sealed(bytes(raw)), folder)
    return tried(hostile.changed(path, **{member.partition(".")[0]: bytes(raw)}), folder)


def numbers(seed: int, folder: Path) -> str:
    """Other numbers in some tensors."""
    draw = np.random.default_rng(seed)
    tensors = tensors_of(saved(seed % len(MODELS)))
    changed = {}
    for name in draw.choice(sorted(tensors), draw.integers(1, 4)):
        tensor, flat = tensors[name], tensors[name].reshape(-1)
        if not len(flat):
            continue
        places = draw.integers(len(flat), size=draw.choice([1, 3, len(flat)]))
        among = NUMBERS if tensor.is_floating_point() else WHOLE
        if tensor.is_floating_point() and draw.random() < 0.3:
            flat *= float(draw.choice([1e-30, 1e10, 1e19, 1e30, -1]))
        value = among[draw.integers(len(among))]
        flat[torch.from_numpy(places)] = torch.tensor(value).to(tensor.dtype)
        changed[name.replace(".", "__")] = tensor
    return tried(hostile.with_tensors(saved(seed % len(MODELS)), **changed), folder)


def limits(seed: int, folder: Path) -> str:
    """Numbers near what a file may hold, in several tensors at once."""
    draw = np.random.default_rng(seed)
    tensors = tensors_of(saved(seed % len(MODELS)))
    names = [name for name, tensor in sorted(tensors.items()) if tensor.is_floating_point()]
    changed = {}
    for name in draw.permutation(names)[: draw.choice([1, 2, len(names)])]:
        value, sign = LIMITS[draw.integers(len(LIMITS))], draw.choice([1, -1], tensors[name].shape)
        signs = torch.from_numpy(np.asarray(sign if draw.random() < 0.5 else np.ones_like(sign)))
        changed[name.replace(".", "__")] = (signs * value).to(tensors[name].dtype)
    return tried(hostile.with_tensors(saved(seed % len(MODELS)), **changed), folder)


def shapes(seed: int, folder: Path) -> str:
    """Tensors that are longer, shorter, turned, of another type, or missing."""
    draw = np.random.default_rng(seed)
    path = saved(seed % len(MODELS))
    tensors = tensors_of(path)
    name = str(draw.choice(sorted(tensors)))
    tensor = tensors[name]
    ways: list[Callable[[], torch.Tensor | None]] = [
        lambda: None,
        lambda: tensor[:-1] if tensor.ndim else tensor[None],
        lambda: torch.cat([tensor, tensor]) if tensor.ndim else tensor[None],
        lambda: tensor[:0] if tensor.ndim else tensor[None],
        lambda: tensor.T.contiguous() if tensor.ndim == 2 else tensor[None],
        lambda: tensor.double() if tensor.is_floating_point() else tensor.to(torch.int16),
        lambda: tensor[..., :-1].contiguous() if tensor.ndim else tensor[None],
    ]
    changed = ways[draw.integers(len(ways))]()
    return tried(hostile.with_tensors(path, **{name.replace(".", "__"): changed}), folder)


def manifests(seed: int, folder: Path) -> str:
    """Other entries in the manifest, at any depth."""
    draw = np.random.default_rng(seed)
    path = saved(seed % len(MODELS))
    manifest = json.loads(hostile.members(path)["manifest.json"])
    words = ["flat", "imi", "tree", "dot", "cosine", "users", "foldin", "sequence"]
    for _ in range(draw.integers(1, 3)):
        here = manifest
        name = str(draw.choice(sorted(here)))
        while isinstance(here[name], dict) and here[name] and draw.random() < 0.7:
            here = here[name]
            name = str(draw.choice(sorted(here)))
        among = [*VALUES, *words, ...]
        value = among[draw.integers(len(among))]
        if value is ...:
            del here[name]
        else:
            here[name] = deepcopy(value)  # the next round may change what it holds
        if not here:
            break
    extra = {"temperature": 1e-4, "added": {"users": 2**70}, "removed": -5, "drift": 1e308}
    if draw.random() < 0.2:
        name = str(draw.choice(sorted(extra)))
        manifest[name] = extra[name]
    raw = json.dumps(manifest).encode()
    return tried(hostile.changed(path, manifest=raw), folder)


def tables(seed: int, folder: Path) -> str:
    """Other keys and columns of users and items."""
    draw = np.random.default_rng(seed)
    path = saved(seed % len(MODELS))
    member = str(draw.choice(["users", "items"]))
    rows = json.loads(hostile.members(path)["manifest.json"])[member]
    columns: list[pa.Array] = [
        pa.array(np.arange(rows)),
        pa.array(np.zeros(rows, int)),
        pa.array([f"k{i}" for i in range(rows)]),
        pa.array([None] * rows, pa.string()),
        pa.array(np.where(np.arange(rows) % 2, np.nan, np.inf)),
        pa.array([b"\xff"] * rows),
        pa.array([[i] for i in range(rows)]),
        pa.array([{"a": i} for i in range(rows)]),
        pa.array(np.arange(rows) * 10**12, pa.timestamp("us")),
        pa.array([""] * rows),
        pa.array([True] * rows),
    ]
    names = ["key", *draw.choice(["user", "rank", "item", "score", "key", "genre", ""], 2)]
    some = names[: 1 + int(draw.integers(3))]
    table = pa.Table.from_arrays([columns[draw.integers(len(columns))] for _ in some], some)
    return tried(hostile.with_table(path, member, table), folder)


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load(hostile.members(path)["tensors.safetensors"])


KINDS = {
    "bits": bits,
    "numbers": numbers,
    "limits": limits,
    "shapes": shapes,
    "manifests": manifests,
    "tables": tables,
}
