"""F@20 of saved trees by beam width, beside the exact lists over all leaves.

    python bench/tree_beams.py TASK MODEL.sdx [MODEL.sdx ...]

TASK as in `bench/quality.py`, which saves a model with `save=MODEL.sdx`.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import quality
from _data import tree_model
from _harness import TINY, report, sized
from _options import parser, run, unless_tiny

BEAMS = sized((20, 40, 80, 150), (20,))

PARSER = parser(__file__, __doc__)
PARSER.add_argument("task", type=quality.task, **unless_tiny("dtr-ml-1m"))
PARSER.add_argument("model", type=Path, nargs="*" if TINY else "+")


def main(given: Namespace) -> None:
    test = quality.split(given.task).test
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for path in given.model or [quality.tiny_tree()]:
        model = tree_model(path)
        figures[str(path)] = {}
        for beam in BEAMS:
            model.index = model.index.with_beam(beam)
            result = model.evaluate(test, 20, index="both")
            names = ("f@20", "exact f@20", "overlap@20")
            figures[str(path)][f"beam {beam}"] = {name: round(result[name], 4) for name in names}
    report("tree_beams", f"{given.task}, card {test.card.sha256}", figures=figures)


if __name__ == "__main__":
    run(PARSER, main)
