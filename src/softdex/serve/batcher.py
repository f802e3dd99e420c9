"""One model thread: whatever waits when it is free is the batch.

There is no timer. A request is admitted if its expected wait is short, and dropped before it is
computed if its deadline has passed. Bulk work is cut into slices that queue behind single requests.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol, final

from softdex.messages import silence
from softdex.serve.pace import Pace

BULK_EVERY = 0.1  # seconds after which a slice runs although single requests wait
READING = 1e-4  # seconds of the event loop per request, about
FADING = 0.95  # of the longest wait per beat
BULK_WAIT = 30.0  # seconds of slices that may wait
LOG = logging.getLogger("softdex.serve")
Work = Callable[[Sequence[Any]], Sequence[Any]]


class Late(Exception):
    """The deadline passed before the request was computed."""


class Full(Exception):
    """The expected wait is too long; `wait` is in seconds."""

    def __init__(self, wait: float) -> None:
        super().__init__(wait)
        self.wait = wait


class Watch(Protocol):
    """What is told of batches; `serve.metrics` counts them."""

    def batch(self, jobs: Sequence[Job], began: float, seconds: float) -> None:
        """Take note of a batch that was computed."""
        ...


@final
@dataclass(eq=False, slots=True)
class Job:
    """One request.

    Attributes:
        work: answers requests of the same group together, in their order.
        group: requests are answered together if their `work` and `group` are equal.
        asked: what `work` gets.
        pace: how long the model takes.
        deadline: on the clock of `time.perf_counter`.
        users: number of lists to compute.
        arrived: when it was submitted.
        cost: predicted microseconds.
        future: gets the answer or the error.
    """

    work: Work
    group: Hashable
    asked: Any
    pace: Pace
    deadline: float = math.inf
    users: int = 1
    arrived: float = field(default_factory=time.perf_counter)
    cost: int = 0
    future: asyncio.Future[Any] | None = None


@final
class Batcher:
    """A queue and the thread that computes what is in it.

    Attributes:
        lag: seconds that the event loop is late; what comes has waited that long already.
        peak: the longest expected wait lately, in seconds.
        coming: requests whose headers are read and that the application has not begun.

    Args:
        max_wait: seconds of expected wait up to which requests are admitted.
        watch: is told of each batch.
    """

    def __init__(self, max_wait: float, watch: Watch) -> None:
        self.max_wait, self._watch = max_wait, watch
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._bulk: deque[deque[list[Job]]] = deque()  # which take turns, a slice each
        self._added = self._taken = self._bulk_added = self._bulk_taken = 0  # microseconds
        self.lag, self.peak, self.coming = 0.0, 0.0, 0
        self._limits = self._longest(Pace())
        self._busy_until, self._last_slice, self._open = 0.0, 0.0, True
        self._thread = threading.Thread(target=self._serve, name="softdex-model", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether what is queued will be computed."""
        return self._thread.is_alive()

    @property
    def depth(self) -> int:
        """Number of single requests that wait."""
        return self._queue.qsize()

    def expected_wait(self) -> float:
        """Seconds until a request that comes now would be computed."""
        rest = max(0.0, self._busy_until - time.perf_counter())
        queued = max(0, self._added - self._taken) / 1e6
        return self.lag + rest + queued + self.coming * READING

    def beat(self, lag: float) -> None:
        """Take note of how late the event loop is, and of the expected wait."""
        self.lag = lag
        self.peak = max(FADING * self.peak, self.expected_wait())

    def is_full(self, *, again: bool = False) -> bool:
        """Return whether a request for a model like the latest one would wait too long. One that
        comes `again` after it was refused is admitted when the wait has been shorter for a while,
        so that others are not refused in its place."""
        return self.peak > self._limits[0] if again else self.expected_wait() > self._limits[1]

    def check(self, pace: Pace) -> None:
        """Raise `Full` if a request for a model of this pace would wait too long."""
        wait, self._limits = self.expected_wait(), self._longest(pace)
        if wait > self._limits[1]:
            raise Full(wait)

    def _longest(self, pace: Pace) -> tuple[float, float]:
        """Longest waits for a model: of a request that was refused before, and of others."""
        one = pace.seconds(1)
        return max(self.max_wait / 2, 1.5 * one), max(self.max_wait, 2 * one)

    def submit(self, job: Job) -> asyncio.Future[Any]:
        """Queue a request; its future gets the answer. Call it in the event loop."""
        self.check(job.pace)
        job.future = asyncio.get_running_loop().create_future()
        job.cost = int(1e6 * job.pace.share(job.users))
        self._added += job.cost
        self._queue.put(job)
        return job.future

    def submit_bulk(self, slices: Sequence[list[Job]]) -> list[asyncio.Future[Any]]:
        """Queue slices behind single requests; one future per job. A slice waits for one of each
        bulk that came before, not for all of them."""
        waiting = (self._bulk_added - self._bulk_taken) / 1e6
        if waiting > BULK_WAIT and len(slices) > 1:
            raise Full(waiting)
        if not slices:
            return []
        loop, futures = asyncio.get_running_loop(), []
        for part in slices:
            for job in part:
                job.future, job.cost = loop.create_future(), int(1e6 * job.pace.share(job.users))
                self._bulk_added += job.cost
                futures.append(job.future)
        self._bulk.append(deque(slices))
        self._queue.put(None)  # wakes the thread
        return futures

    def close(self) -> None:
        """Compute what waits, then end the thread."""
        self._open = False
        self._queue.put(None)
        self._thread.join()

    # the model thread ----------------------------------------------------------------------------

    def _serve(self) -> None:
        with silence():
            while self._open or self._queue.qsize() or self._bulk:
                batch = self._take()
                if batch:
                    self._answer(batch)
                idle = not self._queue.qsize()
                if self._bulk and (idle or time.perf_counter() - self._last_slice > BULK_EVERY):
                    bulk = self._bulk.popleft()
                    part = bulk.popleft()
                    if bulk:
                        self._bulk.append(bulk)
                    self._bulk_taken += sum(job.cost for job in part)
                    self._answer(part)
                    self._last_slice = time.perf_counter()

    def _take(self) -> list[Job]:
        """Wait for the first job, and take what else waits, up to a batch."""
        batch: list[Job] = []
        wait = self._open and not self._bulk
        try:
            while not batch or len(batch) < batch[0].pace.most:
                job = self._queue.get() if wait else self._queue.get_nowait()
                wait = False
                if job is not None:
                    batch.append(job)
        except Empty:
            pass
        self._taken += sum(job.cost for job in batch)
        return batch

    def _answer(self, batch: list[Job]) -> None:
        """Compute a batch; a fault of ours ends it and not the thread."""
        try:
            self._compute(batch)
        except Exception as error:
            LOG.exception("a batch failed")
            _deliver([(job, error) for job in batch])
        self._busy_until = 0.0

    def _compute(self, batch: list[Job]) -> None:
        """Compute a batch: jobs of one group together."""
        now, groups = time.perf_counter(), dict[Hashable, list[Job]]()
        late = [job for job in batch if job.deadline < now]
        if late:
            _deliver([(job, Late()) for job in late])
        for job in batch:
            if job.deadline >= now:
                groups.setdefault((job.work, job.group), []).append(job)
        for jobs in groups.values():
            began, pace = time.perf_counter(), jobs[0].pace
            users = sum(job.users for job in jobs)
            self._busy_until = began + pace.seconds(users)
            _deliver(list(zip(jobs, settled(jobs[0].work, [j.asked for j in jobs]), strict=True)))
            seconds = time.perf_counter() - began
            pace.saw(users, seconds)
            self._watch.batch(jobs, began, seconds)


def settled(work: Work, asked: Sequence[Any]) -> list[Any]:
    """Return an answer or an error per request; one that cannot be answered fails alone."""
    try:
        return list(work(asked))
    except Exception as error:
        if len(asked) == 1:
            return [error]
        middle = len(asked) // 2
        return settled(work, asked[:middle]) + settled(work, asked[middle:])


def _deliver(found: Sequence[tuple[Job, Any]]) -> None:
    """Hand answers to the event loops that wait for them."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for job, answer in found:
        assert job.future is not None
        loops.setdefault(job.future.get_loop(), []).append((job.future, answer))
    for loop, pairs in loops.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_settle, pairs)


def _settle(pairs: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, answer in pairs:
        if future.done():  # or cancelled
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
