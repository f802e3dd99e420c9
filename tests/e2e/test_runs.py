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
from typer.testing import CliRunner

from marks import slow
from softdex.cli import main
from softdex.cli.app import app
from softdex.cli.demo import write_world
from softdex.solve.checkpoint import FILE, LOG

OPTIONS = ["--recipe", "ssm"]
for pair in ("dim=8", "negatives=20", "epochs=25", "patience=0", "device=cpu"):
    OPTIONS += ["-o", pair]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    write_world(place, users=300, items=100, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        done = CliRunner().invoke(app, ["fit", "clicks.parquet", "--out", "whole", *OPTIONS])
    assert done.exit_code == 0, done.output
    return place


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k != "SOFTDEX_QUIET"}
    return subprocess.Popen(
        [sys.executable, "-m", "softdex", *words],
        cwd=folder, env=environment | {"OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def softdex(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], loud: None
) -> Command:
    """Run a command in this process, another than the one that ended; its code and its errors."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "300")

    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["softdex", *words])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, capsys.readouterr().err

    return call


def refused(done: tuple[int, str]) -> str:
    """What a command said that ended with exit code 2."""
    assert done[0] == 2, done
    return done[1]


def wait_for_an_epoch(folder: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while not (folder / FILE).exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)


def test_a_killed_run_resumes_to_the_same_bytes(folder: Path, softdex: Command) -> None:
    process = start(folder, "fit", "clicks.parquet", "--out", "killed", *OPTIONS)
    wait_for_an_epoch(folder / "killed", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (folder / "killed" / "model.sdx").exists()
    again = softdex("fit", "clicks.parquet", "--out", "killed", *OPTIONS)
    assert "--resume" in refused(again)
    other = softdex("fit", "--out", "killed", "--resume", "-o", "lr=0.5")
    assert "another run" in refused(other)
    code, err = softdex("fit", "--out", "killed", "--resume")
    assert code == 0, err
    assert "resuming at epoch" in err
    models = [(folder / name / "model.sdx").read_bytes() for name in ("whole", "killed")]
    assert models[0] == models[1]
    assert not (folder / "killed" / FILE).exists()
    assert len((folder / "killed" / LOG).read_text().splitlines()) == 25


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 143), *slow((signal.SIGINT, 130))])
def test_a_stopped_run_says_how_to_go_on_and_does(
    folder: Path, sent: int, status: int, softdex: Command
) -> None:
    shutil.rmtree(folder / "stopped", ignore_errors=True)
    process = start(folder, "fit", "clicks.parquet", "--out", "stopped", *OPTIONS)
    wait_for_an_epoch(folder / "stopped", process)
    process.send_signal(sent)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status
    assert "softdex fit --out stopped --resume" in err
    assert "Traceback" not in err
    code, err = softdex("fit", "--out", "stopped", "--resume")
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
    code = (
        "import sys; from softdex.cli import main; place = sys.argv[1]\n"
        "for words in ['fit', 'clicks.parquet', '-r', 'popular', '--out'], ['evaluate']:\n"
        "    sys.argv[1:] = [*words, place]\n"
        "    try: main()\n"
        "    except SystemExit as ended: assert not ended.code"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "a\udc80b"],
        cwd=folder, env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"}, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"ndcg" in done.stdout
    assert (folder / "a\udc80b" / "model.sdx").exists()


def test_resume_without_a_folder_or_a_run_is_one_clear_error(softdex: Command) -> None:
    assert "--resume needs --out" in refused(softdex("fit", "--resume"))
    nowhere = softdex("fit", "--resume", "--out", "nowhere")
    assert "cannot read nowhere/config.toml" in refused(nowhere)
