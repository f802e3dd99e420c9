"""Ranks that train together reach the loss curve and the lists of one process, up to rounding."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.marks import slow
from tests.unit.test_distributed import meet_at_home
from torch import multiprocessing

import softdex as sdx
from softdex.cli.app import main
from softdex.errors import SoftdexError
from softdex.solve.gradient.trainer import Trainer

SMALL = {"dim": 8, "epochs": 2, "seed": 3, "device": "cpu"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax", {"batch_size": 50}),
    "ssm": ("ssm", {"batch_size": 50, "index": "uniform", "negatives": 30}),
    "ssm, own draws of the multi-index": (
        "ssm",
        {"batch_size": 50, "index": "imi_exact", "codewords": 4, "negatives": 8, "refit_every": 3},
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
         "leaves": "random", "rounds": 2, "sampling": "tree", "norm": "layer"},
    ),
    "jtm, batch norm": (
        "jtm",
        {"batch_size": 32, "negatives": 3, "max_history": 4, "beam": 2, "leaves": "random",
         "rounds": 1, "sampling": "uniform", "norm": "batch", "epochs": 1},
    ),
}  # fmt: skip
SHARDED = ("ssm", "ssm, own draws of the multi-index", "bpr", "bir", "xir", "fastvae")
CASES |= {f"{n}, sharded": (CASES[n][0], CASES[n][1] | {"shard": True}) for n in SHARDED}
CASES["ssm, own draws of the multi-index, sharded"][1]["index"] = "imi_uniform"
BY_LOSS = ("jtm, batch norm",)  # a bias before a batch norm has no gradient but that of rounding
FAST = ("ssm", "xir", "xir, sharded", "dtr")
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
        "tables": training.get("tables"),
    }


STOPPED = {"epochs": 3, "batch_size": 8}


def stopped(folder: Path, rank: int) -> Found:
    """A run with sharded tables that the second rank is asked to stop at its 20th step."""
    steps, step = [], Trainer.step

    def counted(self: Trainer, at: torch.Tensor) -> None:
        steps.append(len(at))
        if rank == 1 and len(steps) == 20:
            signal.raise_signal(signal.SIGINT)
        step(self, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", counted)
        try:
            trained("ssm", folder, shard=True, **STOPPED)
        except KeyboardInterrupt:
            return {"steps": len(steps)}
    return {}


def commanded(folder: Path) -> Found:
    """What `softdex fit` prints, when it is given no folder, a folder, and that one again."""
    found = {}
    for name, out in (("new", "run"), ("again", "run"), ("wrong", "other")):
        options = ["epochs=1", "device=cpu"] if name != "wrong" else ["epochs=none"]
        words = ["fit", str(folder / "log.csv"), "--recipe", "ssm", "--out", str(folder / out)]
        words += [word for option in options for word in ("-o", option)]
        done = called(words)
        found[name] = done
    return found


def called(words: list[str]) -> list[Any]:
    """The exit code of a command in this process, and what it prints."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["softdex", *words])
        patch.delenv("SOFTDEX_QUIET", raising=False)
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return [code, out.getvalue(), err.getvalue()]


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
    if names == FAST:
        found["stopped"] = stopped(folder / "stopped", rank)
        found["command"] = commanded(folder)
        with pytest.raises(SoftdexError) as refused:
            trained("softmax", shard=True)
        found["refused"] = {"said": str(refused.value)}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def together(folder: Path, world: int, names: tuple[str, ...]) -> list[dict[str, Found]]:
    """What each rank of a group finds."""
    with pytest.MonkeyPatch.context() as patch:
        meet_at_home(patch)
        rows = [f"u{u},i{(u * 7 + 3 * n) % 25},{n}" for u in range(40) for n in range(6)]
        (folder / "log.csv").write_text("\n".join(["user,item,time", *rows]))
        multiprocessing.spawn(work, (folder, world, names), world)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Start each group once, with the cases that are asked of it."""
    made: dict[tuple[int, tuple[str, ...]], list[dict[str, Found]]] = {}

    def group(world: int, names: tuple[str, ...]) -> list[dict[str, Found]]:
        if (world, names) not in made:
            FOLDERS[world, names] = tmp_path_factory.mktemp("ranks")
            made[world, names] = together(FOLDERS[world, names], world, names)
        return made[world, names]

    return group


FOLDERS: dict[tuple[int, tuple[str, ...]], Path] = {}
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
    assert found["tables"] == ("sharded by row" if "sharded" in name else "replicated")
    assert alone["ranks"] is None
    assert found["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    if name in BY_LOSS:
        return
    assert found["metric"] == pytest.approx(alone["metric"], abs=1e-6)
    assert found["lists"] == alone["lists"]
    assert found["valid"] == pytest.approx(alone["valid"], abs=1e-6)


def test_ranks_stop_together_and_one_process_resumes_their_run(groups: Any, tmp_path: Path) -> None:
    ranks = groups(2, FAST)
    assert [rank["stopped"] for rank in ranks] == [{"steps": 32}] * 2
    resumed = trained("ssm", FOLDERS[2, FAST] / "stopped", resume=True, **STOPPED)
    whole = trained("ssm", tmp_path, **STOPPED)
    assert resumed["loss"] == pytest.approx(whole["loss"], rel=1e-4)
    assert resumed["lists"] == whole["lists"]


def test_tables_of_which_a_step_reads_all_rows_are_not_sharded(groups: Any) -> None:
    for rank in groups(2, FAST):
        assert "spreads tables of which a step reads some rows" in rank["refused"]["said"]


def test_the_command_writes_one_run_folder_and_the_first_rank_alone_prints(groups: Any) -> None:
    first, second = (rank["command"] for rank in groups(2, FAST))
    folder = FOLDERS[2, FAST]
    assert [code for code, *_ in first.values()] == [0, 2, 2]
    assert [code for code, *_ in second.values()] == [0, 2, 2]
    assert [said for _, *said in second.values()] == [["", ""]] * 3
    _, out, err = first["new"]
    assert "ndcg" in out
    assert f"saved {folder / 'run'}" in out
    assert "training on 2 ranks (cpu), tables replicated" in err
    assert "holds a model already" in first["again"][2]
    assert first["wrong"][2].count("\n") == 1
    assert {path.name for path in (folder / "run").iterdir()} == {
        "config.toml", "log.jsonl", "metrics.json", "model.sdx",
    }  # fmt: skip
    assert not (folder / "other").exists()
    assert sdx.load(folder / "run").card.training["ranks"] == 2  # type: ignore[index]


def torchrun(folder: Path, out: str, *words: str) -> subprocess.Popen[str]:
    """Start `softdex fit` on two ranks."""
    ranks = ["--nproc-per-node", "2", "--max-restarts", "2", "--standalone", "--local-addr"]
    ranks += ["localhost", "-m", "softdex"]
    fit = ["fit", str(folder / "log.csv"), "--recipe", "ssm", "--out", str(folder / out)]
    options = ["epochs=60", "patience=0", "batch_size=16", "device=cpu", "encoder=mix"]
    fit += [word for option in options for word in ("-o", option)]
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *ranks, *fit, *words],
        env=os.environ | {"OMP_NUM_THREADS": "1", "SOFTDEX_QUIET": ""},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def child(parent: int, rank: int) -> int:
    """The process of a rank."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            status = (path.parent / "status").read_text()
            given = path.read_text().split("\0")
        except OSError:
            continue
        if f"PPid:\t{parent}\n" in status and f"RANK={rank}" in given:
            return int(path.parent.name)
    raise AssertionError("the rank is gone")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_of_which_a_rank_is_killed_ends_with_the_model_that_it_should(
    tmp_path: Path, rank: int
) -> None:
    rows = [f"u{u},i{(u * 7 + 3 * n) % 25},{n}" for u in range(40) for n in range(6)]
    (tmp_path / "log.csv").write_text("\n".join(["user,item,time", *rows]))
    whole = torchrun(tmp_path, "whole")
    said, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, said
    killed = torchrun(tmp_path, "killed")
    while not (tmp_path / "killed" / "checkpoint.safetensors").exists():
        assert killed.poll() is None
        time.sleep(0.01)
    os.kill(child(killed.pid, rank), signal.SIGKILL)
    said, _ = killed.communicate(timeout=300)
    assert killed.returncode == 0, said
    assert re.search(r"resuming at epoch \d+", said)
    models = [(tmp_path / name / "model.sdx").read_bytes() for name in ("whole", "killed")]
    assert models[0] == models[1]
