"""Requests per second of the server, beside the limit of HTTP and of the model.

Server and load generator are processes of one machine. A row is the most requests per second whose
p99 is below 50 ms (trees: 250 ms), over numbers of connections.

python bench/serve_load.py [MODEL ...]
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import softdex as sdx
from _data import log_of, random_log
from _harness import report, seconds, sized
from _options import parser, run
from softdex.machine import set_threads
from softdex.model.learn import assemble

USERS, HISTORY, DIM, LIKED = sized((10_000, 50, 64, 3), (60, 5, 4, 2))
SMALL, MIDDLE, LARGE, FILMS = sized((20_000, 100_000, 1_000_000, 3706), (50, 60, 70, 40))
INSTANCES = sized(50_000, 64)
SPAN, LONG = sized((6.0, 60.0), (0.2, 1.2))
CONNECTIONS = sized((1, 4, 16, 32, 64, 128), (1, 4))
MANY = sized(512, 8)  # connections of the overload
TIMES = 5  # of the capacity, in the overload
BATCH, K, TOKEN = 64, 20, "admin-of-the-benchmark"
MEMORY = """
import sys
from softdex.cli import main
from softdex.serve import answers
body = b'{"items":[' + b",".join([b'{"item":12345,"rank":1,"score":0.123456}'] * 20) + b"]}"
answers.recommend = lambda asked: [body] * len(asked)
main()
"""
PARSER = parser(__file__, __doc__)


def rg2() -> sdx.Retriever:
    return sdx.fit("rg2", random_log(USERS, SMALL, HISTORY), dim=DIM, device="cpu")


def fastvae() -> sdx.Retriever:
    return untrained("fastvae", SMALL, hidden=DIM)


def fastvae_large() -> sdx.Retriever:
    model = untrained("fastvae", LARGE, hidden=DIM)
    model.build_index("imi", recall=0.95, k=K)
    return model


def sasrec() -> sdx.Retriever:
    return untrained("sasrec", MIDDLE, hidden=2 * DIM, max_history=HISTORY)


def dtr() -> sdx.Retriever:
    log = random_log(USERS, FILMS, HISTORY)
    return sdx.fit("dtr", log, epochs=1, max_instances=INSTANCES, device="cpu")


MODELS = {each.__name__: each for each in sized((rg2, fastvae, fastvae_large, sasrec, dtr), (rg2,))}
PARSER.add_argument(
    "models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; all by default"
)


def untrained(recipe: str, items: int, **given: Any) -> sdx.Retriever:
    """A model whose items lie in clusters, and users who like a few of them: where vectors have no
    clusters, or queries none of them in mind, no index can prune."""
    draw = np.random.default_rng(0)
    clusters = max(2, items // 500)
    liked = draw.integers(0, clusters, (USERS, LIKED))
    log = clustered_log(liked, items, clusters)
    chosen = sdx.recipes.options(recipe) | given | {"device": "cpu", "dim": DIM}
    job = sdx.recipes.make(recipe, log, chosen)
    centres = draw.standard_normal((clusters, DIM))
    vectors = centres[np.arange(items) % clusters] + 0.5 * draw.standard_normal((items, DIM))
    job.scorer.items.weight.copy_(torch.from_numpy(vectors / 8))
    if recipe == "fastvae":  # the query is the tanh of the sum of the vectors
        job.encoder.bag.weight.copy_(job.scorer.items.weight)
        for name in ("mix", "out"):
            weight = getattr(job.encoder, name).data
            weight.copy_(torch.eye(*weight.shape))
    return assemble(recipe, {}, log, job.encoder, job.scorer)


def clustered_log(liked: np.ndarray, items: int, clusters: int) -> sdx.Interactions:
    """Histories of items of the clusters that each user likes."""
    draw = np.random.default_rng(1)
    user = np.repeat(np.arange(USERS), HISTORY)
    cluster = liked[user, draw.integers(0, liked.shape[1], len(user))]
    item = cluster + clusters * draw.integers(0, items // clusters, len(user))
    return log_of(user, item, USERS, items)


@contextmanager
def served(file: Path, *, memory: bool = False) -> Iterator[tuple[str, int]]:
    """Serve a model in another process; yield its address and process id."""
    tokens = file.with_name("tokens")
    tokens.write_text(f"admin {TOKEN}")
    code = ["-c", MEMORY] if memory else ["-m", "softdex"]
    words = ["serve", str(file), "--port", "0", "--drain", "0"]
    found = subprocess.Popen([sys.executable, *code, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert found.stdout is not None
        yield found.stdout.readline().split()[-1], found.pid
    finally:
        found.send_signal(signal.SIGTERM)
        if found.wait(30):
            raise SystemExit(f"serve_load: the server ended with {found.returncode}")


def load(url: str, span: float, connections: int, rate: float = 0.0) -> dict[str, Any]:
    """What the load generator found."""
    numbers = [str(n) for n in (span, connections, rate, USERS)]
    script = str(Path(__file__).with_name("_load.py"))
    words = [sys.executable, script, url, *numbers]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def memory_of(process: int) -> tuple[float, float]:
    """Memory of a process in GB: now, and at most."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    found = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    return tuple(round(int(found[n]) * 1024 / 1e9, 3) for n in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


