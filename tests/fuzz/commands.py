"""Command lines: right and wrong ones of every command, on a small log and its models; on a full
disk, and stopped while they work."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Collection
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from harness import Partial

import softdex as sdx
from hostile import small_disk
from softdex.cli import main
from softdex.cli.app import COMMANDS, load

HOSTILE = [
    "", " ", "-", "--", "=", ",", "a=", "=b", "a=b=c", "0", "-1", "1", "3", "1e9", "9" * 30, "nan",
    "inf", "1.5", "true", "null", "[1]", "{}", '"', "'", "\n", "é", "\udc80", "u0001", "i0001",
    "nobody", "..", ".", "/", "/dev/null", "/no/such/file", "~", "*", "log.csv", "log.csv,log.csv",
    "model", "model/model.sdx", "plan.toml", "items.csv", "new.csv", "new.json", "x" * 300,
    "popular", "item_cf", "rg2", "dim=0", "dim=-1", "epochs=1", "seed=1", "category=c001", "10,20",
    "10,,20", "leave_last", "per_user", "random", "user", "item", "time", "2GB", "1", "drop",
]  # fmt: skip
QUICK = [["-r", "popular"], ["-r", "item_cf"], ["-r", "rg2", "-o", "dim=4", "-o", "epochs=1"]]
SURE = {
    "fit": ["log.csv", "--out", "new"],
    "compare": ["log.csv", "--recipes", "popular,item_cf", "--budget", "5"],
    "evaluate": ["model"],
    "recommend": ["model", "--user", "u01"],
    "similar": ["model", "i01"],
    "explain": ["model", "--user", "u01"],
    "export": ["model"],
    "recipes": [],
}
LONG = ("--tune", "--budget", "--users", "--items", "--threads")  # with a number, how much work


@functools.cache
def prepared() -> Path:
    """A folder with a log, an item table, a plan and a trained run."""
    folder = Path(tempfile.mkdtemp(prefix="softdex-fuzz-commands-"))
    world = sdx.synthetic.world(users=30, items=20, seed=5, events=8)
    log = world.interactions()
    pacsv.write_csv(log.to_arrow(), folder / "log.csv")
    table = world.item_table().add_column(0, "item", log.items.all())
    pacsv.write_csv(table.select(["item", "category"]), folder / "items.csv")
    (folder / "plan.toml").write_text('recipe = "popular"\n[data]\nsource = "log.csv"\n')
    with contextlib.chdir(folder):
        words = ["fit", "log.csv", "--items", "items.csv", "-r", "item_cf", "--out", "model"]
        code, said = call(words)
    assert code == 0, said
    return folder


def call(words: list[str]) -> tuple[int, str]:
    """The exit code of a command, run in this process, and what it said on standard error."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["softdex", *words]
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.argv = before
    if code == 0 and "--json" in words and "--help" not in words:
        json.loads(out.getvalue(), parse_constant=lambda name: 1 / 0)
    return code, err.getvalue()


def outcome(code: int, said: str) -> str:
    """What an exit code means, if what was said goes with it."""
    assert "Traceback" not in said, said
    assert code in (0, 2), f"exit code {code}: {said}"
    if code == 0:
        return "done"
    assert "error: " in said or "Error" in said, said
    assert said.count("error: ") <= 1, said
    assert len(said) < 8000, said[:500]
    return "refused"


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@functools.cache
def flags(name: str) -> list[tuple[str, bool]]:
    """The flags of a command, and whether a word follows each."""
    skip = ("--help", "--install-completion", "--show-completion")
    options = [p for p in load(name).params if p.param_type_name == "option"]
    return [(o, not p.is_flag) for p in options for o in p.opts if o not in skip]


def line(draw: Random) -> list[str]:
    """A command line: mostly a right one with hostile words in it."""
    name = draw.choice([name for name in COMMANDS if name != "demo"])  # trains for minutes
    if draw.random() < 0.03:
        return [draw.choice(HOSTILE), *draw.sample(HOSTILE, 2)]
    words = list(SURE.get(name, []))
    if name == "fit":
        words += draw.choice(QUICK)
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        flag, takes = draw.choice(flags(name))
        among = ["0", "-1", "1", "2", "x", "", "1e9", "9" * 30] if flag in LONG else HOSTILE
        words += [flag, draw.choice(among)] if takes else [flag]
    while words and draw.random() < 0.15:
        words[draw.randrange(len(words))] = draw.choice(HOSTILE)
    if words and draw.random() < 0.1:
        del words[draw.randrange(len(words))]
    return [name, *words]


