"""What the server counts, in the format of Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from softdex import __version__
from softdex.serve.batcher import Job

if TYPE_CHECKING:
    from softdex.serve.registry import Registry

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


@final
class Metrics:
    """Counters of one server; they are not shared between servers of one process."""

    def __init__(self) -> None:
        self.all = CollectorRegistry(auto_describe=False)
        self._requests = self._counter("requests", "Requests", "endpoint", "status")
        self._latency = self._histogram(
            "request_seconds", "Seconds per request", SECONDS, "endpoint"
        )
        self._wait = self._histogram("queue_wait_seconds", "Seconds in the queue", SECONDS)
        self._size = self._histogram("batch_users", "Lists per batch", SIZES)
        self._search = self._histogram("batch_seconds", "Seconds per batch", SECONDS, "model")
        self._shed = self._counter("shed", "Requests that were not computed", "reason")
        self._unknown = self._counter("unknown_keys", "Requests with an unknown key")
        self._reloads = self._counter("reloads", "Reloads", "model", "result")
        self._events = self._counter("events", "Events by what became of them", "result")
        self._commit = self._histogram("events_commit_seconds", "Seconds per commit", SECONDS)
        self._children: dict[tuple[str, int], tuple[Any, Any]] = {}
        self._by_model: dict[str, Any] = {}

    def watch(
        self, registry: Registry, depth: Callable[[], int], wait: Callable[[], float]
    ) -> None:
        """Take gauges from the registry and the queue whenever the metrics are read."""
        self.all.register(_Gauges(registry, depth, wait))

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        found = self._children.get((endpoint, status))
        if found is None:
            found = (self._requests.labels(endpoint, status), self._latency.labels(endpoint))
            self._children[endpoint, status] = found
        found[0].inc()
        found[1].observe(seconds)

    def batch(self, jobs: Sequence[Job], began: float, seconds: float) -> None:
        """Count a batch that was computed; called in the model thread."""
        for job in jobs:
            self._wait.observe(began - job.arrived)
        self._size.observe(sum(job.users for job in jobs))
        name = jobs[0].asked.served.name
        if name not in self._by_model:
            self._by_model[name] = self._search.labels(name)
        self._by_model[name].observe(seconds)

    def shed(self, reason: str) -> None:
        """Count a request that was not computed."""
        self._shed.labels(reason).inc()

    def unknown(self) -> None:
        """Count a request with an unknown key."""
        self._unknown.inc()

    def reload(self, name: str, result: str) -> None:
        """Count a reload."""
        self._reloads.labels(name, result).inc()

    def events(self, new: int, repeated: int, seconds: float) -> None:
        """Count events that are on disk; called in the thread that writes them."""
        self._events.labels("accepted").inc(new)
        self._events.labels("duplicate").inc(repeated)
        self._commit.observe(seconds)

    def text(self) -> bytes:
        """Return all of them in the text format."""
        return generate_latest(self.all)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"softdex_{name}", help, labels, registry=self.all)

    def _histogram(
        self, name: str, help: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"softdex_{name}", help, labels, buckets=buckets, registry=self.all)


@final
class _Gauges:
    """Gauges that are computed when they are read."""

    def __init__(
        self, registry: Registry, depth: Callable[[], int], wait: Callable[[], float]
    ) -> None:
        self.registry, self.depth, self.wait = registry, depth, wait
        self.started = time.time()

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        yield _gauge("queue_depth", "Requests that wait", float(self.depth()))
        yield _gauge("expected_wait_seconds", "Expected wait of the next request", self.wait())
        yield _gauge("start_time_seconds", "When the server started", self.started)
        info = GaugeMetricFamily(
            "softdex_model_info", "Served models", labels=["model", "seal", "recipe", "version"]
        )
        loaded = GaugeMetricFamily("softdex_model_loaded_seconds", "When loaded", labels=["model"])
        capacity = GaugeMetricFamily(
            "softdex_model_capacity", "Lists per second, measured at start", labels=["model"]
        )
        coverage = GaugeMetricFamily(
            "softdex_served_coverage", "Share of items in lists served lately", labels=["model"]
        )
        popularity = GaugeMetricFamily(
            "softdex_served_popularity",
            "Mean popularity rank of items served lately: 0 rarest, 1 most popular",
            labels=["model"],
        )
        fallbacks = CounterMetricFamily(
            "softdex_fallbacks", "Lists of the most popular items", labels=["model"]
        )
        trouble = GaugeMetricFamily(
            "softdex_model_trouble", "1 if the latest reload failed", labels=["model"]
        )
        for name, served in self.registry.models.items():
            info.add_metric([name, served.short_seal, served.model.recipe, __version__], 1)
            loaded.add_metric([name], served.loaded)
            capacity.add_metric([name], served.pace.capacity)
            share, rank = served.listed()
            fallbacks.add_metric([name], served.fallbacks)
            coverage.add_metric([name], share)
            popularity.add_metric([name], rank)
            trouble.add_metric([name], float(name in self.registry.troubles))
        yield from (info, loaded, capacity, coverage, popularity, fallbacks, trouble)


def _gauge(name: str, help: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"softdex_{name}", help, value=value)
