"""Seconds to read 10 million CSV rows of integer ids, beside pyarrow's parser alone."""

from __future__ import annotations

import statistics
import tempfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

import softdex as sdx
from _harness import alternating, report, sized
from _options import parser, run

ROWS = sized(10_000_000, 20_000)

PARSER = parser(__file__, __doc__)


def main(given: Namespace) -> None:
    draw = np.random.default_rng(0)
    table = pa.table(
        {
            "user_id": draw.integers(1, 500_000, ROWS),
            "item_id": (draw.zipf(1.3, ROWS) % 200_000) + 1,
            "timestamp": draw.integers(1_500_000_000, 1_700_000_000, ROWS),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        csv, parquet = Path(folder, "log.csv"), Path(folder, "log.parquet")
        pacsv.write_csv(table, csv)
        pq.write_table(table, parquet)
        size = csv.stat().st_size
        times = alternating(
            {
                "pyarrow csv": lambda: pacsv.read_csv(csv),
                "softdex csv": lambda: sdx.read(csv, quiet=True),
                "pyarrow parquet": lambda: pq.read_table(parquet),
                "softdex parquet": lambda: sdx.read(parquet, quiet=True),
            },
            5,
        )
    middle = {name: statistics.median(t) for name, t in times.items()}
    report(
        "read_speed",
        f"{ROWS} rows of three integers, {size} bytes of CSV, warm page cache, median of 5 in turn",
        seconds=times,
        csv_ratio=round(middle["softdex csv"] / middle["pyarrow csv"], 2),
        parquet_ratio=round(middle["softdex parquet"] / middle["pyarrow parquet"], 2),
        rows_per_second=round(ROWS / middle["softdex csv"]),
    )


if __name__ == "__main__":
    run(PARSER, main)