def best(rows: list[dict[str, Any]], limit: float) -> dict[str, Any]:
    """The row with the most requests per second below a p99."""
    fine = [row for row in rows if (row["p99_ms"] or limit) < limit] or rows[:1]
    return max(fine, key=lambda row: row["requests_per_second"])


def reloading(file: Path, process: int, ends: threading.Event, every: float) -> int:
    """Have the server read its model again, again and again."""
    count = 0
    while not ends.wait(every):
        os.kill(process, signal.SIGHUP)
        count += 1
    return count


def main(given: Namespace) -> None:
    for name in given.models:
        if name not in MODELS:
            PARSER.error(f"unknown model {name!r}: expected one of {', '.join(MODELS)}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the server
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models or MODELS:
            measured(name, Path(folder))


def measured(name: str, folder: Path) -> None:
    set_threads(os.cpu_count() or 1)
    model, file = MODELS[name](), folder / f"{name}.sdx"
    model.save(file)
    set_threads(int(os.environ["OMP_NUM_THREADS"]))
    limit = 250.0 if name == "dtr" else 50.0
    protocol = (
        f"{name}, {len(model.items):,} items, lists of {K}, users with {HISTORY} events; load by a "
        f"process on the same machine, {SPAN} s per number of connections after 1 s; most "
        f"requests per second with p99 < {limit:.0f} ms"
    )
    users = np.random.default_rng(0).integers(0, USERS, (40, BATCH))
    model.recommend(users[0], k=K)
    one = np.median([seconds(lambda row=row: model.recommend(int(row[0]), k=K)) for row in users])
    bare = seconds(lambda: [model.recommend(row, k=K) for row in users])
    with served(file) as (url, process):
        rows = [load(url, SPAN, n) for n in CONNECTIONS]
        top = best(rows, limit)
        report(
            "serve_load", protocol, figures=top, all=rows,
            idle_p50_over_recommend=round(rows[0]["p50_ms"] / one / 1e3, 2),
            peak_gb=memory_of(process)[1],
            bare_recommend_per_second=round(users.size / bare),
        )  # fmt: skip
        if name in ("rg2", "dtr"):
            stressed(name, url, file, process, top)
    if name == "rg2":
        with served(file, memory=True) as (url, _):
            rows = [load(url, SPAN, n) for n in CONNECTIONS]
        report("serve_load", f"{protocol}; answers from memory: the limit of HTTP",
               figures=best(rows, limit), all=rows)  # fmt: skip


def stressed(name: str, url: str, file: Path, process: int, top: dict[str, Any]) -> None:
    """Swaps at capacity, and an overload."""
    ends, swaps = threading.Event(), list[int]()
    thread = threading.Thread(target=lambda: swaps.append(reloading(file, process, ends, 1.0)))
    thread.start()
    swapped = load(url, LONG, top["connections"])
    ends.set()
    thread.join()
    report("serve_load", f"{name}: {LONG:.0f} s at capacity, the model read again every second",
           figures=swapped, swaps=swaps[0], memory_gb=memory_of(process))  # fmt: skip
    before = memory_of(process)
    over = load(url, LONG, MANY, TIMES * top["requests_per_second"])
    began = time.perf_counter()
    subprocess.run(["curl", "-sf", f"{url}/livez"], check=True, stdout=subprocess.DEVNULL)
    protocol = (
        f"{name}: {LONG:.0f} s, {MANY} connections that try to ask {TIMES} times the capacity; "
        "asked_per_second is what the generator reached"
    )
    report("serve_load", protocol,
           figures=over, memory_before_gb=before, memory_gb=memory_of(process),
           health_ms=round((time.perf_counter() - began) * 1e3, 1))  # fmt: skip


if __name__ == "__main__":
    run(PARSER, main)
