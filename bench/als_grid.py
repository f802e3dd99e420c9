"""Settings of a closed-form recipe on validation parts: where the defaults come from.

    python bench/als_grid.py DATA RECIPE SWEEPS '[{"alpha": 0.03, "lam": 0.1}, ...]'

80/10/10 per user (Gowalla: 10 % of the LightGCN train part cut off), at most 3,000 validation
users, ndcg@20 after each sweep. One JSON line a call. The test part is not looked at.
"""

from __future__ import annotations

import json
import sys

import _rivals
import softdex as sdx
from _harness import need, report


def main() -> None:
    name, recipe, sweeps, settings = sys.argv[1:]
    log = sdx.read(need(f"{name}.parquet"), quiet=True)
    if name == "gowalla":
        train, valid, _ = sdx.split.lightgcn(log, valid=0.1)
    else:
        train, valid, _ = sdx.split.rg(log, seed=0)
    assert valid is not None
    asked = _rivals.sample(valid, 3000)
    rows = []
    for options in json.loads(settings):
        dim = options.pop("dim", 64)
        trained = _rivals.sweeps(recipe, train, dim, int(sweeps), 0, **options)
        curve = [round(model.evaluate(asked, 20)["ndcg@20"], 4) for _, model in trained]
        rows.append({"dim": dim, **options, "ndcg@20": curve})
    protocol = "validation only, one seed"
    report(f"als_grid {name} {recipe}", protocol, card=valid.card.sha256, rows=rows)


if __name__ == "__main__":
    main()
