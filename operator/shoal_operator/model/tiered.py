"""Tiered storage of a QueueCluster and of a QueueTopic: configs and credentials of the brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator.quantities import duration_ms, size_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.model.names import Manifest

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


def is_enabled(cluster: Mapping[str, Any]) -> bool:
    """Return whether the brokers have an object store."""
    return bool(cluster["spec"].get("tieredStorage"))


def url(given: Mapping[str, Any]) -> str:
    """Return the URL of the store."""
    parts = [given["account"]] if given["type"] == AZURE else []
    parts += [given["bucket"], *filter(None, [given.get("prefix", "").strip("/")])]
    return f"{_SCHEMES[given['type']]}://{'/'.join(parts)}"


def cache_bytes(cluster: Mapping[str, Any]) -> int:
    """Return the size of a broker's cache. `cluster` is the pool's view."""
    spec = cluster["spec"]
    if cache := spec["tieredStorage"].get("cacheSize"):
        return size_bytes(cache)
    return size_bytes(spec["storage"]["size"]) // _CACHE_PART


def properties(cluster: Mapping[str, Any], replication: int) -> dict[str, str]:
    """Return the configs of the brokers; `replication` is that of internal topics."""
    if not is_enabled(cluster):
        return {}
    given = cluster["spec"]["tieredStorage"]
    found = {
        "remote.log.storage.system.enable": "true",
        "rlmm.config.remote.log.metadata.topic.replication.factor": str(replication),
        "shoal.remote.store.url": url(given),
        "shoal.remote.chunk.cache.bytes": str(max(1, cache_bytes(cluster))),
        "shoal.remote.copy.interval.ms": str(duration_ms(given.get("copyInterval", "1h"))),
    }
    for field in ("endpoint", "region"):
        if given.get(field):
            found[f"shoal.remote.store.{field}"] = given[field]
    if given.get("encryption"):
        found["shoal.remote.encryption.key.directory"] = KEYS_DIR
    return found


def sealing(cluster: Mapping[str, Any]) -> dict[str, str]:
    """Return the configs by which brokers seal new objects. They change without a restart."""
    given = cluster["spec"].get("tieredStorage") or {}
    found = {}
    if given.get("compression", "uncompressed") != "uncompressed":
        found["shoal.remote.compression.type"] = given["compression"]
    if key_id := given.get("encryption", {}).get("keyId"):
        found["shoal.remote.encryption.key.id"] = key_id
    return found


def has_clear_backups(cluster: Mapping[str, Any]) -> bool:
    """Return whether there are keys, but none encrypts what brokers write now."""
    return bool(volumes(cluster)) and "shoal.remote.encryption.key.id" not in sealing(cluster)


def volumes(cluster: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the name, the Secret and the mount path of the volume with the keys, if there is one.

    Kubernetes updates the files of the volume when the Secret changes.
    """
    given = cluster["spec"].get("tieredStorage") or {}
    secret = given.get("encryption", {}).get("secretName")
    return [(_KEYS, secret, KEYS_DIR)] if secret else []


def environment(cluster: Mapping[str, Any]) -> list[Manifest]:
    """Return the variables with the credentials, which come from the Secret.

    Without one, the brokers' ServiceAccount has a cloud identity.
    """
    given = cluster["spec"].get("tieredStorage") or {}
    secret = given.get("credentials", {}).get("secretName")
    if not secret:
        return []
    out: list[Manifest] = []
    for key, required in _CREDENTIALS[given["type"]].items():
        reference: Manifest = {"name": secret, "key": key}
        if not required:
            reference["optional"] = True
        out.append({"name": key, "valueFrom": {"secretKeyRef": reference}})
    return out


def topic_config(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return all configs of a QueueTopic: those in `config`, and those of its fields."""
    found = dict(spec.get("config", {}))
    if "tiered" in spec:
        found[_ENABLE] = str(spec["tiered"]).lower()
    kept = spec.get("localRetention", {})
    if kept.get("time"):
        found["local.retention.ms"] = str(duration_ms(kept["time"]))
    if kept.get("size"):
        found["local.retention.bytes"] = str(size_bytes(kept["size"]))
    return found
