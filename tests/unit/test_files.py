"""Run folders and disks: one run per folder, full disks, and places that only can be read."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import softdex as sdx
from hostile import small_disk
from softdex import compiled
from softdex.files import locked

SMALL = {"dim": 4, "epochs": 1, "patience": 0, "negatives": 5, "device": "cpu"}
TAKEN = "fit: another run is writing into {}. Wait until it ends, or choose another folder."
HOLDER = "import fcntl, os, sys, time; f = os.open(sys.argv[1], 0); fcntl.flock(f, 2); print(); "


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[bytes]:
    """Another process that holds the folder."""
    words = [sys.executable, "-S", "-c", HOLDER + "sys.stdout.flush(); time.sleep(60)"]
    process = subprocess.Popen([*words, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_second_run_into_a_folder_is_refused_until_the_first_is_killed(
    parts: sdx.Split, tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    with holder:
        with pytest.raises(sdx.SoftdexError) as caught:
            sdx.fit("ssm", parts.train, folder=tmp_path, **SMALL)
        assert str(caught.value) == TAKEN.format(tmp_path)
        assert list(tmp_path.iterdir()) == []
        holder.send_signal(signal.SIGKILL)
    sdx.fit("ssm", parts.train, folder=tmp_path, **SMALL)
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoint.safetensors", "log.jsonl"}


def test_a_thread_does_not_share_a_folder_but_a_run_may_hold_it_twice(tmp_path: Path) -> None:
    refused: list[str] = []

    def second() -> None:
        try:
            with locked(tmp_path):
                pass
        except sdx.SoftdexError as error:
            refused.append(str(error))

    with locked(tmp_path), locked(tmp_path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert refused == [TAKEN.format(tmp_path)]
    second()
    assert len(refused) == 1


def test_folders_made_for_a_run_that_leaves_nothing_are_removed(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path / "a" / "b"):
        (tmp_path / "a" / "left").touch()
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["left"]


def test_a_full_disk_leaves_the_old_checkpoint_and_no_part(
    parts: sdx.Split, tmp_path: Path
) -> None:
    sdx.fit("ssm", parts.train, folder=tmp_path, **SMALL)
    old = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with small_disk(1000), pytest.raises(sdx.ArtifactError, match=r"cannot write .* \(File too"):
        sdx.fit("ssm", parts.train, folder=tmp_path, **SMALL)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == old


READ_ONLY = """
from softdex.compiled import FALLBACK
from softdex.kernels.lanes import next_rows as kernel
from softdex.messages import say_if_compiling
say_if_compiling(kernel, "a step")
say_if_compiling(kernel, "another")
print(kernel.stats.cache_path.startswith(FALLBACK))
"""


def test_a_read_only_installation_and_home_keep_compiled_code_elsewhere(tmp_path: Path) -> None:
    source = compiled.PACKAGE.parent
    mount = f"mount --bind '{source}' '{source}' && mount -o remount,ro,bind '{source}' && exec "
    inside = ["unshare", "-rm", "sh", "-c", mount + '"$0" "$@"']
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a folder read-only")
    settings = {"HOME": str(source), "TMPDIR": str(tmp_path), "PYTHONPATH": str(source)}
    plain = {k: v for k, v in os.environ.items() if k not in ("SOFTDEX_QUIET", "XDG_CACHE_HOME")}
    words = [*inside, sys.executable, "-c", READ_ONLY]
    done = subprocess.run(words, env=plain | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\n"
    notes = [line for line in done.stderr.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: neither the installation nor the home folder can be written to, so compiled code "
        f"is kept in {tmp_path / f'softdex-{os.getuid()}'}; NUMBA_CACHE_DIR chooses another folder"
    ]


def test_a_folder_that_others_can_write_to_holds_no_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(compiled, "_can_write", lambda place: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = tmp_path / f"softdex-{os.getuid()}"
    assert compiled.folder() == str(own)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    own.chmod(0o777)
    other = Path(compiled.folder() or "")
    assert other != own
    assert stat.S_IMODE(other.stat().st_mode) == 0o700
