"""What saved trees find with beams of several widths, beside the lists of all leaves.

python bench/tree_beams.py TASK MODEL.sdx [MODEL.sdx ...]

TASK as in `bench/quality.py`, which keeps a model with `save=MODEL.sdx`.
"""

from __future__ import annotations

import sys

import softdex as sdx
from _harness import report
from quality import split
from softdex.index.tree.tree import Tree

BEAMS = (20, 40, 80, 150)


def main() -> None:
    task, *paths = sys.argv[1:]
    test = split(task).test
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for path in paths:
        model = sdx.load(path)
        assert isinstance(model.index, Tree)
        figures[path] = {}
        for beam in BEAMS:
            model.index = model.index.with_beam(beam)
            result = model.evaluate(test, 20, index="both")
            names = ("f@20", "exact f@20", "overlap@20")
            figures[path][f"beam {beam}"] = {name: round(result[name], 4) for name in names}
    report("tree_beams", f"{task}, card {test.card.sha256}", figures=figures)


if __name__ == "__main__":
    main()
