"""Quality and seconds of `fit("rg2", train)` without options, beside implicit's ALS.

    python bench/als_defaults.py [DATA ...]

implicit runs with its defaults, and tuned over 24 settings with as many factors as our `dim`. No
default of `rg2` was chosen on these data sets. 80/10/10 per user, seed 0; the test part masks train
and validation. One JSON line per data set.
"""

from __future__ import annotations

import time
from argparse import Namespace

import _rivals
import softdex as sdx
from _data import need
from _harness import report, sized
from _options import parser, run

DATA = ["lastfm-hetrec", "amazon-book-kgat", "amazon-beauty-large", "ml-10m-implicit"]
MOST = sized(15, 2)  # sweeps

PARSER = parser(__file__, __doc__)
PARSER.add_argument("data", nargs="*", default=sized(DATA, DATA[:1]), help="data sets")


def shown(result: sdx.Result, seconds: float) -> dict[str, float]:
    figures = {name: round(result[name], 4) for name in ("ndcg@20", "recall@20")}
    error = round(result.standard_error("ndcg@20"), 4)
    return figures | {"error": error, "seconds": round(seconds, 2)}


def implicit(
    train: sdx.Interactions, test: sdx.Holdout, dim: int, most: int, options: dict[str, float]
) -> dict[str, float]:
    *_, (seconds, model) = _rivals.sweeps("implicit", train, dim, most, 0, options)
    return shown(model.evaluate(test, 20), seconds)


def main(given: Namespace) -> None:
    for name in given.data:
        log = sdx.read(need(f"{name}.parquet"), quiet=True)
        train, valid, test = sdx.split.rg(log, seed=0)
        assert valid is not None
        sdx.fit("rg2", train.select(slice(0, 2000)), epochs=1)  # compiles
        began = time.perf_counter()
        model = sdx.fit("rg2", train)
        seconds = time.perf_counter() - began
        rows = {"rg2, defaults": shown(model.evaluate(test, 20), seconds)}
        dim = int(model.options["dim"])
        rows["implicit, defaults (100 factors)"] = implicit(train, test, 100, MOST, {})
        asked = _rivals.sample(valid, 2000)

        def score(model: sdx.Retriever, asked: sdx.Holdout = asked) -> float:
            return model.evaluate(asked, 20)["ndcg@20"]

        began = time.perf_counter()
        best = _rivals.tuned("implicit", train, score, dim=dim, most=MOST)
        searched = time.perf_counter() - began
        found = implicit(train, test, dim, best["sweeps"], best["options"])
        rows[f"implicit, tuned ({dim} factors)"] = found | {"search_seconds": round(searched, 1)}
        report(
            f"als_defaults {name}",
            "80/10/10 per user, split seed 0, seed 0; implicit tuned on 2,000 validation users",
            card=test.card.sha256,
            rows=rows,
            tuned=best,
        )


if __name__ == "__main__":
    run(PARSER, main)
