"""Metrics, lists and a hash of every saved tensor of every recipe, fitted on a small log.

    python bench/fingerprints.py OUT.json                 # record
    python bench/fingerprints.py OUT.json BEFORE.json     # and compare with an earlier record

Run it before and after a change that should not move any number. On one machine and one thread a
fit is bit-identical for its seed, so a difference is a changed result: it belongs in the changelog.
The exit code is 1 if fits differ.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import tempfile
import time
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

os.environ["SOFTDEX_QUIET"] = "1"

import safetensors.torch
import torch

import softdex as sdx
from _harness import sized
from _options import parser, run, written

PARSER = parser(__file__, __doc__)
PARSER.add_argument("out", **written("fits.json"))
PARSER.add_argument("before", nargs="?", type=Path)
SMALL = {
    "dim": 16, "epochs": 3, "negatives": 20, "batch_size": 128, "hidden": 16, "latent": 8,
    "max_history": 10, "device": "cpu",
}  # fmt: skip
MORE: list[tuple[str, dict[str, Any]]] = [
    ("mf", {"encoder": "mix", "smooth": 0.2, "index": "imi_popularity", "refit_every": 5}),
    ("mf", {"encoder": "history", "features": "all", "index": "popularity", "per_row": True}),
    ("mf", {"objective": "softmax", "score": "dot_bias", "lr_end": 0.1}),
    ("mf", {"index": "kernel", "correct": "all", "precision": "bf16"}),
    ("mf", {"index": "auto", "ids": "drop", "features": "all"}),
    ("two_tower", {"objective": "bir", "index": "imi", "correction": "proposal", "block": 64}),
    ("two_tower", {"objective": "xir", "encoder": "mix", "cache_weight": "occurrence"}),
    ("two_tower", {"objective": "bir", "correction": "uniform", "own": "keep", "hits": "keep"}),
    ("vae", {"index": "imi_exact", "anneal": 20, "refit_every": 3}),
    ("vae", {"index": "uniform", "beta": 0.1}),
    ("sequence", {"objective": "ssm", "index": "imi_uniform", "refit_every": 3, "heads": 1}),
    ("sequence", {"objective": "bir", "positions": 64}),
    ("sequence", {"encoder": "dnn", "features": "all", "positions": 50}),
    ("rg", {"solver": "newton_cg", "encoder": "mix"}),
    ("rg", {"solver": "svd", "alpha": 0.0}),
    ("rg", {"beta": 0.5, "interaction": "frobenius", "sampled": 50, "steps": 0}),
    ("ials", {"reg": "sum_w", "steps": 0}),
    ("tree", {"beam": 10, "rounds": 2, "leaves": "random", "per_item": 8, "epochs": 3}),
    ("tree", {"beam": 10, "rectify": "path", "warm_up": 1, "sampling": "tree", "epochs": 2}),
    ("tree", {"beam": 10, "leaves": "category", "category": "category", "arity": 3}),
    ("tree", {"beam": 10, "rounds": 2, "relearn": "cluster", "deal": "greedy", "restart": True}),
    ("popular", {"half_life": 5.0}),
]  # fmt: skip


def fingerprint(name: str, options: dict[str, Any], parts: Any) -> dict[str, Any]:
    known = sdx.recipes.choices(name)
    idle = sdx.recipes.unread(name, sdx.recipes.options(name) | options)
    small = {n: v for n, v in SMALL.items() if n in known and n not in idle}
    began = time.perf_counter()
    model = sdx.fit(name, parts.train, valid=parts.valid, **small | options)
    result = model.evaluate(parts.test, k=(5, 20), index="both")
    users = parts.train.users.all().to_pylist()[:20]
    lists = model.recommend(users, k=10, unknown="popular").table
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.sdx"
        model.save(path)
        again = sdx.load(path).recommend(users, k=10, unknown="popular").table
        assert again.equals(lists), f"{name}: a loaded model answers otherwise"
        with zipfile.ZipFile(path) as archive:
            tensors = safetensors.torch.load(archive.read("tensors.safetensors"))
            manifest = json.loads(archive.read("manifest.json"))
    hashes = {n: digest(t) for n, t in sorted(tensors.items())}
    kept = {n: v for n, v in manifest.items() if n not in ("softdex", "tensors")}
    return {
        "metrics": dict(result),
        "lists": lists["item"].to_pylist(),
        "tensors": hashes,
        "manifest": kept,
        "seconds": round(time.perf_counter() - began, 2),
    }


def digest(tensor: torch.Tensor) -> str:
    flat = tensor.contiguous().reshape(-1).view(dtype=torch.uint8)
    return hashlib.sha256(flat.numpy()).hexdigest()[:16]


def main(given: Namespace) -> None:
    sdx.set_threads(1)
    world = sdx.synthetic.world(users=300, items=120, seed=3, events=12)
    log = dataclasses.replace(world.interactions(), item_table=world.item_table())
    parts = sdx.split.leave_last(log)
    cases = [(name, {"beam": 10} if name in TREES else {}) for name in sdx.recipes.names()] + MORE
    found = {}
    for name, options in sized(cases, cases[:3]):
        label = " ".join([name, *(f"{n}={v}" for n, v in options.items())])
        found[label] = fingerprint(name, options, parts)
    given.out.write_text(json.dumps(found, indent=1, default=str) + "\n")
    print(f"{len(found)} fits recorded in {given.out}")
    if given.before is not None:
        old, new = (json.loads(path.read_text()) for path in (given.before, given.out))
        sys.exit(compare(old, new) > 0)


TREES = ("dtr", "tdm", "jtm", "otm", "plt", "tree")


def compare(old: dict[str, Any], new: dict[str, Any]) -> int:
    """Print every fit whose metrics, lists or tensors differ; return how many do."""
    differ = 0
    for label in sorted(old.keys() | new.keys()):
        if label not in old or label not in new:
            print(f"{label}: only {'after' if label not in old else 'before'}")
            differ += 1
            continue
        parts = [
            p for p in ("metrics", "lists", "tensors", "manifest") if old[label][p] != new[label][p]
        ]
        if parts:
            differ += 1
            print(f"{label}: {', '.join(parts)} differ")
    print(f"{differ} of {len(old)} fits differ")
    return differ


if __name__ == "__main__":
    run(PARSER, main)
