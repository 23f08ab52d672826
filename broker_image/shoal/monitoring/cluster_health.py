"""Whether a cluster serves all its partitions, with sentences about what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.client.admin.configs import ConfigResource, ConfigResourceType
from shoal.client.errors import ClientError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal.client.admin.admin import ClusterDescription
    from shoal.client.client import Client
    from shoal.client.net.metadata import PartitionInfo, Topic

_MIN_ISR = "min.insync.replicas"


class ClusterHealth(NamedTuple):
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
        problems = []
        if self.controller < 0:
            problems.append("No controller is known: fewer than half of the controllers run.")
        for names, text in (
            (self.offline, "offline: no replica can lead them. Start their brokers"),
            (self.under_min_isr, f"under {_MIN_ISR}: they accept no writes with acks=all"),
            (self.under_replicated, "under-replicated: some replicas are not in sync"),
        ):
            if names:
                problems.append(
                    f"{_format_count(names, 'partition')} {text} ({_format_some(names)})."
                )
        if self.failing_disks:
            problems.append(
                f"{_format_count(self.failing_disks, 'broker')} short of a working disk: full, "
                "failing, or with partitions that cannot be opened "
                f"({_format_some(map(str, self.failing_disks))})."
                " See /readyz and the log of the broker for more."
            )
        if self.fenced:
            problems.append(
                f"{_format_count(self.fenced, 'broker')} fenced: stopped, cut off or not caught up "
                f"({_format_some(map(str, self.fenced))})."
            )
        return problems


def _format_count(things: Sequence[Any], noun: str) -> str:
    return f"1 {noun} is" if len(things) == 1 else f"{len(things)} {noun}s are"


def _format_some(names: Iterable[str]) -> str:
    all_names = list(names)
    more = f" and {len(all_names) - 5} more" if len(all_names) > 5 else ""
    return ", ".join(all_names[:5]) + more


async def examine(client: Client) -> ClusterHealth:
    """Return the health of a cluster. Raises `ClientError`."""
    cluster = await client.admin.describe_cluster(fenced=True)
    health = await judge(client, cluster, await client.admin.topics.list(internal=True))
    running = sorted({broker.node_id for broker in cluster.brokers} - cluster.fenced)
    failing = [id for id in running if await _is_disk_failing(client, id)]
    return health._replace(failing_disks=failing)


async def _is_disk_failing(client: Client, node: int) -> bool:
    """Whether a broker reports that its disk fails. It is unknown to clients that may not ask."""
    try:
        log_dirs = await client.admin.log_dirs([node], partitions=False)
    except ClientError:
        return False
    return any(directory.error is not None for directory in log_dirs[node])


async def judge(
    client: Client, cluster: ClusterDescription, topics: Mapping[str, Topic]
) -> ClusterHealth:
    """Return the health of a cluster with these brokers and topics, internal ones included."""
    partitions = [(topic.name, p) for topic in topics.values() for p in topic.partitions]
    lacking = [(name, p) for name, p in partitions if len(p.isr) < len(p.replicas)]
    least = await _read_min_isr(client, {name for name, _ in lacking})
    offline = [(name, p) for name, p in partitions if p.leader_id < 0]
    under_min = [(name, p) for name, p in lacking if p.leader_id >= 0 and len(p.isr) < least[name]]
    worse = {_format_partition(*entry) for entry in (*offline, *under_min)}
    return ClusterHealth(
        cluster.controller_id,
        len(cluster.brokers) - len(cluster.fenced),
        len(partitions),
        sorted(cluster.fenced),
        [_format_partition(*entry) for entry in offline],
        [_format_partition(*entry) for entry in under_min],
        [text for text in (_format_partition(*entry) for entry in lacking) if text not in worse],
    )


def _format_partition(topic: str, partition: PartitionInfo) -> str:
    return f"{topic}-{partition.index}"


async def _read_min_isr(client: Client, topics: set[str]) -> dict[str, int]:
    """Return `min.insync.replicas` of topics; 1 for one whose configs the client may not see."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in sorted(topics)]
    configs = await client.admin.configs.describe(resources, keys=[_MIN_ISR]) if resources else {}
    return {
        resource.name: 1 if isinstance(entries, KafkaError) else int(entries[_MIN_ISR].value or 1)
        for resource, entries in configs.items()
    }
