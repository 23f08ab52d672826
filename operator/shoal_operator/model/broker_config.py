"""Broker configs of a QueueCluster: static ones in properties files, dynamic ones by request.

Configs that Kafka can update cluster-wide are set on the running brokers, so that a change restarts
nothing. All others are in the brokers' files, whose hash is an annotation of the pods.
"""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from typing import TYPE_CHECKING

from shoal_operator.model import (
    listeners,
    names,
    node_pools,
    pod_layout,
    security,
    storage,
    tiered,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal_operator.model.queue_cluster import (
        ClusterSpec,
        NodePoolSettings,
        PodVariable,
        QueueCluster,
    )

#: Consumers that send their rack read from a replica there (KIP-392).
REPLICA_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
#: A config that brokers store cluster-wide from their start on (KIP-966). It hides the one of their
#: files, and nobody may unset it.
MIN_ISR = "min.insync.replicas"
#: UUID namespace of generated cluster ids.
NAMESPACE = uuid.UUID("6f0c5d5e-5f0b-5f39-9f0e-3a8d2f1c7b44")

#: Cluster-wide dynamic broker settings (Kafka documentation, "Updating Broker Configs").
DYNAMIC = frozenset(
    """
    background.threads compression.gzip.level compression.lz4.level compression.type
    compression.zstd.level config.providers errors.deadletterqueue.auto.create.topics.enable
    errors.deadletterqueue.topic.name.prefix follower.fetch.last.tiered.offset.enable
    follower.replication.throttled.rate group.consumer.assignment.interval.ms
    group.consumer.assignor.offload.enable group.coordinator.cached.buffer.max.bytes
    group.share.assignment.interval.ms group.share.assignor.offload.enable
    group.streams.assignment.interval.ms group.streams.assignor.offload.enable
    leader.replication.throttled.rate log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size
    log.cleaner.delete.retention.ms log.cleaner.io.buffer.load.factor
    log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second
    log.cleaner.max.compaction.lag.ms log.cleaner.min.cleanable.ratio
    log.cleaner.min.compaction.lag.ms log.cleaner.threads log.cleanup.policy
    log.flush.interval.messages log.flush.interval.ms log.index.interval.bytes
    log.index.size.max.bytes log.local.retention.bytes log.local.retention.ms
    log.message.timestamp.after.max.ms log.message.timestamp.before.max.ms
    log.message.timestamp.type log.preallocate log.remote.copy.lag.bytes
    log.remote.copy.lag.ms log.retention.bytes log.retention.ms log.roll.jitter.ms
    log.roll.ms log.segment.bytes log.segment.delete.delay.ms max.connection.creation.rate
    max.connections max.connections.per.ip max.connections.per.ip.overrides
    max.decompressed.message.bytes message.max.bytes metric.reporters min.insync.replicas
    num.io.threads num.network.threads num.recovery.threads.per.data.dir
    num.replica.fetchers producer.id.expiration.ms remote.fetch.max.wait.ms
    remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
    remote.log.manager.copier.thread.pool.size remote.log.manager.copy.max.bytes.per.second
    remote.log.manager.expiration.thread.pool.size
    remote.log.manager.fetch.max.bytes.per.second
    remote.log.manager.follower.thread.pool.size remote.log.reader.threads
    replica.alter.log.dirs.io.max.bytes.per.second share.coordinator.cached.buffer.max.bytes
    shoal.log.flush.group.commit shoal.remote.encryption.clear.segments.enable
    transaction.partition.verification.enable unclean.leader.election.enable
    """.split()
)


_LISTENERS = "Declare listeners in spec.listeners."
_OPERATOR = "The operator sets it."
_STORAGE = "Use spec.storage."
_AUTHORIZATION = "Use spec.authorization."
_TLS = "Use spec.listeners[].tls."
_TIERED = "Use spec.tieredStorage."
_LOGIN = "Use spec.listeners[].authentication."
#: Settings that `spec.config` cannot have, with what to use instead. Time-outs of the quorum, such
#: as `controller.quorum.election.timeout.ms`, are allowed.
RESERVED = {
    "advertised.listeners": _LISTENERS,
    "authorizer.class.name": _AUTHORIZATION,
    "broker.id": _OPERATOR,
    "broker.rack": "Use spec.rack.",
    "cluster.id": _OPERATOR,
    "controller.listener.names": _OPERATOR,
    "controller.quorum.auto.join.enable": _OPERATOR,
    "controller.quorum.bootstrap.servers": _OPERATOR,
    "controller.quorum.voters": _OPERATOR,
    "inter.broker.listener.name": (
        "Brokers use the first Internal listener: order spec.listeners accordingly."
    ),
    "listener.security.protocol.map": _LISTENERS,
    "listeners": _LISTENERS,
    "log.dir": _STORAGE,
    "log.dirs": _STORAGE,
    "node.id": _OPERATOR,
    "process.roles": _OPERATOR,
    "remote.log.storage.system.enable": _TIERED,
    "security.inter.broker.protocol": _LISTENERS,
    "shoal.brokers.per.host": "Use spec.brokersPerPod.",
    "shoal.cluster.id": _OPERATOR,
    "shoal.insecure.listeners.enable": _OPERATOR,
    "shoal.log.dir.max.bytes": _STORAGE,
    "shoal.metrics.listener": "Use spec.metrics.port.",
    "shoal.remote.chunk.cache.bytes": _TIERED,
    "shoal.remote.compression.type": _TIERED,
    "shoal.remote.copy.interval.ms": _TIERED,
    "shoal.remote.encryption.key.directory": _TIERED,
    "shoal.remote.encryption.key.id": _TIERED,
    "shoal.remote.store.endpoint": _TIERED,
    "shoal.remote.store.incarnation": "A restore writes it.",
    "shoal.remote.store.region": _TIERED,
    "shoal.remote.store.url": _TIERED,
    "super.users": "Use spec.superUsers.",
}
#: What the names of such settings begin with, and settings that are allowed nevertheless.
RESERVED_PREFIXES = {
    "listener.name.": _LISTENERS,
    "sasl.": _LOGIN,
    "shoal.metrics.": "Use spec.metrics.",
    "shoal.ssl.": _TLS,
    "ssl.": _TLS,
}
ALLOWED = frozenset(
    {
        "sasl.server.max.receive.size",
        "shoal.ssl.handshake.timeout.ms",
        "shoal.ssl.reload.interval.ms",
        "ssl.cipher.suites",
        "ssl.enabled.protocols",
        "ssl.protocol",
    }
)

#: Names and values as the definitions of QueueClusters and QueueTopics admit them.
NAME = re.compile(r"[A-Za-z0-9._-]+")
LINE = re.compile(r"[^\x00-\x1f\x7f\x85\u2028\u2029]*")


def find_replacement(name: str) -> str | None:
    """Return what to use instead of a setting that only the operator sets, else None."""
    if name in ALLOWED:
        return None
    by_prefix = (remedy for begin, remedy in RESERVED_PREFIXES.items() if name.startswith(begin))
    return RESERVED.get(name) or next(by_prefix, None)


def find_malformed(config: Mapping[str, str]) -> str:
    """Return what is wrong with a name or a value of `spec.config`, else an empty text.

    The API server checks the same, but not for objects that are older than the check. A line break
    in a broker's file would begin another setting, one that only the operator may set.
    """
    for name, value in sorted(config.items()):
        if not NAME.fullmatch(name):
            return (
                f"spec.config has the name {name!r:.200}. Names have letters, digits, dots, "
                "underscores and dashes only."
            )
        if not LINE.fullmatch(value):
            return f"spec.config.{name} has a line break or a control character. Remove it."
    return ""


def find_reserved(spec: ClusterSpec) -> tuple[str, str] | None:
    """Return the path of a reserved setting in `config` or `env`, and what to use instead."""
    for name in sorted(spec.get("config", {})):
        if remedy := find_replacement(name):
            return f"spec.config.{name}", remedy
    for path, entry in _iterate_environments(spec):
        if match := _find_reserved_variable(entry["name"]):
            name, remedy = match
            return f"{path} {entry['name']} ({name})", remedy
    return None


def _iterate_environments(spec: ClusterSpec) -> Iterator[tuple[str, PodVariable]]:
    """Yield the variables of all pod templates, each with the path of its list."""
    templates: dict[str, ClusterSpec | NodePoolSettings] = {"spec": spec}
    templates |= {f"spec.nodePools[{pool['name']}]": pool for pool in spec.get("nodePools", [])}
    for path, section in templates.items():
        for entry in section.get("template", {}).get("pod", {}).get("env", []):
            yield f"{path}.template.pod.env", entry


def _find_reserved_variable(variable_name: str) -> tuple[str, str] | None:
    """Return the setting of a variable, or what its name begins with, and what to use instead."""
    if variable_name in map(format_variable, ALLOWED):
        return None
    for name, remedy in RESERVED.items():
        if variable_name == format_variable(name):
            return name, remedy
    for begin, remedy in RESERVED_PREFIXES.items():
        if variable_name.startswith(format_variable(begin)):
            return f"{begin}*", remedy
    return None


def select_dynamic(cluster: QueueCluster) -> dict[str, str]:
    """Return the configs that are set on running brokers."""
    config = cluster["spec"].get("config", {})
    configs = {k: v for k, v in config.items() if k in DYNAMIC} | tiered.build_sealing_configs(
        cluster
    )
    return dict(sorted(configs.items()))


def _compute_replication(cluster: QueueCluster) -> int:
    """Return the replicas of a topic that asks for no number."""
    # Replicas in one pod would fail together, so pods count, not brokers.
    return min(len(node_pools.list_broker_pods(cluster)), 3)


def compute_min_isr(cluster: QueueCluster) -> str:
    """Return min.insync.replicas of a cluster whose spec does not say it."""
    return str(max(1, _compute_replication(cluster) - 1))


def select_static(cluster: QueueCluster) -> dict[str, str]:
    """Return the configs of the spec that brokers read when they start."""
    return {k: v for k, v in cluster["spec"].get("config", {}).items() if k not in DYNAMIC}


def get_log_levels(cluster: QueueCluster) -> dict[str, str]:
    """Return the wanted levels by logger."""
    return dict((cluster["spec"].get("logging") or {}).get("loggers", {}))


def list_loggers(cluster: QueueCluster) -> list[str]:
    """Return the loggers whose levels the spec has, or had when it was applied last."""
    applied = cluster.get("status", {}).get("appliedLoggers", [])
    return sorted({*get_log_levels(cluster), *applied})


def format_variable(name: str) -> str:
    """Return the environment variable by which a broker reads a setting."""
    return "SHOAL_" + re.sub(r"[.\-]", "_", name.removeprefix("shoal.")).upper()


def find_duplicate(spec: ClusterSpec) -> tuple[str, str] | None:
    """Return a variable of a pod template, with its path, and its config if `spec.config` has that
    too.

    The broker would silently prefer the variable over its file.
    """
    names_of = {format_variable(name): name for name in spec.get("config", {})}
    for path, entry in _iterate_environments(spec):
        if name := names_of.get(entry["name"]):
            return f"{path} sets {entry['name']}", name
    return None


def format_properties(
    cluster: QueueCluster, slot: int = 0, *, pool: node_pools.NodePool | None = None
) -> str:
    """Return the static configs of all brokers in a slot; slots differ in their ports.

    `cluster` is the pool's view; the cluster's own pool is the default.
    """
    spec, pool = cluster["spec"], pool or node_pools.list_pools(cluster)[0]
    listener_ports = {
        n["name"].upper(): pod_layout.compute_port(n["port"], slot) for n in spec["listeners"]
    }
    controllers = security.get_controller_listeners(cluster)
    ports = listener_ports | {
        controller.name.upper(): controller.port for controller in controllers
    }
    replication = _compute_replication(cluster)
    # Only brokers in slot 0 are controllers.
    listening = listener_ports if slot else ports
    if pool.is_controller:
        listening = {controller.name.upper(): controller.port for controller in controllers}
    metrics_port = pod_layout.compute_port(spec["metrics"]["port"], slot)
    lines = {
        "listeners": ",".join(f"{name}://:{port}" for name, port in listening.items()),
        "listener.security.protocol.map": ",".join(map(":".join, _map_protocols(cluster).items())),
        "controller.listener.names": ",".join(
            controller.name.upper() for controller in controllers
        ),
        "inter.broker.listener.name": listeners.get_internal(cluster)["name"].upper(),
        "log.dirs": names.DATA_DIR,
        "shoal.metrics.listener": f"0.0.0.0:{metrics_port}",
        "offsets.topic.replication.factor": str(replication),
        "share.coordinator.state.topic.replication.factor": str(replication),
        "share.coordinator.state.topic.min.isr": str(max(1, replication - 1)),
        "transaction.state.log.replication.factor": str(replication),
        "transaction.state.log.min.isr": str(max(1, replication - 1)),
        "default.replication.factor": str(replication),
        MIN_ISR: compute_min_isr(cluster),
    }
    if pool.is_controller:
        # A node may only name a listener that it has.
        del lines["inter.broker.listener.name"]
    if spec.get("rack"):
        lines["replica.selector.class"] = REPLICA_SELECTOR
    lines |= security.build_properties(cluster)
    lines |= tiered.build_properties(cluster, replication) | storage.build_properties(cluster)
    return _format_file(lines | select_static(cluster))


def _map_protocols(cluster: QueueCluster) -> dict[str, str]:
    """Return the security protocol of each listener, by the listener's name."""
    protocols = {n["name"].upper(): security.get_protocol(n) for n in cluster["spec"]["listeners"]}
    return protocols | {
        controller.name.upper(): controller.protocol
        for controller in security.get_controller_listeners(cluster)
    }


def format_broker_properties(cluster: QueueCluster, broker_id: int, advertised: str) -> str:
    """Return the configs of one broker. `advertised` is empty for a dedicated controller.

    They are not part of the hash that restarts brokers: the metadata log has the voters, and the
    roller compares the advertised addresses.
    """
    first, voters = choose_first_voters(cluster), node_pools.list_voters(cluster)
    lines = {
        "shoal.cluster.id": derive_cluster_id(cluster),
        "process.roles": ",".join(_list_roles(cluster, broker_id)),
        "controller.quorum.voters": ",".join(_format_voter(cluster, voter) for voter in first),
    }
    if advertised:
        lines["advertised.listeners"] = advertised
    # Running brokers get a change as a dynamic config; a broker that starts has it from the start.
    lines |= tiered.build_sealing_configs(cluster)
    if "PLAINTEXT" in _map_protocols(cluster).values():
        # Other pods reach this listener.
        lines["shoal.insecure.listeners.enable"] = "true"
    if broker_id in voters and len(voters) > 1:
        # A voter that starts later or with an empty volume joins the quorum automatically.
        lines["controller.quorum.auto.join.enable"] = "true"
    if (
        pod_layout.get_brokers_per_pod(cluster) > 1
        and not cluster["spec"].get("rack")
        and advertised
    ):
        lines["broker.rack"] = node_pools.format_pod_name(cluster, pod_layout.get_pod(broker_id))
    if pod_layout.get_slot(broker_id):
        # The pod's number, which Kubernetes passes to containers, is the id in slot 0 only.
        lines["node.id"] = str(broker_id)
    return _format_file(lines)


def _list_roles(cluster: QueueCluster, broker_id: int) -> list[str]:
    """Return the roles of a node. Controllers are all in slot 0."""
    pool = node_pools.find_pool(cluster, pod_layout.get_pod(broker_id))
    if pool is None or len(pool.roles) == 1:
        return sorted(pool.roles) if pool else [node_pools.BROKER]
    combined = [node_pools.BROKER, node_pools.CONTROLLER]
    return combined if broker_id < node_pools.VOTERS_MAX else combined[:1]


def choose_first_voters(cluster: QueueCluster) -> list[int]:
    """Return the current voters, or the wanted ones before the cluster has started."""
    return cluster.get("status", {}).get("quorumVoters") or node_pools.list_voters(cluster)


def get_controller_addresses(cluster: QueueCluster) -> dict[int, str]:
    """Return the addresses of dedicated controllers by id."""
    pool = node_pools.find_controller_pool(cluster)
    return {id: _format_controller_address(cluster, id) for id in (pool.pods if pool else ())}


def _format_controller_address(cluster: QueueCluster, id: int) -> str:
    """Return the address at which nodes reach a controller."""
    meta = cluster["metadata"]
    domain = f"{names.format_headless_service(meta['name'])}.{meta['namespace']}.svc"
    port = security.get_controller_listeners(cluster)[0].port
    return f"{node_pools.format_pod_name(cluster, id)}.{domain}:{port}"


def _format_voter(cluster: QueueCluster, broker_id: int) -> str:
    return f"{broker_id}@{_format_controller_address(cluster, broker_id)}"


def derive_cluster_id(cluster: QueueCluster) -> str:
    """Return the cluster id, derived from namespace and name until the brokers report it.

    A cluster that is created again with retained volumes, or restored from its bucket, thus has the
    same id. One that is restored from another cluster's objects has the id of that one.
    """
    meta, status = cluster["metadata"], cluster.get("status", {})
    known_id = status.get("clusterId") or status.get("restore", {}).get("clusterId")
    known_id = known_id or cluster["spec"].get("restoreFrom", {}).get("clusterId")
    derived = uuid.uuid5(NAMESPACE, f"{meta['namespace']}/{meta['name']}").bytes
    return known_id or base64.urlsafe_b64encode(derived).rstrip(b"=").decode()


def _format_file(lines: Mapping[str, str]) -> str:
    return "".join(f"{k}={_escape(v)}\n" for k, v in sorted(lines.items()))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def compute_digest(text: str) -> str:
    """Return a short hash for annotations."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
