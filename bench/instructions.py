"""Instructions of a broker per request, beside those of an earlier commit:
`python bench/instructions.py COMMIT [NAME ...]`, by default all requests.

`valgrind` counts what the broker's processor executes outside of the kernel. Unlike CPU time, the
count hardly depends on what else the machine does, so differences of a percent show in a minute.
It does not tell how long an instruction takes. Requests of 1 MB vary by up to 5 %, because the
number of reads depends on timing. Each broker runs twice for each kind, with few and with many
requests; the difference is what the further ones took.
"""

from __future__ import annotations

import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import raw_requests
from brokers import ROOT, Shoal
from earlier_tree import NoHistory, compiled, extract
from load_checks import LoadFailed
from raw_requests import Socket
from shoal.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    #: Prepares a broker, and returns what sends it a number of requests.
    Prepare = Callable[[Socket], Callable[[int], object]]

TOPIC, GROUP = "counted", "counted"
METADATA = "metadata of one topic"
VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
#: Requests before the counted ones, and counted ones.
FIRST, COUNTED = 20, 200
#: Records of a share fetch.
SHARE_RECORDS = 500
GROUP_RESOURCE = 32
SHARE_HEARTBEATS_MAX = 1_000


class Counted(Shoal):
    """A broker from a folder of packages, whose instructions valgrind counts."""

    def __init__(self, directory: Path, packages: Path) -> None:
        super().__init__(directory)
        self._packages = packages

    def command(self) -> list[str]:
        environment = [f"PYTHONPATH={self._packages}", "PYTHONHASHSEED=0"]
        return ["env", *environment, *VALGRIND, *super().command()]

    def instructions(self) -> int:
        """Stop the broker, and return what it executed."""
        self._end(signal.SIGTERM)
        found = re.search(r"I\s+refs:\s+([\d,]+)", self.output())
        if found is None:
            raise LoadFailed(f"valgrind counted nothing: {self.last_output()}")
        return int(found[1].replace(",", ""))


class Member:
    """A member of a share group with its session."""

    def __init__(self, client: Socket) -> None:
        self._client = client
        self._id, self._epoch = "AAAAAAAAAAAAAAAAAAAAAQ", 0
        self._held: list[tuple[int, int]] = []
        self._topic_id = self._join()

    def fetch(self) -> None:
        """Acknowledge what is held, and acquire more."""
        body = {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 26,
            "max_records": SHARE_RECORDS,
            "batch_size": SHARE_RECORDS,
            "forgotten_topics_data": [],
        }
        partition = self._call(ApiKey.SHARE_FETCH, self._held, body)
        self._held = [(r.first_offset, r.last_offset) for r in partition.acquired_records]
        if not self._held:
            raise LoadFailed(f"no records were acquired: {partition}")

    def acknowledge(self) -> None:
        """Acknowledge one record."""
        if not self._held:
            self.fetch()
        first, last = self._held.pop(0)
        if first < last:
            self._held.insert(0, (first + 1, last))
        self._call(ApiKey.SHARE_ACKNOWLEDGE, [(first, first)], {})

    def _call(self, api: ApiKey, done: Sequence[tuple[int, int]], body: Mapping[str, Any]) -> Any:
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": [1]}
            for first, last in done
        ]
        partition = {"partition_index": 0, "acknowledgement_batches": batches}
        session = {
            "group_id": GROUP,
            "member_id": self._id,
            "share_session_epoch": self._epoch,
            "topics": [{"topic_id": self._topic_id, "partitions": [partition]}],
        }
        answer = self._client.call(api, 1, {**session, **body})
        self._epoch += 1
        found = None if answer.error_code else answer.responses[0].partitions[0]
        if found is None or found.error_code:
            raise LoadFailed(f"{api.name}: {answer}")
        return found

    def _join(self) -> Any:
        """Join the group, and return the id of the topic."""
        earliest = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
        resource = {
            "resource_type": GROUP_RESOURCE,
            "resource_name": GROUP,
            "configs": [earliest],
        }
        body = {"resources": [resource], "validate_only": False}
        self._client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body)
        epoch = 0
        for _ in range(SHARE_HEARTBEATS_MAX):
            heartbeat = {
                "group_id": GROUP,
                "member_id": self._id,
                "member_epoch": epoch,
                "rack_id": None,
                "subscribed_topic_names": None if epoch else [TOPIC],
            }
            answer = self._client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, heartbeat)
            epoch = answer.member_epoch
            if answer.assignment and answer.assignment.topic_partitions:
                return answer.assignment.topic_partitions[0].topic_id
        raise LoadFailed(f"the member has no partition: {answer}")


def _produce(records: int, size: int) -> Prepare:
    request = raw_requests.produce(TOPIC, records, size)
    return lambda client: lambda count: client.repeat(request, count)


def _fetch(client: Socket) -> Callable[[int], object]:
    client.repeat(raw_requests.produce(TOPIC, 1_000, 1_024), 2)
    return lambda count: client.repeat(raw_requests.fetch(TOPIC, 1 << 20), count)


def _metadata(client: Socket) -> Callable[[int], object]:
    return lambda count: client.repeat(raw_requests.metadata(TOPIC), count)


def _shared(call: Callable[[Member], None], produced: int) -> Prepare:
    def prepare(client: Socket) -> Callable[[int], object]:
        client.repeat(raw_requests.produce(TOPIC, SHARE_RECORDS, 100), produced)
        member = Member(client)
        member.fetch()

        def several(count: int) -> None:
            for _ in range(count):
                call(member)

        return several

    return prepare


REQUESTS = {
    "produce of one record of 100 B": _produce(1, 100),
    "produce of 1 MB": _produce(1_000, 1_024),
    "fetch of 1 MB": _fetch,
    METADATA: _metadata,
    "share fetch of 500 records": _shared(Member.fetch, FIRST + COUNTED + 2),
    "acknowledgement of one record": _shared(Member.acknowledge, 2),
}


def count(packages: Path, prepare: Prepare) -> float:
    """Return the instructions per request of a broker."""
    totals = []
    for number in (FIRST, FIRST + COUNTED):
        with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
            broker = Counted(Path(folder), packages)
            broker.start()
            try:
                with Socket(broker.port) as client:
                    client.create_topic(TOPIC)
                    prepare(client)(number)
                totals.append(broker.instructions())
            finally:
                broker.kill9()
    few, many = totals
    return (many - few) / COUNTED


def main(commit: str, names: Sequence[str]) -> None:
    if not shutil.which("valgrind"):
        sys.exit("valgrind is missing: apt-get install valgrind")
    if unknown := set(names) - set(REQUESTS):
        sys.exit(f"unknown requests: {sorted(unknown)}. There are {sorted(REQUESTS)}.")
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        try:
            earlier = compiled(extract(Path(folder), commit))
        except NoHistory as error:
            sys.exit(str(error))
        print(f"| request | {commit} | now | ratio |\n| --- | ---: | ---: | ---: |", flush=True)
        for name in names or REQUESTS:
            before = count(earlier, REQUESTS[name])
            now = count(ROOT / "broker_image", REQUESTS[name])
            print(f"| {name} | {before:,.0f} | {now:,.0f} | {now / before:.3f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else "HEAD", sys.argv[2:])
