"""Counters and gauges of one broker, and their Prometheus text.

Names are those of Kafka's MBeans as the Prometheus JMX exporter writes them: domain, type and name
joined by underscores. A meter is a counter with the suffix `_total` (`kafka_server_
BrokerTopicMetrics_MessagesInPerSec_total`). On the hot path a metric is a plain attribute or
dictionary entry that is incremented. Gauges are functions; they are called when the text is
requested.
"""

from __future__ import annotations

import os
import resource
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from shoal.protocol.api import ApiKey
from shoal.protocol.errors import get_error_name
from shoal.server import open_files

Labels = tuple[tuple[str, str], ...]
Samples = Iterable[tuple[Labels, float]]
T = TypeVar("T")

#: Upper bounds of request times, in milliseconds; the last bucket is open.
TIME_BUCKETS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 5000)
#: Samples that are made into text at once: a broker with 10,000 partitions has 30,000.
PART_SAMPLES = 500
_BUCKETS_NS = tuple(int(ms * 1_000_000) for ms in TIME_BUCKETS_MS)


class MetricFamily(NamedTuple):
    """One metric: its name, type, help, and the function that returns its samples."""

    name: str
    kind: str
    description: str
    collect: Callable[[], Samples]


class TopicMeter:
    """Counts of one topic since the start."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "messages_in",
        "produces",
    )

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.bytes_out = 0
        self.produces = self.fetches = self.failed_produces = self.failed_fetches = 0


class _RequestMeter:
    """Number and total time of one API's requests in one version, in time buckets."""

    __slots__ = ("buckets", "count", "sum_ns")

    def __init__(self) -> None:
        self.count = self.sum_ns = 0
        self.buckets = [0] * (len(_BUCKETS_NS) + 1)


