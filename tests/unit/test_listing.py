"""What the command line and type checkers know of recipes without importing them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from mypy import api as mypy

import softdex as sdx
from marks import slow
from softdex import recipes
from softdex.cli.recipes import table
from softdex.listing import listing
from softdex.recipes.catalogue import DEFAULT, FUNCTIONS, guides

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "dim": 4, "hidden": 4, "latent": 2, "heads": 1, "epochs": 1, "batch_size": 64, "negatives": 4,
    "max_history": 5, "beam": 4, "max_instances": 64, "device": "cpu",
}  # fmt: skip
QUICK = ("popular", "item_cf", "ials", "rg2", "ssm", "mult_vae", "sasrec", "ssl", "tdm")
OTHERS = [name for name in recipes.methods() if name not in QUICK]
USES = """
from pathlib import Path
from softdex.typed import fit
def use(log: object, name: str, given: dict[str, object]) -> None:
    {call}
"""


def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write", ROOT / "tools" / "write_recipes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_written_of_recipes_is_what_they_say() -> None:
    for path, text in writer().FILES.items():
        assert path.read_text() == text(), f"run python tools/write_recipes.py: {path.name} is old"


def test_a_type_checker_knows_the_options_of_each_recipe(tmp_path: Path) -> None:
    right = (
        'fit("rg2", log, dim=64, alpha=1)',
        'fit("ssm", log, None, score="dot", features=["genre"], max_memory="2GB")',
        'fit("popular", log, half_life=None, folder=Path("x"))',
        "fit(name, log)",
        "fit(use, log, whatever=3)",
    )
    wrong = (
        'fit("rg2", log, dmi=64)',
        'fit("rg2", log, dim="64")',
        'fit("rg2", log, beta=1.0)',  # it is what makes it rg2
        'fit("ssm", log, score="dots")',
        'fit("item_cf", log, dim=8)',
        'fit("no_such", log, dim=8)',
    )
    paths = [tmp_path / f"use_{i}.py" for i in range(len(right + wrong))]
    for path, call in zip(paths, right + wrong, strict=True):
        path.write_text(USES.format(call=call))
    out, err, _ = mypy.run(
        ["--follow-imports=skip", "--no-incremental", "--ignore-missing-imports", *map(str, paths)]
    )
    assert not err
    refused = [path.name in out for path in paths]
    assert refused == [False] * len(right) + [True] * len(wrong), out


def test_the_table_of_recipes_has_each_method_once_and_fits_a_screen() -> None:
    lines = table().splitlines()
    assert len(lines) <= 52
    assert max(map(len, lines)) <= 100
    first = [line.split()[0] for line in lines if line]
    assert {"speed", "new", "cold", "GPU"} < set(first)  # every column is explained
    for name in recipes.methods():
        assert first.count(name) == 1, name
    [families] = [line for line in lines if line.startswith("every option of a family: ")]
    assert sorted(families.partition(": ")[2].split(", ") + recipes.methods()) == recipes.names()
    assert f"takes {DEFAULT}." in lines[-1]


@pytest.mark.parametrize("name", recipes.methods())
def test_the_table_says_which_recipes_can_use_a_gpu(name: str) -> None:
    assert (row(name).gpu != "no") == ("device" in recipes.options(name))


@pytest.fixture(scope="module")
def log() -> sdx.Interactions:
    """A log with an item table, of more than one level of a small tree."""
    world = sdx.synthetic.world(users=60, items=40, seed=3, events=8)
    return world.interactions()


def row(name: str) -> Any:
    [found] = [rows[name] for rows in guides().values() if name in rows]
    return found


def trained(name: str, log: sdx.Interactions, **given: Any) -> sdx.Retriever:
    if name == "jtm":
        given = {"epochs": 2, **given}
    known = set(recipes.choices(name))
    idle = recipes.unread(name, recipes.options(name) | SMALL)
    small = {n: v for n, v in SMALL.items() if n in known and n not in idle}
    return sdx.fit(name, log, **(small | given))


@pytest.mark.parametrize("name", [*QUICK, *slow(*OTHERS)])
def test_the_table_says_who_serves_new_users_and_cold_items(
    name: str, log: sdx.Interactions
) -> None:
    guide, model = row(name), trained(name, log)
    if guide.new_users == "yes":
        assert len(model.recommend(history=[["i01", "i02"]], k=3)) == 3
    else:
        with pytest.raises(sdx.SoftdexError):
            model.recommend(history=[["i01", "i02"]])
        option, _, value = guide.new_users.partition("=")
        mixed = trained(name, log, **{option: value})
        assert len(mixed.recommend(history=[["i01", "i02"]], k=3)) == 3
    table = pa.table({"item": ["new"], "category": ["c000"], "subcategory": ["s000"]})
    events = sdx.read([(f"u{u:02}", "new") for u in range(5)], quiet=True)
    if guide.cold_items == "features=":
        model = trained(name, log, features=["category"])
    wanted = table if guide.cold_items in ("features=", "columns") else events
    if guide.cold_items == "no":
        with pytest.raises(sdx.SoftdexError):
            model.add_items(events)
        return
    if guide.cold_items == "few events":
        with pytest.raises(sdx.SoftdexError):
            model.add_items(table)
    model.add_items(wanted)
    assert "new" in model.recommend("u00", k=41, exclude_seen=False)["item"].to_pylist()


@pytest.mark.parametrize("words", ["recipes", "recipes rg2", "fit x.csv -r ss"])
def test_recipes_are_listed_and_completed_without_torch(words: str) -> None:
    code = (
        "import sys; sys.argv = ['softdex', *WORDS]\n"
        "from softdex.cli import main\n"
        "try: main()\n"
        "except SystemExit as ended: assert not ended.code\n"
        "finally: assert not {'torch', 'numba'} & set(sys.modules)"
    )
    typed, completing = ["softdex", *words.split()], words.startswith("fit")
    env = {"_SOFTDEX_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(typed), "COMP_CWORD": "4"}
    code = code.replace("WORDS", "[]" if completing else repr(typed[1:]))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | (env if completing else {}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "ssm" in done.stdout or "rg2:" in done.stdout


def test_completion_knows_recipes_options_and_words() -> None:
    found = listing()
    assert list(found.recipes) == recipes.names()
    assert set(found.families) == {function.__name__ for function in FUNCTIONS}
    for name in recipes.names():
        assert found.docs(name) == recipes.docs(name)
    assert found.words("rg2", "solver") == ["als", "svd", "newton_cg"]
    assert found.words("ssm", "per_row") == ["true", "false"]
    assert found.words("rg2", "dim") == []
