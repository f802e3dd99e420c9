"""Shared fixtures: quiet output, fixed Hypothesis seeds, tiny worlds, real data if present."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import softdex as sdx
from softdex.messages import LOGGER

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("free", deadline=None, max_examples=300)
settings.load_profile(os.environ.get("SOFTDEX_HYPOTHESIS", "fixed"))

ROOT = Path(__file__).parents[1]
LONG = ("test_tree_learn", "test_examples", "test_runs", "test_cli", "test_tree")
os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # workers share the cores; numpy is not loaded yet


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, so that workers that take whole files end together."""
    import torch  # not in the process that only hands out files

    torch.set_num_threads(1)
    items.sort(key=lambda item: item.path.stem not in LONG)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTDEX_QUIET", "1")


@pytest.fixture
def loud(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the library print messages on standard error."""
    monkeypatch.delenv("SOFTDEX_QUIET")
    monkeypatch.setattr(LOGGER, "hasHandlers", lambda: False)  # pytest has set up logging


@pytest.fixture(scope="session")
def world() -> sdx.synthetic.World:
    return sdx.synthetic.world(users=300, items=120, seed=7, events=15)


@pytest.fixture(scope="session")
def log(world: sdx.synthetic.World) -> sdx.Interactions:
    return world.interactions()


@pytest.fixture(scope="session")
def parts(log: sdx.Interactions) -> sdx.Split:
    return sdx.split.leave_last(log)


@pytest.fixture(scope="session")
def model(parts: sdx.Split) -> sdx.Retriever:
    return sdx.fit("item_cf", parts.train)


@pytest.fixture(scope="session")
def data() -> Path:
    """Return the folder of real data sets, or skip the test if there is none."""
    folder = Path(os.environ.get("SOFTDEX_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("no real data sets: set SOFTDEX_DATA to their folder")
    return folder


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., sdx.Retriever]:
    """Return a `fit` that is killed after this many steps and then resumed."""
    from softdex.solve.gradient.trainer import Trainer

    def fit(name: str, log: sdx.Interactions, *, after: int, **options: Any) -> sdx.Retriever:
        steps, plain = 0, Trainer.step

        def step(self: Trainer, at: Any) -> None:
            nonlocal steps
            steps += 1
            if steps > after:
                raise KeyboardInterrupt
            plain(self, at)

        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", step)
            with pytest.raises(KeyboardInterrupt):
                sdx.fit(name, log, folder=tmp_path, **options)
        return sdx.fit(name, log, folder=tmp_path, resume=True, **options)

    return fit
