"""Transactions that commit key ranges of one partition, against a real broker.

Those with disjoint key ranges are open at the same time. None of them waits for another one.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import KEY_HASH_MAX
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually
from wire.test_individual_commit import begun, end
from wire.test_key_range_groups import (
    HALF,
    TOPIC,
    Member,
    committed,
    raw,
    settled,
    start_broker,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.brokers.servers import ShoalProcess

LOWER, UPPER = (0, HALF - 1), (HALF, KEY_HASH_MAX)
OPEN = "shoal_group_coordinator_key_range_open_commits"
ABORTED = "shoal_group_coordinator_key_range_aborted_records_total"
_names = (f"transactions-{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def shoal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShoalProcess]:
    process = start_broker(tmp_path_factory.mktemp("txn"))
    yield process
    process.kill9()


@pytest.fixture
def client(shoal: ShoalProcess) -> Iterator[WireClient]:
    with WireClient(shoal.bootstrap) as client:
        yield client


def pair(client: WireClient) -> tuple[Member, Member]:
    """Two members with a half of the partition each."""
    group = next(_names)
    members = Member(client, group, "one"), Member(client, group, "other")
    settled(*members)
    assert [m.ranges for m in members] == [[LOWER], [UPPER]]
    return members


def commit(member: Member, producer: dict[str, Any], position: int, *ranges: Any) -> Any:
    """Commit a position of key ranges in a transaction, or a plain one. Return the row."""
    row = {
        "partition_index": 0,
        "committed_offset": position,
        "committed_leader_epoch": -1,
        "committed_metadata": None,
        "key_ranges": [
            {"first_hash": a, "last_hash": b, "position": position, "finished": b""}
            for a, b in ranges
        ],
    }
    body = {
        **producer,
        "group_id": member.group,
        "member_id": member.member_id,
        "generation_id": member.epoch,
        "topics": [{"name": TOPIC, "partitions": [row]}],
    }
    return member.client.call(ApiKey.TXN_OFFSET_COMMIT, 5, body).topics[0].partitions[0]


def stable(member: Member, *, wanted: bool = True) -> ErrorCode:
    """The result of an OffsetFetch that requires a stable offset."""
    asked = {
        "group_id": member.group,
        "topics": [{"name": TOPIC, "partition_indexes": [0]}],
        "member_id": member.member_id if wanted else None,
        "member_epoch": member.epoch if wanted else -1,
        "key_ranges_wanted": wanted,
    }
    body = {"groups": [asked], "require_stable": True}
    (group,) = member.client.call(ApiKey.OFFSET_FETCH, 9, body).groups
    return ErrorCode(group.topics[0].partitions[0].error_code)


def both(client: WireClient) -> tuple[Member, dict[str, Any], Member, dict[str, Any]]:
    """Two members, and the producer of each."""
    one, other = pair(client)
    return one, begun(client, f"{one.group}-1"), other, begun(client, f"{one.group}-2")


def test_disjoint_key_ranges_do_not_wait(shoal: ShoalProcess, client: WireClient) -> None:
    one, first, other, second = both(client)
    before = shoal.metric(OPEN)
    row = commit(one, first, 20, LOWER)
    assert (row.error_code, row.individual_commit.stable_offset) == (0, -1)
    row = commit(other, second, 30, UPPER)
    assert (row.error_code, row.individual_commit.error_message) == (0, None)
    assert commit(one, first, 25, LOWER).error_code == 0
    assert shoal.metric(OPEN) == before + 2
    assert committed(one) == (-1, [])
    end(other.client, second, committed=True)
    eventually(lambda: committed(one) == (-1, [(*LOWER, -1), (*UPPER, 30)]))
    # The other transaction is open meanwhile, and the next one of this producer begins.
    assert commit(one, first, 40, LOWER).error_code == 0
    eventually(lambda: commit(other, second, 50, UPPER).error_code == 0)
    end(one.client, first, committed=True)
    eventually(lambda: committed(one) == (30, [(*LOWER, 40), (*UPPER, 30)]))
    end(other.client, second, committed=True)
    eventually(lambda: committed(one) == (40, [(*LOWER, 40), (*UPPER, 50)]))
    eventually(lambda: shoal.metric(OPEN) == before)


def test_an_abort_concerns_its_own_key_ranges(shoal: ShoalProcess, client: WireClient) -> None:
    one, first, other, second = both(client)
    assert one.commit(10, LOWER).error_code == 0
    assert other.commit(10, UPPER).error_code == 0
    aborted = shoal.metric(ABORTED)
    assert commit(one, first, 30, LOWER).error_code == 0
    assert commit(other, second, 30, UPPER).error_code == 0
    end(one.client, first, committed=False)
    end(other.client, second, committed=True)
    eventually(lambda: committed(one) == (10, [(*LOWER, 10), (*UPPER, 30)]))
    eventually(lambda: shoal.metric(ABORTED) == aborted + 10)
    eventually(lambda: commit(one, first, 30, LOWER).error_code == 0)
    end(one.client, first, committed=True)
    eventually(lambda: committed(one) == (30, []))


def test_only_the_same_key_ranges_wait(client: WireClient) -> None:
    one, first, other, second = both(client)
    assert commit(one, first, 20, LOWER).error_code == 0
    row = commit(one, second, 20, (0, 5))
    assert row.error_code == ErrorCode.concurrent_transactions
    assert "Repeat the commit once that transaction ends" in row.individual_commit.error_message
    assert one.commit(20, LOWER).error_code == ErrorCode.concurrent_transactions
    # Without a transaction, the other key ranges do not wait either.
    assert other.commit(30, UPPER).error_code == 0
    assert commit(one, second, 20, UPPER).error_code == ErrorCode.stale_member_epoch
    end(one.client, first, committed=True)
    eventually(lambda: committed(one) == (20, [(*LOWER, 20), (*UPPER, 30)]))


def test_who_waits_for_a_stable_offset(client: WireClient) -> None:
    """A member whose own key ranges are pending, and all that read the whole partition."""
    one, first, other, _ = both(client)
    assert one.commit(10, LOWER).error_code == 0
    assert other.commit(10, UPPER).error_code == 0
    assert commit(one, first, 20, LOWER).error_code == 0
    assert stable(other) is ErrorCode.none
    assert stable(one) is ErrorCode.unstable_offset_commit
    assert stable(one, wanted=False) is ErrorCode.unstable_offset_commit
    end(one.client, first, committed=False)
    eventually(lambda: stable(one) is ErrorCode.none)
    assert stable(one, wanted=False) is ErrorCode.none


def test_transactions_survive_a_restart_of_the_coordinator(
    shoal: ShoalProcess, client: WireClient
) -> None:
    """Open ones and those that have just been committed."""
    one, first, other, second = both(client)
    assert commit(one, first, 20, LOWER).error_code == 0
    assert commit(other, second, 30, UPPER).error_code == 0
    end(other.client, second, committed=True)
    shoal.kill9()
    shoal.start()
    with WireClient(shoal.bootstrap) as again:
        one.client = other.client = again
        eventually(lambda: one.beat().error_code == 0 and other.beat().error_code == 0)
        eventually(lambda: committed(one) == (-1, [(*LOWER, -1), (*UPPER, 30)]))
        end(one.client, first, committed=True)
        eventually(lambda: committed(one) == (20, [(*LOWER, 20), (*UPPER, 30)]))


def test_other_clients_see_unchanged_bytes(client: WireClient) -> None:
    """OffsetFetch while transactions with key ranges are open, and after their end."""
    one, first, other, second = both(client)
    assert one.commit(10, LOWER).error_code == 0
    assert other.commit(10, UPPER).error_code == 0
    asked = {"groups": [{"group_id": one.group, "topics": None, "member_epoch": -1}]}
    expected = raw(client, ApiKey.OFFSET_FETCH, 9, asked)
    assert commit(one, first, 20, LOWER).error_code == 0
    assert commit(other, second, 30, UPPER).error_code == 0
    assert raw(client, ApiKey.OFFSET_FETCH, 9, asked) == expected
    end(other.client, second, committed=True)
    eventually(lambda: committed(one)[1] == [(*LOWER, 10), (*UPPER, 30)])
    assert raw(client, ApiKey.OFFSET_FETCH, 9, asked) == expected
    end(one.client, first, committed=False)
    body = {
        **first,
        "group_id": next(_names),
        "generation_id": -1,
        "topics": [
            {
                "name": TOPIC,
                "partitions": [{"partition_index": 0, "committed_offset": 5}],
            }
        ],
    }
    tag = b"\xe8\x07"
    assert tag not in codec.write_request(ApiKey.TXN_OFFSET_COMMIT, 5, body)
    assert tag not in raw(client, ApiKey.TXN_OFFSET_COMMIT, 5, body)
