"""Real processes: a run that is killed or interrupted goes on to the very same model."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from marks import slow
from softdex.cli import main
from softdex.cli.demo import write_world
from softdex.solve.checkpoint import FILE, LOG

OPTIONS = ["--recipe", "ssm"]
for pair in ("dim=8", "negatives=20", "epochs=25", "patience=0", "device=cpu"):
    OPTIONS += ["-o", pair]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    write_world(place, users=300, items=100, seed=0)
    run(place, "fit", "clicks.parquet", "--out", "whole", *OPTIONS)
    return place


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k != "SOFTDEX_QUIET"}
    return subprocess.Popen(
        [sys.executable, "-m", "softdex", *words],
        cwd=folder, env=environment | {"OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def run(folder: Path, *words: str) -> tuple[int, str, str]:
    process = start(folder, *words)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.fixture
def refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Run a command in this process and return its error; any end but exit code 2 fails."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "300")

    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["softdex", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    return call


def wait_for_an_epoch(folder: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while not (folder / FILE).exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)


def test_a_killed_run_resumes_to_the_same_bytes(folder: Path, refused: Callable[..., str]) -> None:
    process = start(folder, "fit", "clicks.parquet", "--out", "killed", *OPTIONS)
    wait_for_an_epoch(folder / "killed", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (folder / "killed" / "model.sdx").exists()
    assert "--resume" in refused("fit", "clicks.parquet", "--out", "killed", *OPTIONS)
    assert "another run" in refused("fit", "--out", "killed", "--resume", "-o", "lr=0.5")
    code, _, err = run(folder, "fit", "--out", "killed", "--resume")
    assert code == 0, err
    assert "resuming at epoch" in err
    models = [(folder / name / "model.sdx").read_bytes() for name in ("whole", "killed")]
    assert models[0] == models[1]
    assert not (folder / "killed" / FILE).exists()
    assert len((folder / "killed" / LOG).read_text().splitlines()) == 25


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 143), *slow((signal.SIGINT, 130))])
def test_a_stopped_run_says_how_to_go_on_and_does(folder: Path, sent: int, status: int) -> None:
    shutil.rmtree(folder / "stopped", ignore_errors=True)
    process = start(folder, "fit", "clicks.parquet", "--out", "stopped", *OPTIONS)
    wait_for_an_epoch(folder / "stopped", process)
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert "softdex fit --out stopped --resume" in err
    assert "Traceback" not in err
    code, _, err = run(folder, "fit", "--out", "stopped", "--resume")
    assert code == 0, err
    models = [(folder / name / "model.sdx").read_bytes() for name in ("whole", "stopped")]
    assert models[0] == models[1]


def test_an_interrupted_comparison_shows_what_has_finished(folder: Path) -> None:
    words = ("compare", "clicks.parquet", "--recipes", "popular,sasrec", "--out", "compared")
    process = start(folder, *words)
    assert process.stderr is not None
    assert any("training on" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.splitlines()[1].startswith("popular ")
    assert "sasrec: not trained (interrupted)" in out
    assert "The same command goes on." in err
    assert "Traceback" not in err
    assert (folder / "compared" / "popular" / "model.sdx").exists()


def test_a_run_folder_holds_config_log_metrics_and_model(folder: Path) -> None:
    names = {p.name for p in (folder / "whole").iterdir()}
    assert names == {"config.toml", "log.jsonl", "metrics.json", "model.sdx"}


def test_a_folder_whose_name_is_no_unicode_holds_a_run_like_any_other(folder: Path) -> None:
    for words in (["fit", "clicks.parquet", "-r", "popular", "--out"], ["evaluate"]):
        done = subprocess.run(
            [sys.executable, "-m", "softdex", *words, "a\udc80b"],
            cwd=folder, env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"}, capture_output=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert b"ndcg" in done.stdout


def test_resume_without_a_folder_or_a_run_is_one_clear_error(refused: Callable[..., str]) -> None:
    assert "--resume needs --out" in refused("fit", "--resume")
    assert "cannot read nowhere/config.toml" in refused("fit", "--resume", "--out", "nowhere")
