"""Command lines: right and wrong ones of every command, on a small log and its models."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow.csv as pacsv

import softdex as sdx
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
        after = files(place)
    assert not [name for name in after if name.endswith(".part")], words
    if code == 2:
        assert after == before, (words, said, sorted(after.keys() ^ before.keys()))
    for name in after.keys() - before.keys():
        if name.endswith(".sdx"):
            sdx.load(place / name)
    return outcome(code, said)


KINDS: dict[str, Callable[[int, Path], str]] = {"commands": commands}
