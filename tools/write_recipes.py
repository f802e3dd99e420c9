"""Write what is known of recipes without importing them: listing.json and typed.pyi.

    python tools/write_recipes.py

`listing.json` is what `softdex recipes` prints and the shell completes; `typed.pyi` has one
overload of `sdx.fit` per recipe, for type checkers and editors. Run it after a change of a recipe's
name, options or sentences, or of the signature of `sdx.fit`.
"""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import softdex
from softdex import recipes
from softdex.fit import fit
from softdex.options import words_of
from softdex.recipes.catalogue import DEFAULT, FUNCTIONS, entry, guides

PACKAGE = Path(softdex.__file__).parent
HEAD = '''\
# fmt: off
"""`fit` with the options of each recipe; written by tools/write_recipes.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, overload

from softdex.data.holdout import Holdout
from softdex.data.interactions import Interactions
from softdex.model.retriever import Retriever
'''


def listing() -> str:
    """The text of listing.json."""
    found = {
        "default": DEFAULT,
        "recipes": {name: listed(name) for name in recipes.names()},
        "families": {function.__name__: family(function.__name__) for function in FUNCTIONS},
        "groups": {
            group: {name: list(row[1:]) for name, row in rows.items()}
            for group, rows in guides().items()
        },
    }
    return json.dumps(found, indent=1) + "\n"


def listed(name: str) -> dict[str, Any]:
    """One recipe in listing.json."""
    found = entry(name)
    return {
        "about": recipes.about(name),
        "family": found.function.__name__,
        "options": recipes.options(name),
        "fixed": list(found.variant.fixed),
    }


def family(name: str) -> dict[str, Any]:
    """What recipes of one function share in listing.json."""
    kinds = recipes.kinds(name)
    words = {o: ["true", "false"] if k is bool else words_of(k) for o, k in kinds.items()}
    return {"docs": recipes.docs(name), "words": {o: w for o, w in words.items() if w}}


def typed() -> str:
    """The text of typed.pyi."""
    families: dict[tuple[Callable[..., Any], tuple[str, ...]], list[str]] = {}
    for name in recipes.names():
        key = entry(name).function, tuple(recipes.choices(name))
        families.setdefault(key, []).append(name)
    parts = [
        overload(f"Literal[{quoted(names)}]", options_of(names)) for names in families.values()
    ]
    parts.append(overload("str", []))
    parts.append(overload("Callable[..., Any]", ["**given: Any"]))
    return "\n".join([HEAD, *parts])


def options_of(names: list[str]) -> list[str]:
    """The options of recipes that have the same ones; a default is shown where all have it."""
    kinds, found = recipes.kinds(names[0]), []
    for option in recipes.choices(names[0]):
        defaults = {repr(recipes.options(name)[option]) for name in names}
        default = defaults.pop() if len(defaults) == 1 else "..."
        found.append(f"{option}: {annotation(kinds[option])} = {default}".replace("'", '"'))
    return found


def overload(recipe: str, options: list[str]) -> str:
    """One overload: the arguments of every fit, and the options of these recipes."""
    first, *own, _ = inspect.signature(fit).parameters.values()
    shared: list[str] = []
    for p in own:
        if p.kind is p.KEYWORD_ONLY and "*" not in shared:
            shared.append("*")
        shared.append(f"{p.name}: {p.annotation} = {p.default!r}".removesuffix(f" = {p.empty!r}"))
    text = ", ".join([f"{first.name}: {recipe}", *shared, *options])
    lines = textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    ")
    return f"@overload\ndef fit(\n{lines}\n) -> Retriever: ...\n"


def annotation(kind: Any) -> str:
    """A type as text, without the limits that a type checker does not know."""
    words = words_of(kind)
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    each = get_args(bare) if get_origin(bare) in (Union, UnionType) else (bare,)
    named = [f"Literal[{quoted(words)}]"] if words else []
    others = [k for k in each if not words or (k is not str and get_origin(k) is not Literal)]
    return " | ".join(named + [plain(k) for k in others])


def plain(kind: Any) -> str:
    """A type without notes as text."""
    if kind is NoneType:
        return "None"
    return str(kind) if get_args(kind) else kind.__name__


def quoted(words: list[str]) -> str:
    """Words in double quotes."""
    return ", ".join(f'"{word}"' for word in words)


FILES = {PACKAGE / "listing.json": listing, PACKAGE / "typed.pyi": typed}

if __name__ == "__main__":
    for path, text in FILES.items():
        path.write_text(text(), encoding="utf-8")
        print(f"wrote {path}")
