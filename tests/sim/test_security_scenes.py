"""Rights are withdrawn while a broker is cut off, in simulated time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.client.errors import ClientError
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.security.acls import Acl, Operation, ResourceType
from sim.scenes import Asked, Scene, scene
from sim.test_scenes import SESSION_S, SOON_S, written
from support.security import permissions
from support.security.permissions import creations, deletions, entry

if TYPE_CHECKING:
    from uuid import UUID

TOPIC = "work"
#: All clients of a scene are this principal, and may come from everywhere.
RIGHTS = [
    entry("*", Operation.READ, ResourceType.TOPIC, TOPIC),
    entry("*", Operation.WRITE, ResourceType.TOPIC, TOPIC),
]
#: A topic without an entry is open to all.
OF_OTHERS = entry("*", Operation.ALL, ResourceType.TOPIC, TOPIC)._replace(principal="User:other")
REFUSED = ErrorCode.topic_authorization_failed


def grant(cluster: Scene, acls: list[Acl]) -> None:
    answer = cluster.asked(1, ApiKey.CREATE_ACLS, creations(acls))
    assert not any(row.error_code for row in answer.results), answer
    for _, broker in cluster.cluster.running():
        cluster.until(lambda b=broker: len(b.image.acls) == len(acls), "a broker has the rights")


def fetch(cluster: Scene, id: int, topic_id: UUID) -> Any:
    """Fetch from the start of the partition at a broker. Return the row of the response."""
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "partition_max_bytes": 1 << 20,
    }
    fields = {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [{"topic_id": topic_id, "partitions": [partition]}],
    }
    answer = cluster.asked(id, ApiKey.FETCH, fields)
    assert not answer.error_code, answer
    return answer.responses[0].partitions[0]


def await_refusal(cluster: Scene, id: int, topic_id: UUID) -> None:
    """Fetch from a broker until it refuses, for a second at most."""
    for _ in range(10):
        if fetch(cluster, id, topic_id).error_code is REFUSED:
            return
        cluster.passes(0.1)
    raise AssertionError(f"broker {id} does not refuse")


def is_confirmed(withdrawal: Asked) -> bool:
    """Whether the response reports that entries were deleted."""
    try:
        return not any(row.error_code for row in withdrawal.result().filter_results)
    except ClientError:
        return False


def test_a_broker_that_is_cut_off_commits_nothing_that_was_withdrawn() -> None:
    """A leader that is cut off has its old entries, as in Kafka. What it accepts is never
    committed, and it refuses the client once it is back."""
    with scene(configs=permissions.CONFIGS) as cluster:
        off, *others = cluster.others(cluster.controller())
        other = others[0].id
        topic_id = cluster.make_topic(TOPIC, [off.id, *(m.id for m in cluster.others(off))])
        grant(cluster, [*RIGHTS, OF_OTHERS])
        assert not written(cluster.produce(off.id, topic_id))
        cluster.cut_off(off)
        withdrawal = cluster.ask(other, ApiKey.DELETE_ACLS, deletions(RIGHTS))
        assert is_confirmed(withdrawal)
        await_refusal(cluster, other, topic_id)
        assert not fetch(cluster, off.id, topic_id).error_code
        late = cluster.produce(off.id, topic_id)
        assert written(late) is ErrorCode.not_leader_or_follower
        assert late.after_s < 2 * SESSION_S + 2 * SOON_S
        assert fetch(cluster, off.id, topic_id).high_watermark == 1

        cluster.heal()
        cluster.until(cluster.cluster.fully_replicated, "all is well")
        await_refusal(cluster, off.id, topic_id)
        assert written(cluster.produce(off.id, topic_id)) is REFUSED
        for id in cluster.cluster.brokers:
            assert fetch(cluster, id, topic_id).error_code is REFUSED
            assert cluster.partition(TOPIC, 0, id).log.log_end_offset == 1


def test_a_controller_that_is_cut_off_withdraws_nothing_alone() -> None:
    """It does not confirm a withdrawal that only it has. Afterwards all brokers have the same
    entries, and those are withdrawn whose withdrawal was confirmed."""
    with scene(configs=permissions.CONFIGS) as cluster:
        topic_id = cluster.make_topic(TOPIC, [1, 2, 3])
        grant(cluster, [*RIGHTS, OF_OTHERS])
        off = cluster.controller()
        others = [machine.broker for machine in cluster.others(off)]
        cluster.cut_off(off)
        lost = cluster.ask(off.id, ApiKey.DELETE_ACLS, deletions(RIGHTS))
        cluster.until(
            lambda: all(b is not None and b.quorum.leader_id not in (None, off.id) for b in others),
            "another controller",
        )
        assert not lost.done
        cluster.heal()
        # The former controller may pass the request on to the present one.
        confirmed = is_confirmed(lost)
        cluster.until(cluster.cluster.fully_replicated, "all is well")
        entries = [dict(broker.image.acls) for _, broker in cluster.cluster.running()]
        assert len(entries[0]) == (1 if confirmed else 3)
        assert entries[0] == entries[1] == entries[2]
        for id in cluster.cluster.brokers:
            assert (fetch(cluster, id, topic_id).error_code is REFUSED) == confirmed
