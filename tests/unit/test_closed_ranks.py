"""Closed forms of several ranks: each solves its blocks, and all get the model of one process."""

from __future__ import annotations

import itertools
import json
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, multiprocessing

import softdex as sdx
from marks import slow
from softdex import group
from softdex.recipes.catalogue import make, options
from softdex.solve.closed import blocks

CPU: dict[str, Any] = {"device": "cpu"}
SWEEPS: dict[str, Any] = {"dim": 6, "epochs": 3, **CPU}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ials": ("ials", SWEEPS),
    "rg2": ("rg2", SWEEPS),
    "rg2, alpha = 0": ("rg2", SWEEPS | {"alpha": 0.0}),
    "rgx": ("rgx", SWEEPS),
    "rgx, alpha = 0": ("rgx", SWEEPS | {"alpha": 0.0}),
    "rgx as printed": ("rgx", SWEEPS | {"beta": 0.5, "interaction": "frobenius"}),
    "rgx exactly": ("rgx", SWEEPS | {"steps": 0}),
    "rg2 of one user": ("rg2", SWEEPS),
    "rg2 by its decomposition": ("rg2", {"dim": 6, "solver": "svd", "alpha": 0.0, **CPU}),
    "rgx by Newton": ("rgx", SWEEPS | {"solver": "newton_cg", "encoder": "mix"}),
    "item_cf": ("item_cf", {}),
    "popular": ("popular", {}),
}


class Found(NamedTuple):
    """A model: its tensors, its lists, and the losses and metrics of its training."""

    tensors: dict[str, Tensor]
    items: list[Any]
    records: list[dict[str, float]]


def log_of(case: str) -> sdx.Interactions:
    """A log with weights, some of whose users have no event; or a log of one user."""
    if case.endswith("one user"):
        return sdx.read([("ann", f"i{n}") for n in range(9)], quiet=True)
    log = sdx.synthetic.world(users=50, items=40, seed=1, events=8).interactions()
    return log.select(log.user > 4)


def fitted(case: str) -> Found:
    log, (recipe, options) = log_of(case), CASES[case]
    known = log.users.take(np.flatnonzero(log.user_counts))
    model = sdx.fit(recipe, log, quiet=True, **options)
    tensors = dict(model.encoder.state_dict()) | dict(model.index.scorer.state_dict())
    lists = model.recommend(known, k=4, exclude_seen=False)
    training = model.card.training or {"history": []}
    return Found(tensors, lists["item"].to_pylist(), training["history"])


def work(rank: int, ranks: int, folder: Path) -> None:
    """In each process: train all."""
    torch.set_num_threads(1)
    blocks.IN_TRANSIT = 20  # three rows of a table
    meeting = f"file://{folder / 'meeting'}"
    wait = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks, timeout=wait)
    for case in CASES:
        found = fitted(case)
        save_file(found.tensors, folder / f"{rank}.{case}.safetensors")
        (folder / f"{rank}.{case}.json").write_text(json.dumps(found[1:]))
    dist.destroy_process_group()


Trained = list[dict[str, Found]]
_TRAINED: dict[int, Trained] = {}


@pytest.fixture
def trained(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trained:
    """What each rank found; the group is started once."""
    if ranks not in _TRAINED:
        names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", names[0])
        multiprocessing.spawn(work, (ranks, tmp_path), ranks)
        _TRAINED[ranks] = [
            {
                case: Found(
                    load_file(tmp_path / f"{rank}.{case}.safetensors"),
                    *json.loads((tmp_path / f"{rank}.{case}.json").read_text()),
                )
                for case in CASES
            }
            for rank in range(ranks)
        ]
    return _TRAINED[ranks]


RANKS = pytest.mark.parametrize("ranks", [2, *slow(4)])


@RANKS
@pytest.mark.parametrize("case", CASES)
def test_the_model_is_that_of_one_process(trained: Trained, case: str) -> None:
    alone, (first, *others) = fitted(case), [found[case] for found in trained]
    ours, wanted = comparable(first.tensors, case), comparable(alone.tensors, case)
    assert ours.keys() == wanted.keys()
    for name, tensor in wanted.items():
        allowed = 1e-4 * max(1.0, float(tensor.abs().max()))
        assert torch.allclose(ours[name], tensor, rtol=0, atol=allowed), name
    assert first.items == alone.items
    for record, expected in zip(first.records, alone.records, strict=True):
        assert record == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for other in others:
        assert other.items == first.items
        assert other.records == first.records
        assert all(torch.equal(other.tensors[n], t) for n, t in first.tensors.items())


def comparable(tensors: dict[str, Tensor], case: str) -> dict[str, Tensor]:
    """The tensors and the scores; vectors of fewer users than dimensions may be mirrored."""
    wide = {name: t.double() for name, t in tensors.items()}
    if "vectors.weight" not in wide:
        return wide
    both = wide["vectors.weight"], wide["items.weight"]
    if case.endswith("one user"):
        return {"scores": both[0] @ both[1].T}
    return {**wide, "scores": both[0] @ both[1].T}


@RANKS
def test_the_blocks_of_ranks_have_about_equal_cost(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "size", lambda: ranks)
    lengths = np.random.default_rng(0).integers(0, 30, 200)
    edges = blocks.edges_by_cost(np.concatenate([[0], np.cumsum(lengths)]))
    cost = [(lengths[a:b] + blocks.ROW_COST).sum() for a, b in itertools.pairwise(edges)]
    assert edges[0] == 0
    assert edges[-1] == 200
    assert max(cost) - min(cost) <= 2 * (30 + blocks.ROW_COST)
    assert blocks.edges_by_cost(np.zeros(1, np.int64)) == [0] * (ranks + 1)


def test_a_rank_needs_memory_for_its_own_systems_only(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of("rg2")
    jobs = [make(name, log, options(name) | given) for name, given in map(CASES.get, TRAINED)]
    alone = [job.memory(log) for job in jobs]
    monkeypatch.setattr(group, "size", lambda: 4)
    assert all(job.memory(log) < most for job, most in zip(jobs, alone, strict=True))