class MetricRegistry:
    """The registry. Names are unique. Other parts add their families by `add` and `add_gauge`."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicMeter] = {}
        self._requests: dict[tuple[int, int], _RequestMeter] = {}
        #: Counts of error codes in responses, by API key and code; `network.error_counts` adds.
        self.errors: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._families: dict[str, MetricFamily] = {}
        #: How often the text was requested.
        self._expositions = 0
        self._add_own()

    def add(self, name: str, kind: str, description: str, collect: Callable[[], Samples]) -> None:
        """Register a family. `collect` returns (labels, value) pairs for each exposition."""
        assert name not in self._families, name
        self._families[name] = MetricFamily(name, kind, description, collect)

    def add_gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Register a gauge without labels."""
        self.add(name, "gauge", description, lambda: (((), value()),))

    def cache_per_exposition(self, read: Callable[[], T]) -> Callable[[], T]:
        """Return a function for several families that calls `read` once for each exposition."""
        cache: list[tuple[int, T]] = []

        def get_cached() -> T:
            if not cache or cache[0][0] != self._expositions:
                cache[:] = [(self._expositions, read())]
            return cache[0][1]

        return get_cached

    def get_topic_meter(self, name: str) -> TopicMeter:
        """Return the meter of a topic."""
        meter = self.topics.get(name)
        if meter is None:
            meter = self.topics[name] = TopicMeter()
        return meter

    def forget_topic(self, name: str) -> None:
        """Drop the meter of a deleted topic."""
        self.topics.pop(name, None)

    def record_request(self, api_key: int, version: int, elapsed_ns: int) -> None:
        """Count a request and the time until its response."""
        meter = self._requests.get((api_key, version))
        if meter is None:
            meter = self._requests[(api_key, version)] = _RequestMeter()
        meter.count += 1
        meter.sum_ns += elapsed_ns
        meter.buckets[bisect_left(_BUCKETS_NS, elapsed_ns)] += 1

    def render(self) -> str:
        """Return all metrics in Prometheus' text format 0.0.4."""
        return "".join(self.render_parts())

    def render_parts(self) -> Iterator[str]:
        """Yield the text of all metrics in parts of at most `PART_SAMPLES` samples, between which
        others may have their turn. The samples of one family are of one moment."""
        self._expositions += 1
        for family in list(self._families.values()):
            yield f"# HELP {family.name} {family.description}\n# TYPE {family.name} {family.kind}\n"
            samples = list(family.collect())
            for first in range(0, len(samples), PART_SAMPLES):
                yield "".join(
                    f"{_format_sample(family.name, labels, value)}\n"
                    for labels, value in samples[first : first + PART_SAMPLES]
                )
        lines: list[str] = []
        self._render_request_times(lines)
        yield "\n".join(lines) + "\n"

    def _add_own(self) -> None:
        meters = (
            ("MessagesInPerSec", "messages_in", "Records that producers appended."),
            ("BytesInPerSec", "bytes_in", "Bytes that producers appended."),
            ("BytesOutPerSec", "bytes_out", "Bytes that consumers fetched."),
            ("TotalProduceRequestsPerSec", "produces", "Partitions in produce requests."),
            ("TotalFetchRequestsPerSec", "fetches", "Partitions in fetch requests."),
            (
                "FailedProduceRequestsPerSec",
                "failed_produces",
                "Partitions in produce requests that failed.",
            ),
            (
                "FailedFetchRequestsPerSec",
                "failed_fetches",
                "Partitions in fetch requests that failed.",
            ),
        )
        for name, attribute, description in meters:
            self.add(
                f"kafka_server_BrokerTopicMetrics_{name}_total",
                "counter",
                description,
                partial(self._collect_topics, attribute),
            )
        self.add(
            "kafka_network_RequestMetrics_RequestsPerSec_total",
            "counter",
            "Requests answered.",
            lambda: [
                ((("request", _get_api_name(key)), ("version", str(version))), meter.count)
                for (key, version), meter in self._requests.items()
            ],
        )
        self.add(
            "kafka_network_RequestMetrics_ErrorsPerSec_total",
            "counter",
            "Error codes in responses, as a whole and of each part; NONE is success.",
            lambda: [
                ((("request", _get_api_name(key)), ("error", get_error_name(code))), count)
                for key, counts in self.errors.items()
                for code, count in counts.items()
            ],
        )
        self.add("process_cpu_seconds_total", "counter", "CPU time used.", _collect_cpu_seconds)
        self.add_gauge("process_resident_memory_bytes", "Resident memory.", _read_resident_bytes)
        self.add_gauge(
            "process_open_fds",
            "Open descriptors of files and sockets.",
            open_files.count_open_files,
        )
        self.add_gauge(
            "process_max_fds", "Largest number of open descriptors.", open_files.get_limit
        )

    def _collect_topics(self, attribute: str) -> Samples:
        return [((("topic", t),), getattr(meter, attribute)) for t, meter in self.topics.items()]

    def _render_request_times(self, lines: list[str]) -> None:
        name = "kafka_network_RequestMetrics_TotalTimeMs"
        lines.append(
            f"# HELP {name} Time from the last byte of a request to its response, waits included."
        )
        lines.append(f"# TYPE {name} histogram")
        for key in sorted({k for k, _ in self._requests}):
            meters = [m for (k, _), m in self._requests.items() if k == key]
            request = ("request", _get_api_name(key))
            below = 0
            for bucket, bound in enumerate((*TIME_BUCKETS_MS, "+Inf")):
                below += sum(m.buckets[bucket] for m in meters)
                lines.append(_format_sample(f"{name}_bucket", (request, ("le", str(bound))), below))
            total_ms = sum(m.sum_ns for m in meters) / 1e6
            lines.append(_format_sample(f"{name}_sum", (request,), total_ms))
            lines.append(_format_sample(f"{name}_count", (request,), below))


def _get_api_name(key: int) -> str:
    """Return the API's name as in Kafka's metrics: `ListOffsets`."""
    return "".join(word.capitalize() for word in ApiKey(key).name.split("_"))


def _format_sample(name: str, labels: Labels, value: float) -> str:
    number = str(int(value)) if value == int(value) else repr(float(value))
    if not labels:
        return f"{name} {number}"
    inner = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
    return f"{name}{{{inner}}} {number}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _collect_cpu_seconds() -> Samples:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (((), usage.ru_utime + usage.ru_stime),)


def _read_resident_bytes() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def label(**names: str) -> Labels:
    """Return labels in the order of the arguments."""
    return tuple(names.items())


def make_constant(samples: Mapping[Labels, float]) -> Callable[[], Samples]:
    """Return a collector of a mapping that its owner updates."""
    return lambda: list(samples.items())
