"""TOML plans: hostile values and damaged text, fitted as a config file."""

from __future__ import annotations

import contextlib
import os
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import commands

import softdex as sdx
from softdex.data.split import SPLITS
from softdex.listing import listing
from softdex.options import fits, kinds
from softdex.plan import SECTIONS, read_config

HOSTILE = [
    "0", "-1", "1", "2", "3", "1.5", "-0.0", "1e-300", "1e300", "nan", "inf", "-inf", "true",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" + "0" * 40,
    "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", '""', '" "', '"x"', "'\\'", '"\\u0000"',
    '"\\u007f"', '"é"', '"\\U0001F600"', "[]", "[[]]", "[1, 2]", '["a", "b"]', '["log.csv"]', "{}",
    "{a = 1}", "{a = {b = []}}", "[nan]", "[1979-05-27]", '"/"', '"/dev/zero"', '"/dev/null"',
    '"/dev/stdin"', '"/dev/tty"', '"pipe"', '"."', '".."', '"**"', '"*"', '"log.csv"',
    '"items.csv"', '"model"', '"plan.toml"', '"2GB"', '"user"', '"item"', '"time"', '"error"',
    '"drop"', '"sum"', '"utf-16"', '"idna"', '"leave_last"', '"per_user"', '"random"', '"mean"',
    '"""' + "\n" * 9 + '"""', '"' + "x" * 3000 + '"', "[1000000, 5]", "1000", "[0]", "0.5", "0.99",
    "0x10", "1_000", '"popular"', '"item_cf"', '"rg2"', '"ssm"', "[10, 20]", "[100000000000]",
]  # fmt: skip
LISTS = ["[" * 90 + "]" * 90, "[" * 3000 + "]" * 3000]
VALUES = [(text, tomllib.loads(f"x = {text}")["x"]) for text in HOSTILE]
WORDS = ['"', "'", "[", "]", "=", ".", "#", "\n", "\x00", "\t", "{", "}", "\udc80", "é", "1", "a"]


def plan(draw: Random) -> dict[str, dict[str, str]]:
    """Sections of a plan that fits, with values as TOML writes them; "" is the top."""
    recipe, options = draw.choice([
        ("popular", {}),
        ("item_cf", {"neighbours": "3"}),
        ("rg2", {"dim": "4", "epochs": "1"}),
        ("ssm", {"dim": "4", "epochs": "1", "negatives": "3", "encoder": '"history"'}),
    ])  # fmt: skip
    return {
        "": {"recipe": f'"{recipe}"', "out": '"new"'},
        "data": {"source": '"log.csv"'},
        "split": {"name": f'"{draw.choice(["leave_last", "per_user"])}"'},
        "options": dict(options),
        "train": {},
        "evaluate": {"k": "[5, 10]"},
    }


def warm() -> None:
    """Prepare the folder."""
    commands.prepared()


def hostile_values(seed: int, folder: Path) -> str:
    """A plan with further entries and other values, mostly of the right type."""
    draw = Random(seed)
    made = plan(draw)
    if draw.random() < 0.3:
        made["split"]["name"] = f'"{draw.choice(list(SPLITS))}"'
    for _ in range(draw.choice([1, 1, 2, 3])):
        section = draw.choice(["", "data", "data", "split", "options", "train", "evaluate"])
        known = entries(section, made)
        name = draw.choice(list(known))
        fit = [text for text, value in VALUES if fits(value, known[name])]
        made[section][name] = draw.choice(fit if fit and draw.random() < 0.9 else HOSTILE + LISTS)
        if draw.random() < 0.05:
            made[section][draw.choice(["seed", "nope", "user"])] = draw.choice(HOSTILE)
    return tried(text_of(made), folder)


def entries(section: str, made: dict[str, dict[str, str]]) -> dict[str, Any]:
    """The entries that a section takes, with the kind of each."""
    recipe, split = made[""]["recipe"].strip('"'), made["split"]["name"].strip('"')
    if section == "options" and recipe in sdx.recipes.names():
        return sdx.recipes.kinds(recipe)
    if section == "split" and split in SPLITS:
        return {name: kind for name, kind in kinds(SPLITS[split]).items() if name != "log"}
    return SECTIONS[section] or {"seed": int} if section else {"recipe": str, "out": str}


def damaged_text(seed: int, folder: Path) -> str:
    """The text of a plan with some of it cut, doubled or replaced."""
    draw = Random(seed)
    text = text_of(plan(draw))
    for _ in range(draw.choice([1, 1, 2, 5])):
        a, b = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        if draw.random() < 0.7:
            b = min(b, a + 3)
        part = draw.choice(["", text[a:b] * 2, draw.choice(WORDS) * draw.choice([1, 2, 400])])
        text = text[:a] + part + text[b:]
    return tried(text, folder)


def long_names(seed: int, folder: Path) -> str:
    """Dotted names, nested tables and lists of tables, very many of them or very deep."""
    draw = Random(seed)
    deep = draw.choice([10, 300, 5000])
    more = draw.choice([
        ".".join("a" * deep) + " = 1", "[" + ".".join("a" * deep) + "]",
        "\n".join(f"[options.a{i}]" for i in range(deep)), "[[data]]\n" * deep,
        "a = " + "{a = " * deep + "1" + "}" * deep, "a = " + "[" * deep + "]" * deep,
        "a = " + "1" * deep, 'a = """' + '"' * deep, "\n".join(f"a{i} = {i}" for i in range(deep)),
        "[options]\n" + "a." * deep + "a = 1\n" + "a." * deep + "b = 1",
    ])  # fmt: skip
    text = text_of(plan(draw))
    return tried(draw.choice([f"{more}\n{text}", f"{text}\n{more}\n"]), folder)


def text_of(made: dict[str, dict[str, str]]) -> str:
    """The plan as TOML."""
    parts = []
    for section, entries in made.items():
        parts += [f"[{section}]"] if section else []
        parts += [f"{name} = {value}" for name, value in entries.items()]
    return "\n".join(parts) + "\n"


def tried(text: str, folder: Path) -> str:
    """Fit a plan. What a run writes says the same plan; a refused one leaves nothing behind."""
    place = folder / "place"
    shutil.copytree(commands.prepared(), place)
    (place / "plan.toml").write_bytes(text.encode(errors="surrogateescape"))
    os.mkfifo(place / "pipe")
    before = commands.files(place)
    with contextlib.chdir(place):
        code, said = commands.call(["fit", "--config", "plan.toml"])
        commands.checked(["fit"], code, before, commands.files(Path()))
        if code == 0:
            given = read_config(Path("plan.toml"))
            out = Path(given.get("out", f"runs/{given.get('recipe', listing().default)}"))
            sdx.load(out)
            assert same(read_config(out / "config.toml"), given)
    return commands.outcome(code, said)


def same(written: dict[str, object], given: dict[str, object]) -> bool:
    """Whether a plan that a run wrote holds what was given; it may say more."""
    for name, value in given.items():
        if isinstance(value, dict):
            if not same(written.get(name, {}), value):  # type: ignore[arg-type]
                return False
        elif name not in ("tune", "out") and written.get(name) != value:
            return False
    return True


KINDS: dict[str, Callable[[int, Path], str]] = {
    "hostile_values": hostile_values,
    "damaged_text": damaged_text,
    "long_names": long_names,
}
