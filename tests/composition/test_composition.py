"""Every recipe, one whole training step recomputed by loops: loss, gradients, tables, ranking.

A new recipe joins by a row in the CASES of a file beside this one.
"""

from __future__ import annotations

import pytest

from composition import closed, counting, matrix, sequences, towers, trees, vaes
from composition.suite import Case
from softdex.recipes import catalogue

FILES = (counting, closed, matrix, towers, vaes, sequences, trees)
CASES: list[Case] = [case for file in FILES for case in file.CASES]
TRAINING_ONLY = {"device", "epochs", "patience", "precision"}
"""Options that do not change what one step does on a CPU: how long, where."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_training_step_of_the_recipe_equals_the_loops(case: Case) -> None:
    case.check(case)


def test_every_recipe_has_a_row() -> None:
    assert {case.recipe for case in CASES} >= set(catalogue.methods())


def ineffective(recipe: str) -> set[str]:
    """Options that can have no effect in a recipe, since it fixes another."""
    fixed, defaults = set(catalogue.entry(recipe).variant.fixed), catalogue.options(recipe)
    found: set[str] = set()
    for _ in range(2):  # an option may hang on one that hangs on a fixed one
        for name, rule in catalogue.rules(recipe):
            if rule.by in fixed | found and defaults[rule.by] not in rule.values:
                found.add(name)
    return found


@pytest.mark.parametrize("recipe", catalogue.methods())
def test_every_option_of_the_recipe_is_tried_off_its_default(recipe: str) -> None:
    defaults = catalogue.options(recipe)
    given = [case.options.items() for case in CASES if case.recipe == recipe]
    tried = {name for options in given for name, value in options if value != defaults[name]}
    assert tried >= set(catalogue.choices(recipe)) - TRAINING_ONLY - ineffective(recipe)
