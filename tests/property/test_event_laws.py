"""Laws of the event store: it is a log of distinct ids, whatever is appended, read and reopened."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softdex.serve.events import Events
from softdex.serve.words import Event

KEYS = st.sampled_from(["0", "1", "ann"])
ITEMS = st.one_of(st.integers(0, 3), KEYS)
EVENTS = st.builds(
    Event, KEYS, ITEMS, st.integers(0, 5), st.just(1.0), st.sampled_from([*"abcdefgh", ""])
)
STEPS = st.lists(
    st.one_of(st.lists(EVENTS, max_size=5), KEYS, st.just("reopen")), min_size=1, max_size=10
)
COUNT = itertools.count()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events") / "events.db"


@settings(max_examples=15)
@given(steps=STEPS)
def test_the_store_equals_a_list_without_repeated_ids(path: Path, steps: list[Any]) -> None:
    turn = f"{next(COUNT)} "  # of this case, in the file of all
    events, log, ids = Events(path), list[Event](), set[str]()
    for step in [*steps, "0", "1", "ann"]:
        if step == "reopen":
            events.close()
            events = Events(path)
        elif isinstance(step, list):
            new = []
            for event in step:
                if not event.event_id or event.event_id not in ids:
                    new.append(event)
                ids.add(event.event_id)
            assert events.append([mine(turn, event) for event in step]).result(10) == len(new)
            log += new
        else:
            expected = sorted((e for e in log if e.user == step), key=lambda event: event.time or 0)
            assert [each.item for each in events.of(turn + step)] == [e.item for e in expected]
    events.close()


def mine(turn: str, event: Event) -> Event:
    id = turn + event.event_id if event.event_id else ""
    return Event(f"{turn}{event.user}", event.item, event.time, event.weight, id)
