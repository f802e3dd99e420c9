"""ndcg@20 of a closed-form recipe on validation, after each sweep: where the defaults come from.

    python bench/als_grid.py DATA RECIPE SWEEPS '[{"alpha": 0.03, "lam": 0.1}, ...]'

80/10/10 per user (Gowalla: 10 % of the LightGCN train part held out), at most 3,000 validation
users. The test part is not used.
"""

from __future__ import annotations

import json
from argparse import ArgumentTypeError, Namespace
from typing import Any

import _rivals
import softdex as sdx
from _data import need
from _harness import report
from _options import parser, run, size, unless_tiny


def settings(text: str) -> list[dict[str, Any]]:
    """A JSON list of options."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not (isinstance(found, list) and all(isinstance(each, dict) for each in found)):
        raise ArgumentTypeError(f"expected a JSON list of objects, got {text!r}")
    return found


PARSER = parser(__file__, __doc__)
PARSER.add_argument("data", help="data set", **unless_tiny("ml-1m"))
PARSER.add_argument("recipe", choices=list(_rivals.SPACES), **unless_tiny("rg2"))
PARSER.add_argument("sweeps", type=size, **unless_tiny(2))
PARSER.add_argument(
    "settings", type=settings, help="JSON list of options", **unless_tiny('[{"dim": 8}]')
)


def main(given: Namespace) -> None:
    log = sdx.read(need(f"{given.data}.parquet"), quiet=True)
    if given.data == "gowalla":
        train, valid, _ = sdx.split.lightgcn(log, valid=0.1)
    else:
        train, valid, _ = sdx.split.rg(log, seed=0)
    assert valid is not None
    asked = _rivals.sample(valid, 3000)
    rows = []
    for options in given.settings:
        dim = options.pop("dim", 64)
        trained = _rivals.sweeps(given.recipe, train, dim, given.sweeps, 0, options)
        curve = [round(model.evaluate(asked, 20)["ndcg@20"], 4) for _, model in trained]
        rows.append({"dim": dim, **options, "ndcg@20": curve})
    protocol = "validation only, one seed"
    report(f"als_grid {given.data} {given.recipe}", protocol, card=valid.card.sha256, rows=rows)


if __name__ == "__main__":
    run(PARSER, main)
