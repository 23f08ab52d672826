"""Whether a cluster serves all its partitions, with sentences about what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.client.configs import Resource, ResourceType
from shoal.client.errors import ClientError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal.client.admin import ClusterDescription
    from shoal.client.client import Client
    from shoal.client.cluster import Partition, Topic

_MIN_ISR = "min.insync.replicas"


class Health(NamedTuple):
    """What is wrong with a cluster. Partitions are texts such as `jobs-0`.

    A partition is in one of the three lists at most: in that of its worst problem.
    """

    controller: int
    brokers: int
    partitions: int
    fenced: list[int]
    offline: list[str]
    under_min_isr: list[str]
    under_replicated: list[str]
    #: Brokers whose disk fails or is full, or that could not open a partition.
    failing_disks: Sequence[int] = ()

    @property
    def problems(self) -> list[str]:
        """Sentences about what is wrong, the worst first."""
        found = []
        if self.controller < 0:
            found.append("No controller is known: fewer than half of the controllers run.")
        for names, text in (
            (self.offline, "offline: no replica can lead them. Start their brokers"),
            (self.under_min_isr, f"under {_MIN_ISR}: they accept no writes with acks=all"),
            (self.under_replicated, "under-replicated: some replicas are not in sync"),
        ):
            if names:
                found.append(f"{_count(names, 'partition')} {text} ({_some(names)}).")
        if self.failing_disks:
            found.append(
                f"{_count(self.failing_disks, 'broker')} short of a working disk: full, failing, or"
                f" with partitions that cannot be opened ({_some(map(str, self.failing_disks))})."
                " See /readyz and the log of the broker for more."
            )
        if self.fenced:
            found.append(
                f"{_count(self.fenced, 'broker')} fenced: stopped, cut off or not caught up "
                f"({_some(map(str, self.fenced))})."
            )
        return found


def _count(things: Sequence[Any], noun: str) -> str:
    return f"1 {noun} is" if len(things) == 1 else f"{len(things)} {noun}s are"


def _some(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - 5} more" if len(every) > 5 else ""
    return ", ".join(every[:5]) + more


async def examine(client: Client) -> Health:
    """Return the health of a cluster. Raises `ClientError`."""
    cluster = await client.admin.describe_cluster(fenced=True)
    found = await judge(client, cluster, await client.admin.topics.list(internal=True))
    running = sorted({broker.node_id for broker in cluster.brokers} - cluster.fenced)
    failing = [id for id in running if await _disk_fails(client, id)]
    return found._replace(failing_disks=failing)


async def _disk_fails(client: Client, node: int) -> bool:
    """Whether a broker reports that its disk fails. It is unknown to clients that may not ask."""
    try:
        found = await client.admin.log_dirs([node], partitions=False)
    except ClientError:
        return False
    return any(directory.error is not None for directory in found[node])


async def judge(client: Client, cluster: ClusterDescription, topics: Mapping[str, Topic]) -> Health:
    """Return the health of a cluster with these brokers and topics, internal ones included."""
    partitions = [(topic.name, p) for topic in topics.values() for p in topic.partitions]
    lacking = [(name, p) for name, p in partitions if len(p.isr) < len(p.replicas)]
    least = await _min_isr(client, {name for name, _ in lacking})
    offline = [(name, p) for name, p in partitions if p.leader_id < 0]
    under_min = [(name, p) for name, p in lacking if p.leader_id >= 0 and len(p.isr) < least[name]]
    worse = {_text(*one) for one in (*offline, *under_min)}
    return Health(
        cluster.controller_id,
        len(cluster.brokers) - len(cluster.fenced),
        len(partitions),
        sorted(cluster.fenced),
        [_text(*one) for one in offline],
        [_text(*one) for one in under_min],
        [text for text in (_text(*one) for one in lacking) if text not in worse],
    )


def _text(topic: str, partition: Partition) -> str:
    return f"{topic}-{partition.index}"


async def _min_isr(client: Client, topics: set[str]) -> dict[str, int]:
    """Return `min.insync.replicas` of topics; 1 for one whose configs the client may not see."""
    wanted = [Resource(ResourceType.TOPIC, name) for name in sorted(topics)]
    found = await client.admin.configs.describe(wanted, keys=[_MIN_ISR]) if wanted else {}
    return {
        resource.name: 1 if isinstance(entries, KafkaError) else int(entries[_MIN_ISR].value or 1)
        for resource, entries in found.items()
    }
