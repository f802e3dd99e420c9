"""Ranks that train together reach the loss curve and the lists of one process, up to rounding."""

from __future__ import annotations

import json
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

import softdex as sdx
from tests.marks import slow
from tests.unit.test_distributed import meet_at_home

SMALL = {"dim": 8, "epochs": 2, "seed": 3, "device": "cpu"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax", {"batch_size": 50}),
    "ssm": ("ssm", {"batch_size": 50, "index": "uniform", "negatives": 30}),
    "ssm, own draws of the multi-index": (
        "ssm",
        {"batch_size": 50, "index": "imi_uniform", "codewords": 4, "negatives": 8, "refit_every": 3},
    ),
    "bpr": ("bpr", {"batch_size": 50, "index": "popularity", "negatives": 5}),
    "bir": ("bir", {"batch_size": 50, "encoder": "mix", "block": 16}),
    "xir": ("xir", {"batch_size": 50}),
    "fastvae": (
        "fastvae",
        {"batch_size": 16, "index": "imi_popularity", "codewords": 4, "negatives": 20, "hidden": 8},
    ),
    "mult_vae": ("mult_vae", {"batch_size": 16, "hidden": 8, "max_history": 3}),
    "sasrec": ("sasrec", {"batch_size": 16, "hidden": 8, "layers": 1}),
    "sasrec, in-batch": (
        "sasrec", {"batch_size": 16, "hidden": 8, "objective": "xir", "positions": 20}
    ),
    "dtr": (
        "dtr",
        {"batch_size": 32, "negatives": 3, "max_history": 4, "arity": 2, "beam": 2,
         "leaves": "random", "rounds": 2, "sampling": "tree", "norm": "batch"},
    ),
}  # fmt: skip
FAST = ("ssm", "xir", "fastvae", "sasrec, in-batch", "dtr")
Found = dict[str, Any]


def log() -> tuple[sdx.Interactions, sdx.Holdout]:
    """A log of 60 users and 30 items, and what comes next for half of them."""
    rng = np.random.default_rng(0)
    taste = rng.dirichlet(np.full(30, 0.3), 60)
    rows = [
        (f"u{u}", f"i{i}", float(t))
        for u in range(60)
        for t, i in enumerate(rng.choice(30, 5 + u % 4, replace=False, p=taste[u] * 0.9 + 0.1 / 30))
    ]
    train, valid, _ = sdx.split.leave_last(sdx.read(rows, quiet=True))
    assert valid is not None
    return train, valid


def trained(name: str, folder: Path | None = None, **given: Any) -> Found:
    """The loss per epoch, the metric, and the lists of all users."""
    recipe, options = CASES[name]
    options = SMALL | options | given
    train, valid = log()
    model = sdx.fit(recipe, train, valid, folder=folder, quiet=True, **options)
    training = model.card.training
    assert training is not None
    lists = [[row["item"] for row in model.recommend(f"u{u}", k=5).to_pylist()] for u in range(9)]
    return {
        "loss": [record["loss"] for record in training["history"]],
        "metric": [record["metric"] for record in training["history"]],
        "lists": lists,
        "valid": dict(model.card.metrics["valid"]),
        "ranks": training.get("ranks"),
    }


def start_group(folder: Path, rank: int, world: int) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=world,
        timeout=timedelta(seconds=60),
    )  # fmt: skip


def work(rank: int, folder: Path, world: int, names: tuple[str, ...]) -> None:
    """In each process: every case."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start_group(folder, rank, world)
    found = {name: trained(name) for name in names}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def together(folder: Path, world: int, names: tuple[str, ...]) -> list[dict[str, Found]]:
    """What each rank of a group finds."""
    with pytest.MonkeyPatch.context() as patch:
        meet_at_home(patch)
        multiprocessing.spawn(work, (folder, world, names), world)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Start each group once, with the cases that are asked of it."""
    made: dict[tuple[int, tuple[str, ...]], list[dict[str, Found]]] = {}

    def group(world: int, names: tuple[str, ...]) -> list[dict[str, Found]]:
        if (world, names) not in made:
            made[world, names] = together(tmp_path_factory.mktemp("ranks"), world, names)
        return made[world, names]

    return group


REST = tuple(name for name in CASES if name not in FAST)


@pytest.mark.parametrize(
    ("world", "name"),
    [(2, name) for name in FAST]
    + slow(*((2, name) for name in REST), *((4, name) for name in CASES)),
)
def test_a_group_trains_the_model_of_one_process(groups: Any, world: int, name: str) -> None:
    names = tuple(CASES) if world == 4 else FAST if name in FAST else REST
    ranks = groups(world, names)
    alone = trained(name)
    assert all(rank[name] == ranks[0][name] for rank in ranks)
    found = ranks[0][name]
    assert found["ranks"] == world
    assert alone["ranks"] is None
    assert found["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    assert found["metric"] == pytest.approx(alone["metric"], abs=1e-6)
    assert found["lists"] == alone["lists"]
    assert found["valid"] == pytest.approx(alone["valid"], abs=1e-6)
