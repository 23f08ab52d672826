"""TxnOffsetCommit that waits for its turn, against a real broker."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import COMMIT_ORDER_FEATURE
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from wire.test_individual_commit import begun, end
from wire.test_key_range_groups import (
    HALF,
    TOPIC,
    Member,
    features,
    settled,
    start_broker,
)
from wire.test_key_range_transactions import LOWER, UPPER, commit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.servers import ShoalProcess

WAITING = "shoal_group_coordinator_key_range_waiting_commits"
REFUSED = "shoal_group_coordinator_key_range_refused_order_count_total"
_names = (f"ordered-{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    process = start_broker(tmp_path_factory.mktemp("order"))
    yield process
    process.kill9()


@pytest.fixture
def client(shoal: ShoalProcess) -> Iterator[WireClient]:
    with WireClient(shoal.bootstrap) as client:
        yield client


class Side:
    """A member, its producer, and a connection on which its commits wait."""

    def __init__(self, shoal: ShoalProcess, member: Member, name: str) -> None:
        self.member = member
        self.producer = begun(member.client, f"{member.group}-{name}")
        self.link = WireClient(shoal.bootstrap)

    def ask(self, position: int, first: int, wait_ms: int = 60_000) -> None:
        """Send a commit in the partition's order."""
        (key_range,) = self.member.ranges
        row = {
            "partition_index": 0,
            "committed_offset": position,
            "committed_leader_epoch": -1,
            "committed_metadata": None,
            "first_offset": first,
            "key_ranges": [
                {
                    "first_hash": key_range[0],
                    "last_hash": key_range[1],
                    "position": position,
                    "finished": b"",
                }
            ],
        }
        body = {
            **self.producer,
            "group_id": self.member.group,
            "member_id": self.member.member_id,
            "generation_id": self.member.epoch,
            "topics": [{"name": TOPIC, "partitions": [row]}],
            "order_timeout_ms": wait_ms,
        }
        self.link.send(ApiKey.TXN_OFFSET_COMMIT, 5, body)

    def answer(self) -> tuple[ErrorCode, str]:
        _, body = self.link.receive(ApiKey.TXN_OFFSET_COMMIT, 5)
        row = body.topics[0].partitions[0]
        return ErrorCode(row.error_code), row.individual_commit.error_message or ""

    def end(self, *, committed: bool) -> None:
        end(self.member.client, self.producer, committed=committed)


@pytest.fixture
def sides(shoal: ShoalProcess, client: WireClient) -> Iterator[tuple[Side, Side]]:
    """Two members with a half of the partition each."""
    group = next(_names)
    members = Member(client, group, "one"), Member(client, group, "other")
    settled(*members)
    assert [m.ranges for m in members] == [[LOWER], [UPPER]]
    one, other = (Side(shoal, m, n) for m, n in zip(members, ("1", "2"), strict=True))
    yield one, other
    one.link.close()
    other.link.close()


def waits(shoal: ShoalProcess, count: int) -> None:
    eventually(lambda: shoal.metric(WAITING) == count, what=f"{count} commits that wait")


def test_a_commit_waits_for_a_decided_transaction(
    shoal: ShoalProcess, sides: tuple[Side, Side]
) -> None:
    """Neither an open transaction nor an aborted one counts; records in between are no matter."""
    one, other = sides
    assert commit(other.member, other.producer, 40, UPPER).error_code == 0
    one.ask(30, first=10)
    waits(shoal, 1)
    other.end(committed=False)
    waits(shoal, 1)
    other.ask(40, first=5)
    assert other.answer() == (ErrorCode.none, "")
    waits(shoal, 1)
    other.end(committed=True)
    assert one.answer() == (ErrorCode.none, "")
    waits(shoal, 0)
    one.end(committed=True)


def test_a_plain_commit_ends_a_wait(shoal: ShoalProcess, sides: tuple[Side, Side]) -> None:
    one, other = sides
    one.ask(30, first=10)
    waits(shoal, 1)
    assert other.member.commit(10, UPPER).error_code == 0
    assert one.answer() == (ErrorCode.none, "")


def test_the_time_of_a_wait(shoal: ShoalProcess, sides: tuple[Side, Side]) -> None:
    one, other = sides
    before = shoal.metric(REFUSED)
    one.ask(30, first=10, wait_ms=100)
    code, message = one.answer()
    assert code is ErrorCode.transaction_abortable
    assert f"of members {other.member.member_id}, to get to offset 10" in message
    assert shoal.metric(REFUSED) == before + 1
    # The transaction is open, and may be aborted and repeated.
    one.end(committed=False)
    one.ask(30, first=0)
    assert one.answer() == (ErrorCode.none, "")


def test_a_fenced_producer_does_not_wait(shoal: ShoalProcess, sides: tuple[Side, Side]) -> None:
    one, _ = sides
    one.ask(30, first=10)
    waits(shoal, 1)
    begun(one.member.client, f"{one.member.group}-1")
    code, message = one.answer()
    assert code is ErrorCode.invalid_producer_epoch
    assert "another producer of the transactional id" in message


def test_a_closed_connection_does_not_wait(shoal: ShoalProcess, sides: tuple[Side, Side]) -> None:
    one, other = sides
    one.ask(30, first=10)
    waits(shoal, 1)
    one.link.close()
    waits(shoal, 0)
    one.link = WireClient(shoal.bootstrap)
    one.ask(30, first=10)
    waits(shoal, 1)
    assert other.member.commit(10, UPPER).error_code == 0
    assert one.answer() == (ErrorCode.none, "")


def test_bad_input(sides: tuple[Side, Side]) -> None:
    one, _ = sides
    one.ask(30, first=30)
    code, message = one.answer()
    assert code is ErrorCode.invalid_request
    assert "Offset 30 cannot be the first one" in message
    one.ask(30, first=3, wait_ms=0)
    code, message = one.answer()
    assert code is ErrorCode.invalid_request
    assert "cannot wait 0 ms" in message


def test_without_an_order_the_bytes_are_the_same(client: WireClient) -> None:
    assert COMMIT_ORDER_FEATURE in features(client)
    ranges = [{"first_hash": 0, "last_hash": HALF - 1, "position": 1, "finished": b""}]
    row: dict[str, Any] = {"partition_index": 0, "committed_offset": 1, "key_ranges": ranges}
    body = {
        "transactional_id": "t",
        "producer_id": 1,
        "producer_epoch": 0,
        "group_id": "g",
        "generation_id": 1,
        "topics": [{"name": TOPIC, "partitions": [row]}],
    }
    plain = codec.write_request(ApiKey.TXN_OFFSET_COMMIT, 5, body)
    row["first_offset"], body["order_timeout_ms"] = -1, -1
    assert codec.write_request(ApiKey.TXN_OFFSET_COMMIT, 5, body) == plain
    row["first_offset"], body["order_timeout_ms"] = 0, 5
    assert len(codec.write_request(ApiKey.TXN_OFFSET_COMMIT, 5, body)) > len(plain)
