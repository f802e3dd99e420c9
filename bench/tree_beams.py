"""What a saved tree finds with beams of several widths, beside the lists of all leaves.

python bench/tree_beams.py TASK MODEL.sdx

TASK as in `bench/quality.py`, which keeps a model with `save=MODEL.sdx`.
"""

from __future__ import annotations

import sys

import softdex as sdx
from _harness import report
from quality import split
from softdex.index.tree import Tree

BEAMS = (20, 40, 80, 150)


def main() -> None:
    task, path = sys.argv[1:]
    model, test = sdx.load(path), split(task).test
    assert isinstance(model.index, Tree)
    figures = {}
    for beam in BEAMS:
        model.index = model.index.with_beam(beam)
        result = model.evaluate(test, 20, index="both")
        names = ("f@20", "exact f@20", "overlap@20")
        figures[f"beam {beam}"] = {name: round(result[name], 4) for name in names}
    report("tree_beams", f"{task}, recipe {model.recipe}, card {test.card.sha256}", figures=figures)


if __name__ == "__main__":
    main()
