"""The batcher: what waits is the batch; it sheds by expected wait and drops what is late."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import numpy as np
import pytest

from softdex.errors import SoftdexError
from softdex.serve.batcher import FADING, Batcher, Full, Job, Late
from softdex.serve.pace import Pace


class Nobody:
    def batch(self, jobs: Sequence[Job], began: float, seconds: float) -> None: ...


class Gate:
    """Work that waits until the gate opens, and records what was computed together."""

    def __init__(self) -> None:
        self.open, self.started, self.batches = threading.Event(), threading.Event(), list[Any]()

    def work(self, asked: Sequence[Any]) -> list[Any]:
        self.started.set()
        self.open.wait(10)
        self.batches.append(list(asked))
        return [f"answer {each}" for each in asked]


def job(work: Any, asked: Any, **more: Any) -> Job:
    return Job(work, "group", asked, more.pop("pace", Pace(0.001, 0.008, 8)), **more)


def run(test: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(test, 10))


async def first(batcher: Batcher, gate: Gate) -> asyncio.Future[Any]:
    """Submit a request that keeps the model thread busy until the gate opens."""
    future = batcher.submit(job(gate.work, 0))
    await asyncio.to_thread(gate.started.wait)
    return future


def test_what_waits_when_the_thread_is_free_is_the_batch() -> None:
    async def test() -> None:
        gate, batcher = Gate(), Batcher(10.0, Nobody())
        futures = [await first(batcher, gate)]
        futures += [batcher.submit(job(gate.work, i)) for i in range(1, 6)]
        gate.open.set()
        assert await asyncio.gather(*futures) == [f"answer {i}" for i in range(6)]
        assert gate.batches == [[0], [1, 2, 3, 4, 5]]
        batcher.close()

    run(test())


def test_a_batch_is_no_longer_than_the_pace_says() -> None:
    async def test() -> None:
        gate, batcher, slow = Gate(), Batcher(10.0, Nobody()), Pace(0.01, 0.02, 2)
        assert slow.most == 2
        futures = [await first(batcher, gate)]
        futures += [batcher.submit(job(gate.work, i, pace=slow)) for i in range(1, 6)]
        gate.open.set()
        await asyncio.gather(*futures)
        assert gate.batches == [[0], [1, 2], [3, 4], [5]]
        batcher.close()

    run(test())


def test_requests_are_admitted_until_the_expected_wait_is_too_long() -> None:
    async def test() -> None:
        gate, batcher = Gate(), Batcher(0.05, Nobody())
        futures = [await first(batcher, gate)]
        wait = 0.0
        while not wait:
            try:
                futures.append(batcher.submit(job(gate.work, len(futures))))
            except Full as full:
                wait = full.wait
        assert wait > 0.05
        assert 40 <= len(futures) <= 60  # a millisecond each
        gate.open.set()
        await asyncio.gather(*futures)
        await batcher.submit(job(gate.work, "later"))
        batcher.close()

    run(test())


def test_who_was_refused_comes_again_when_the_wait_has_been_half_as_long_for_a_while() -> None:
    batcher = Batcher(0.05, Nobody())
    batcher.coming = 600  # requests that are read, of 0.1 ms each
    assert batcher.expected_wait() == pytest.approx(0.06)
    assert batcher.is_full()
    batcher.beat(0.0)
    assert batcher.is_full(again=True)
    batcher.coming = 300
    assert not batcher.is_full()  # for who comes first
    beats = 0
    while batcher.is_full(again=True):
        batcher.coming = 100
        batcher.beat(0.0)
        beats += 1
    assert beats == pytest.approx(np.log(0.025 / 0.06) / np.log(FADING), abs=1)
    batcher.beat(0.02)
    assert batcher.is_full(again=True)  # 20 ms late, and 10 ms to read
    batcher.close()


def test_a_slow_model_admits_what_it_can_begin_soon() -> None:
    async def test() -> None:
        gate, batcher, slow = Gate(), Batcher(0.001, Nobody()), Pace(1.0, 8.0, 8)
        future = batcher.submit(job(gate.work, 0, pace=slow))
        gate.open.set()
        assert await future == "answer 0"
        batcher.close()

    run(test())


def test_a_request_past_its_deadline_is_dropped_before_it_is_computed() -> None:
    async def test() -> None:
        gate, batcher = Gate(), Batcher(10.0, Nobody())
        busy = await first(batcher, gate)
        late = batcher.submit(job(gate.work, "late", deadline=time.perf_counter()))
        good = batcher.submit(job(gate.work, "good", deadline=time.perf_counter() + 9))
        await asyncio.sleep(0.01)
        gate.open.set()
        assert (await busy, await good) == ("answer 0", "answer good")
        with pytest.raises(Late):
            await late
        assert gate.batches == [[0], ["good"]]
        batcher.close()

    run(test())


def test_slices_of_bulk_work_queue_behind_single_requests() -> None:
    async def test() -> None:
        gate, batcher = Gate(), Batcher(10.0, Nobody())
        busy = await first(batcher, gate)
        slices = [[job(gate.work, f"bulk {i}") for i in range(s, s + 2)] for s in (0, 2, 4)]
        bulk = batcher.submit_bulk(slices)
        batcher._last_slice = time.perf_counter() + 9  # no slice is overdue
        single = [batcher.submit(job(gate.work, i)) for i in (1, 2)]
        gate.open.set()
        await asyncio.gather(busy, *bulk, *single)
        assert gate.batches[:2] == [[0], [1, 2]]
        assert gate.batches[2:] == [[f"bulk {i}", f"bulk {i + 1}"] for i in (0, 2, 4)]
        batcher.close()

    run(test())


def test_bulk_work_is_not_starved_by_single_requests() -> None:
    async def test() -> None:
        gate, batcher = Gate(), Batcher(10.0, Nobody())
        busy = await first(batcher, gate)
        bulk = batcher.submit_bulk([[job(gate.work, "bulk")]])
        batcher._last_slice = time.perf_counter() - 9  # overdue
        one = Pace(0.5, 1.0, 2)  # batches of one
        single = [batcher.submit(job(gate.work, i, pace=one)) for i in (1, 2, 3)]
        gate.open.set()
        await asyncio.gather(busy, *bulk, *single)
        assert gate.batches.index(["bulk"]) < gate.batches.index([3])
        batcher.close()

    run(test())


def test_bulk_work_takes_turns_and_a_single_slice_is_not_refused() -> None:
    async def test() -> None:
        gate, batcher, slow = Gate(), Batcher(10.0, Nobody()), Pace(20.0, 160.0, 8)
        busy = await first(batcher, gate)
        many = batcher.submit_bulk([[job(gate.work, f"a{i}", pace=slow)] for i in range(3)])
        with pytest.raises(Full):
            batcher.submit_bulk([[job(gate.work, "b")], [job(gate.work, "b")]])
        one = batcher.submit_bulk([[job(gate.work, "c")]])
        assert batcher.submit_bulk([]) == []
        gate.open.set()
        await asyncio.gather(busy, *many, *one)
        assert gate.batches == [[0], ["a0"], ["c"], ["a1"], ["a2"]]
        batcher.close()

    run(test())


@pytest.mark.parametrize("kind", [SoftdexError, ZeroDivisionError, MemoryError])
def test_a_request_that_is_refused_or_fails_does_so_alone(kind: type[Exception]) -> None:
    def work(asked: Sequence[Any]) -> list[Any]:
        if 3 in asked:
            raise kind("no 3")
        return list(asked)

    async def test() -> None:
        gate, batcher = Gate(), Batcher(10.0, Nobody())
        busy = await first(batcher, gate)
        futures = [batcher.submit(job(work, i)) for i in range(6)]
        gate.open.set()
        await busy
        found = await asyncio.gather(*futures, return_exceptions=True)
        assert [str(each) for each in found] == ["0", "1", "2", "no 3", "4", "5"]
        batcher.close()

    run(test())


def test_a_fault_does_not_end_the_thread() -> None:
    def work(asked: Sequence[Any]) -> list[Any]:
        raise ZeroDivisionError

    async def test() -> None:
        gate, batcher = Gate(), Batcher(10.0, Nobody())
        gate.open.set()
        with pytest.raises(ZeroDivisionError):
            await batcher.submit(job(work, 0))
        assert await batcher.submit(job(gate.work, 1)) == "answer 1"
        assert batcher.is_alive
        batcher.close()
        assert not batcher.is_alive

    run(test())


def test_a_fault_of_those_who_count_ends_its_batch_and_not_the_thread() -> None:
    class Watch(Nobody):
        def batch(self, jobs: Sequence[Job], began: float, seconds: float) -> None:
            if jobs[0].asked == 0:
                raise ZeroDivisionError

    async def test() -> None:
        gate, batcher = Gate(), Batcher(10.0, Watch())
        gate.open.set()
        assert await batcher.submit(job(gate.work, 0)) == "answer 0"
        [late] = batcher.submit_bulk([[job(lambda asked: [], 1)]])  # no answer to one request
        with pytest.raises(ValueError):
            await late
        assert await batcher.submit(job(gate.work, 2)) == "answer 2"
        assert batcher.expected_wait() < 1
        batcher.close()

    run(test())


def test_close_computes_what_waits() -> None:
    async def test() -> None:
        gate, batcher = Gate(), Batcher(10.0, Nobody())
        futures = [await first(batcher, gate)]
        futures += [batcher.submit(job(gate.work, i)) for i in range(1, 4)]
        gate.open.set()
        await asyncio.to_thread(batcher.close)
        assert await asyncio.gather(*futures) == [f"answer {i}" for i in range(4)]

    run(test())


def test_the_pace_follows_what_batches_take() -> None:
    pace = Pace(0.002, 0.009, 8)  # a millisecond, and one per user
    assert (pace.seconds(1), pace.seconds(8)) == pytest.approx((0.002, 0.009))
    for _ in range(100):
        pace.saw(8, 0.018)
    assert pace.seconds(8) == pytest.approx(0.018, rel=0.01)
    assert (pace.slice, Pace(1e-5, 1e-4).slice, Pace(1.0, 8.0, 8).slice) == (4, 32, 1)
    nothing = Pace(0.0, 0.0)
    nothing.saw(0, 0.1)  # of no list
    assert nothing.seconds(1) > 0
    pace.saw(8, 1e9)  # an accident counts for little
    assert pace.seconds(8) < 0.1