def checked(words: list[str], code: int, before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """Refuse a file that is there in part; what is refused must leave the folder as it was."""
    names = sorted(name for name in after if after[name] != before.get(name))
    if code == 2 and after != before:
        raise Partial(f"{words} changed {names}, removed {before.keys() - after.keys()}")
    whole(names)


def whole(names: Collection[str]) -> None:
    """Read files that were written, each in the format of its name."""
    read: dict[str, Callable[[Path], object]] = {
        ".sdx": sdx.load,
        ".json": lambda path: json.loads(path.read_text()),
        ".jsonl": lambda path: list(map(json.loads, path.read_text().splitlines())),
        ".toml": lambda path: tomllib.loads(path.read_text(errors="surrogateescape")),
        ".csv": pacsv.read_csv,
        ".gz": pacsv.read_csv,
        ".parquet": pq.read_table,
        ".arrow": lambda path: pa.ipc.open_file(path).read_all(),
        ".html": lambda path: path.read_text().rstrip().endswith("</html>") or 1 / 0,
    }
    for name in names:
        path = Path(name)
        if path.suffix == ".part":
            raise Partial(f"{name} is left")
        if path.suffix in read:
            try:
                read[path.suffix](path)
            except Exception as error:
                raise Partial(f"{name} is not whole: {error!r}") from None


def commands(seed: int, folder: Path) -> str:
    """One command line; a refused one leaves the folder as it was."""
    draw = Random(seed)
    words = line(draw)
    place = folder / "place"
    shutil.copytree(prepared(), place)
    before = files(place)
    with contextlib.chdir(place):
        os.environ["COLUMNS"] = "200"
        code, said = call(words)
        checked(words, code, before, files(Path()))
    return outcome(code, said)


WRITING = [
    ["fit", "log.csv", "--force", "--out", "model", "-r", "popular"],
    ["fit", "log.csv", "--force", "--out", "model", "-r", "item_cf", "-o", "neighbours=3"],
    ["fit", "log.csv", "--out", "new", "-r", "rg2", "-o", "dim=4", "-o", "epochs=2"],
    ["fit", "log.csv", "--out", "new", "-r", "ssm", "-o", "dim=4", "-o", "epochs=9",
     "-o", "patience=0", "-o", "batch_size=16", "-o", "negatives=5"],
    ["fit", "log.csv", "--out", "new", "-r", "dtr", "-o", "dim=4", "-o", "epochs=2",
     "-o", "beam=5", "-o", "leaves=random", "-o", "max_history=5"],
    ["fit", "--config", "plan.toml", "--out", "new"],
    *(["recommend", "model", "--all", "--k", "20", "--out", f"old.{name}"]
      for name in ("csv", "parquet", "arrow", "jsonl", "csv.gz")),
    ["similar", "model", "--item", "i01", "--out", "old.csv"],
    ["compare", "log.csv", "--recipes", "popular,item_cf", "--out", "all", "--report", "old.html"],
]  # fmt: skip


def warm() -> None:
    """Prepare the folder, and write all once: the first time, code is compiled for a while."""
    with tempfile.TemporaryDirectory() as folder:
        old(Path(folder) / "place")
        for words in WRITING:
            shutil.rmtree(Path(folder) / "place" / "new", ignore_errors=True)
            with contextlib.chdir(Path(folder) / "place"):
                code, said = call(words)
            assert code == 0, said


def old(place: Path) -> dict[str, bytes]:
    """A copy of the prepared folder with outputs of an earlier run; its files."""
    shutil.copytree(prepared(), place)
    for name in ("csv", "parquet", "arrow", "jsonl", "csv.gz", "html"):
        (place / f"old.{name}").write_text("as it was")
    return files(place)


def full_disk(seed: int, folder: Path) -> str:
    """A command that writes, where no file can grow beyond some size."""
    draw = Random(seed)
    words = draw.choice(WRITING)
    before = old(folder / "place")
    size = draw.choice([0, 1, 100, 1000, 3000, 10_000, draw.randrange(20_000)])
    with contextlib.chdir(folder / "place"):
        with small_disk(size):
            code, said = call(words)
        after = files(Path())
        whole([name for name in after if name not in before])
        if code == 2:
            changed = {name for name in before if after.get(name) != before[name]}
            if words[0] == "compare" and "old.html" in changed:  # reports the recipe that failed
                whole(["old.html"])
                changed.remove("old.html")
            own = {"model/config.toml", "model/metrics.json", "model/model.sdx"}
            if changed and (changed != own or "model/metrics.json" in after):
                raise Partial(f"{words} changed {changed}")
        else:
            checked(words, code, before, after)
    return outcome(code, said)


def stopped(seed: int, folder: Path) -> str:
    """A command that writes, stopped by SIGTERM or Ctrl-C at any moment, and given again."""
    draw = Random(seed)
    words = draw.choice(WRITING)
    before = old(folder / "place")
    sent = draw.choice([signal.SIGTERM, signal.SIGINT])
    report = folder / "report.json"
    with contextlib.chdir(folder / "place"):
        pid = os.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                report.with_suffix(".began").touch()
                written = report.with_suffix(".part")
                written.write_text(json.dumps(call(words)))
                written.rename(report)
            except KeyboardInterrupt:  # outside of the command
                os._exit(0)
            finally:
                os._exit(0 if report.exists() else 3)
        while not report.with_suffix(".began").exists():
            time.sleep(1e-4)
        time.sleep(draw.choice([0.003, 0.03, 0.3]) * draw.random())
        os.kill(pid, sent)
        _, status = os.waitpid(pid, 0)
        after = files(Path())
        whole([name for name in after if after[name] != before.get(name)])
        if status == sent or not report.exists():
            assert status in (0, sent), f"ended with {status}"
            return "done"  # before or after the command
        code, said = json.loads(report.read_text())
        assert code in (0, 2, 130, 143), (code, said)
        assert "Traceback" not in said.partition("Exception ignored in")[0], said
        again = words
        if (Path("new") / "checkpoint.safetensors").exists():
            again = ["fit", "--out", "new", "--resume"]
        elif words[0] == "fit":
            again = [*words, "--force"]
        code, said = call(again)
        assert code == 0, (again, said)
        whole([name for name, raw in files(Path()).items() if raw != before.get(name)])
    return "done"


KINDS: dict[str, Callable[[int, Path], str]] = {
    "commands": commands,
    "full_disk": full_disk,
    "stopped": stopped,
}
