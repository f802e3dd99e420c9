"""Forks: a worker forked from a process that has trained or served gives the same answers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import softdex as sdx
from marks import slow

SCRIPT = """
import os, sys, threading, time
import torch
import softdex as sdx

def child(work):  # exit status of a forked child, or "hangs"
    pid = os.fork()
    if pid == 0:
        os._exit(0 if work() else 3)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "hangs"

def in_a_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]

sdx.set_threads(2)
log = sdx.synthetic.world(users=40, items=60, seed=1, events=8).interactions()
past = [log.items.all().take([1, 2, 3]).to_pylist()] * 3
square = torch.ones(400, 400)
for name in sys.argv[1:]:
    epochs = 4 if sdx.recipes.options(name).get("rounds", 1) > 1 else 1
    small = {"epochs": epochs, "patience": 0, "device": "cpu", "leaves": "random", "beam": 4}
    given = {n: v for n, v in small.items() if n in sdx.recipes.choices(name)}
    model = sdx.fit(name, log, quiet=True, **given)
    asked = {"history": past}
    try:
        model.recommend(**asked)
    except sdx.SoftdexError:  # one vector per user
        asked = {"users": log.users.all().to_pylist()[:3]}
    expected = model.recommend(**asked, k=5)["item"].to_pylist()

    def same():
        square @ square
        return model.recommend(**asked, k=5)["item"].to_pylist() == expected

    assert same()  # and the parent has its threads
    print(name, child(same), child(lambda: in_a_thread(same)), in_a_thread(lambda: child(same)))
assert torch.get_num_threads() == 2 and same()
"""


def answers(*names: str) -> list[str]:
    """Per recipe: the status of a child, of one with a thread, and of one forked by a thread."""
    words = [sys.executable, "-c", SCRIPT, *names]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


QUICK = ("rg2", "fastvae", "dtr")
OTHERS = [name for name in sdx.recipes.names() if name not in QUICK]


@pytest.mark.parametrize("names", [QUICK, *slow(*((tuple(OTHERS),),))])
def test_a_forked_worker_recommends_what_its_parent_does(names: tuple[str, ...]) -> None:
    assert answers(*names) == [f"{name} 0 0 0" for name in names]
