"""A thousand resources at once, and their cost while nothing changes."""

from __future__ import annotations

import json
import time

import yaml
from e2e.release import NAMESPACE, Release
from e2e.resources import Resources, queue_topic, share_group
from support.runs.conditions import ceiling, eventually

#: Of each kind.
COUNT = 500
READY_SECONDS_MAX = 60
CALLS_PER_OBJECT_MAX = 6
MEMORY_BYTES_MAX = 250 << 20
STEADY_API_CALLS_PER_MINUTE_MAX = 60


def total(samples: dict[str, float], name: str) -> float:
    return sum(value for key, value in samples.items() if key.startswith(name))


def calls(samples: dict[str, float]) -> float:
    return sum(total(samples, f"shoal_operator_{to}_calls_total") for to in ("api", "broker"))


def memory_bytes(release: Release) -> int:
    """Return the memory that the kernel charges to the operator's container."""
    read = "print(open('/proc/1/status').read())"
    exec_ = ("exec", f"--namespace={NAMESPACE}", release.pods()[0], "--", "python3", "-c", read)
    lines = release.cluster.kubectl(*exec_).stdout.splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def ready(queue: Resources, kind: str) -> int:
    found = queue.kubectl(
        "get", kind, '--output=jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'
    )
    return found.stdout.split().count("True")


def test_a_thousand_resources(queue: Resources, release: Release) -> None:
    before = calls(release.metrics())
    topics = [queue_topic(f"topic-{n}", partitions=1) for n in range(COUNT)]
    groups = [share_group(f"group-{n}", topics=[f"topic-{n}"]) for n in range(COUNT)]
    began = time.monotonic()
    text = yaml.dump_all([*topics, *groups], Dumper=yaml.CSafeDumper)
    queue.kubectl("create", "--filename=-", stdin_text=text)
    created = time.monotonic() - began

    def all_ready() -> bool:
        counts = ready(queue, "queuetopics"), ready(queue, "sharegroups")
        assert counts == (COUNT, COUNT)
        return True

    eventually(all_ready, timeout_s=180)
    seconds = time.monotonic() - began
    after = release.metrics()
    figures = {
        "ready_s": round(seconds, 1),
        "of_that_kubectl_s": round(created, 1),
        "calls_per_object": round((calls(after) - before) / (2 * COUNT), 2),
        "memory_mb": memory_bytes(release) >> 20,
    }
    minutes: list[float] = []

    def is_steady() -> bool:
        """After a minute each group's status is written once more, with its redeliveries."""
        minutes.append(steady_calls(release))
        assert minutes[-1] < STEADY_API_CALLS_PER_MINUTE_MAX, minutes
        return True

    eventually(is_steady, timeout_s=180)
    print(json.dumps(figures | {"steady_api_calls_per_minute": minutes}))
    assert seconds < ceiling(READY_SECONDS_MAX), figures
    assert figures["calls_per_object"] <= CALLS_PER_OBJECT_MAX, figures
    assert memory_bytes(release) < MEMORY_BYTES_MAX, figures


def steady_calls(release: Release) -> float:
    """Return the calls to the API server in a minute, measured over half a minute."""
    seen: list[tuple[float, float]] = []

    def minute_over() -> bool:
        now = time.monotonic()
        if not seen or now - seen[-1][0] > 5:
            seen.append((now, total(release.metrics(), "shoal_operator_api_calls_total")))
        return now - seen[0][0] > 30

    eventually(minute_over, timeout_s=60)
    (first_s, first), (last_s, last) = seen[0], seen[-1]
    return round((last - first) / (last_s - first_s) * 60, 1)
