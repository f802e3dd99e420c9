"""Every recipe, one whole training step recomputed by loops: loss, gradients, tables, ranking.

A new recipe joins by a row in the CASES of a file beside this one.
"""

from __future__ import annotations

import pytest

from composition import closed, counting, matrix, sequences, trees, vaes, towers
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


@pytest.mark.parametrize("recipe", catalogue.methods())
def test_every_option_of_the_recipe_is_tried_off_its_default(recipe: str) -> None:
    defaults = catalogue.options(recipe)
    tried = {n for c in CASES if c.recipe == recipe for n, v in c.options.items() if v != defaults[n]}
    assert tried >= set(catalogue.choices(recipe)) - TRAINING_ONLY
