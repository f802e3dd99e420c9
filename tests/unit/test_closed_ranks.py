"""Closed forms of several ranks: each solves its blocks, and all get the model of one process."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
from dataclasses import replace
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
from softdex.solve.closed.als import Sweeps

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
TURNED = ("rg2 of one user", "rg2 by its decomposition")  # the sign of a dimension is free


class Found(NamedTuple):
    """A model: its tensors, its lists, and the losses and metrics of its training."""

    tensors: dict[str, Tensor]
    items: list[Any]
    records: list[dict[str, float]]


def log_of(case: str) -> sdx.Interactions:
    """A log with weights, some of whose users have no event; or of one user, for one rank."""
    if case.endswith("one user"):
        return sdx.read([("ann", f"i{n}") for n in range(9)], quiet=True)
    log = sdx.synthetic.world(users=50, items=40, seed=1, events=8).interactions()
    weight = np.random.default_rng(0).integers(1, 4, len(log)).astype(np.float32)
    return replace(log, weight=weight).select(log.user > 4)


def fitted(case: str) -> Found:
    log, (recipe, options) = log_of(case), CASES[case]
    return found_in(sdx.fit(recipe, log, quiet=True, **options), log)


def found_in(model: sdx.Retriever, log: sdx.Interactions) -> Found:
    known = log.users.take(np.flatnonzero(log.user_counts))
    tensors = dict(model.encoder.state_dict()) | dict(model.index.scorer.state_dict())
    lists = model.recommend(known, k=4, exclude_seen=False)
    training = model.card.training or {"history": []}
    return Found(tensors, lists["item"].to_pylist(), training["history"])


def stopped(folder: Path, *, asked: bool = True) -> None:
    """Train until a process is asked to stop: while it solves for the users of the second sweep."""
    plain, calls = Sweeps.solve_users, 0

    def interrupted(self: Sweeps) -> None:
        nonlocal calls
        calls += 1
        if calls == 2 and asked:
            os.kill(os.getpid(), signal.SIGINT)
        plain(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sweeps, "solve_users", interrupted)
        with pytest.raises(KeyboardInterrupt):
            long(folder)


def long(folder: Path | None = None, *, resume: bool = False) -> Found:
    """A run with validation and checkpoints."""
    log = sdx.synthetic.world(users=50, items=40, seed=1, events=8).interactions()
    train, valid, _ = sdx.split.leave_last(log)
    model = sdx.fit("rgx", train, valid, folder=folder, resume=resume, quiet=True, **SWEEPS)
    return found_in(model, train)


def work(rank: int, ranks: int, folder: Path) -> None:
    """In each process: train all."""
    torch.set_num_threads(1)
    blocks.IN_TRANSIT = 20  # three rows of a table
    meeting = f"file://{folder / 'meeting'}"
    wait = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks, timeout=wait)
    for case in CASES:
        keep(fitted(case), folder, rank, case)
    keep(long(folder / "of one", resume=True), folder, rank, "resumed")
    stopped(folder / "of ranks", asked=rank == 1)
    dist.destroy_process_group()


def keep(found: Found, folder: Path, rank: int, name: str) -> None:
    save_file(found.tensors, folder / f"{rank}.{name}.safetensors")
    (folder / f"{rank}.{name}.json").write_text(json.dumps(found[1:]))


def kept(folder: Path, rank: int, name: str) -> Found:
    about = json.loads((folder / f"{rank}.{name}.json").read_text())
    return Found(load_file(folder / f"{rank}.{name}.safetensors"), *about)


class Trained(NamedTuple):
    """What each rank found by name, and where the run of all ranks was stopped."""

    found: list[dict[str, Found]]
    folder: Path


_TRAINED: dict[int, Trained] = {}


@pytest.fixture
def trained(ranks: int, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The group is started once."""
    if ranks not in _TRAINED:
        folder = tmp_path_factory.mktemp("ranks")
        stopped(folder / "of one")  # between users and items
        names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GLOO_SOCKET_IFNAME", names[0])
            multiprocessing.spawn(work, (ranks, folder), ranks)
        names = [*CASES, "resumed"]
        found = [{name: kept(folder, rank, name) for name in names} for rank in range(ranks)]
        _TRAINED[ranks] = Trained(found, folder)
    return _TRAINED[ranks]


RANKS = pytest.mark.parametrize("ranks", [2, *slow(4)])


@RANKS
@pytest.mark.parametrize("case", CASES)
def test_the_model_is_that_of_one_process(trained: Trained, case: str) -> None:
    first, *others = [found[case] for found in trained.found]
    check_same(first, fitted(case), turned=case in TURNED)
    for other in others:
        assert other.items == first.items
        assert other.records == first.records
        assert all(torch.equal(other.tensors[n], t) for n, t in first.tensors.items())


@RANKS
def test_ranks_resume_a_run_of_one_process_and_the_other_way_round(trained: Trained) -> None:
    whole = long()
    check_same(trained.found[0]["resumed"], whole)
    check_same(long(trained.folder / "of ranks", resume=True), whole)


def check_same(ours: Found, theirs: Found, *, turned: bool = False) -> None:
    """Compare vectors (unless they may be turned), scores, lists and records."""
    found, wanted = (comparable(each.tensors, turned) for each in (ours, theirs))
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        allowed = 1e-4 * max(1.0, float(tensor.abs().max()))
        assert torch.allclose(found[name], tensor, rtol=0, atol=allowed), name
    assert ours.items == theirs.items
    for record, expected in zip(ours.records, theirs.records, strict=True):
        assert record == pytest.approx(expected, rel=1e-4, abs=1e-5)


def comparable(tensors: dict[str, Tensor], turned: bool) -> dict[str, Tensor]:
    """All tensors, and the scores; only these if the vectors are turned."""
    wide = {name: t.double() for name, t in tensors.items()}
    if "vectors.weight" not in wide:
        return wide
    scores = {"scores": wide["vectors.weight"] @ wide["items.weight"].T}
    return scores if turned else wide | scores


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
    cases = CASES["rg2"], CASES["rgx by Newton"]
    jobs = [make(name, log, options(name) | given) for name, given in cases]
    alone = [job.memory(log) for job in jobs]
    monkeypatch.setattr(group, "size", lambda: 4)
    assert all(job.memory(log) < most for job, most in zip(jobs, alone, strict=True))
