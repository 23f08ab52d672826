"""Tiered storage of a QueueCluster and of a QueueTopic: configs and credentials of the brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator.model.quantities import parse_duration_ms, parse_size_bytes

if TYPE_CHECKING:
    from shoal_operator.model.kubernetes import EnvVar, SecretKeyRef
    from shoal_operator.model.queue_cluster import QueueCluster, TieredStorage
    from shoal_operator.model.resources.queue_topic import QueueTopicSpec

S3, GCS, AZURE = "S3", "GCS", "Azure"
_SCHEMES = {S3: "s3", GCS: "gs", AZURE: "az"}
#: The keys of the Secret, which are the variables that the brokers read them from, and whether the
#: Secret must have them.
_CREDENTIALS = {
    S3: {
        "AWS_ACCESS_KEY_ID": True,
        "AWS_SECRET_ACCESS_KEY": True,
        "AWS_SESSION_TOKEN": False,
    },
    GCS: {"GOOGLE_SERVICE_ACCOUNT_KEY": True},
    AZURE: {"AZURE_STORAGE_ACCOUNT_KEY": True},
}
#: The part of a broker's volume that caches what it reads from the store, without `cacheSize`.
_CACHE_PART = 10
_ENABLE = "remote.storage.enable"
#: Name and mount path of the volume with the keys of encrypted objects.
_KEYS = "remote-keys"
KEYS_DIR = "/etc/shoal-remote-keys"


def is_enabled(cluster: QueueCluster) -> bool:
    """Return whether the brokers have an object store."""
    return bool(cluster["spec"].get("tieredStorage"))


def build_url(store: TieredStorage) -> str:
    """Return the URL of the store."""
    parts = [store["account"]] if store["type"] == AZURE else []
    parts += [store["bucket"], *filter(None, [store.get("prefix", "").strip("/")])]
    return f"{_SCHEMES[store['type']]}://{'/'.join(parts)}"


def compute_cache_bytes(cluster: QueueCluster) -> int:
    """Return the size of a broker's cache. `cluster` is the pool's view."""
    spec = cluster["spec"]
    if cache := spec["tieredStorage"].get("cacheSize"):
        return parse_size_bytes(cache)
    return parse_size_bytes(spec["storage"]["size"]) // _CACHE_PART


def build_properties(cluster: QueueCluster, replication: int) -> dict[str, str]:
    """Return the configs of the brokers; `replication` is that of internal topics."""
    if not is_enabled(cluster):
        return {}
    settings = cluster["spec"]["tieredStorage"]
    configs = {
        "remote.log.storage.system.enable": "true",
        "rlmm.config.remote.log.metadata.topic.replication.factor": str(replication),
        "shoal.remote.store.url": build_url(settings),
        "shoal.remote.chunk.cache.bytes": str(max(1, compute_cache_bytes(cluster))),
        "shoal.remote.copy.interval.ms": str(parse_duration_ms(settings.get("copyInterval", "1h"))),
    }
    for field in ("endpoint", "region"):
        if settings.get(field):
            configs[f"shoal.remote.store.{field}"] = settings[field]
    if settings.get("encryption"):
        configs["shoal.remote.encryption.key.directory"] = KEYS_DIR
    return configs


def build_sealing_configs(cluster: QueueCluster) -> dict[str, str]:
    """Return the configs by which brokers seal new objects. They change without a restart."""
    settings, configs = cluster["spec"].get("tieredStorage"), {}
    if not settings:
        return {}
    if settings.get("compression", "uncompressed") != "uncompressed":
        configs["shoal.remote.compression.type"] = settings["compression"]
    if key_id := settings.get("encryption", {}).get("keyId"):
        configs["shoal.remote.encryption.key.id"] = key_id
    return configs


def has_clear_backups(cluster: QueueCluster) -> bool:
    """Return whether there are keys, but none encrypts what brokers write now."""
    return bool(
        list_volumes(cluster)
    ) and "shoal.remote.encryption.key.id" not in build_sealing_configs(cluster)


def list_volumes(cluster: QueueCluster) -> list[tuple[str, str, str]]:
    """Return the name, the Secret and the mount path of the volume with the keys, if there is one.

    Kubernetes updates the files of the volume when the Secret changes.
    """
    settings = cluster["spec"].get("tieredStorage")
    secret = settings.get("encryption", {}).get("secretName") if settings else None
    return [(_KEYS, secret, KEYS_DIR)] if secret else []


def build_environment(cluster: QueueCluster) -> list[EnvVar]:
    """Return the variables with the credentials, which come from the Secret.

    Without one, the brokers' ServiceAccount has a cloud identity.
    """
    settings = cluster["spec"].get("tieredStorage")
    secret = settings.get("credentials", {}).get("secretName") if settings else None
    if not settings or not secret:
        return []
    out: list[EnvVar] = []
    for key, required in _CREDENTIALS[settings["type"]].items():
        reference: SecretKeyRef = {"name": secret, "key": key}
        if not required:
            reference["optional"] = True
        out.append({"name": key, "valueFrom": {"secretKeyRef": reference}})
    return out


def build_topic_config(spec: QueueTopicSpec) -> dict[str, str]:
    """Return all configs of a QueueTopic: those in `config`, and those of its fields."""
    configs = dict(spec.get("config", {}))
    if "tiered" in spec:
        configs[_ENABLE] = str(spec["tiered"]).lower()
    local_retention = spec.get("localRetention", {})
    if local_retention.get("time"):
        configs["local.retention.ms"] = str(parse_duration_ms(local_retention["time"]))
    if local_retention.get("size"):
        configs["local.retention.bytes"] = str(parse_size_bytes(local_retention["size"]))
    return configs
