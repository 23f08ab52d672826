"""TLS of all listeners of a node: made at its start, and checked for changes from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.image import ConfigResourceType
from shoal.server.config import METRICS
from shoal.server.metrics.registry import label
from shoal.server.network.tls import TlsEngine

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from shoal.metadata.configs import ConfigLayers
    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.server.audit import AuditLogger
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.metrics.registry import MetricRegistry, Samples
    from shoal.server.network.listener_tls import ListenerTls
    from shoal.server.node import Node


class NodeTls:
    """TLS of all listeners of a node that have it, by name."""

    def __init__(self, node: Node, cache: MetadataCache, audit_log: AuditLogger) -> None:
        """Raises `InvalidConfig`."""
        self._node = node
        self._cache = cache
        self._checks: set[asyncio.Task[None]] = set()
        cluster = node.cluster
        engine = None
        self.listeners: dict[str, ListenerTls] = {}
        for name, security in cluster.security.items():
            if not security.protocol.is_tls:
                continue
            # It imports libraries that a node without TLS has no use for.
            from shoal.server.network.listener_tls import ListenerTls

            engine = engine or TlsEngine(node.loop)
            self.listeners[name] = ListenerTls(
                node,
                security,
                engine,
                audit_log,
                serves=name in cluster.kinds or name == METRICS,
                linked=cluster.clustered and name in (cluster.listener, cluster.inter_broker),
            )

    def get(self, name: str) -> ListenerTls | None:
        """Return the TLS of a listener, or None if it has none."""
        return self.listeners.get(name)

    def start(self) -> None:
        """Look for changes from now on."""
        if self.listeners:
            self._cache.subscribe(self._on_image_changed)
            interval_ms = self._node.config["shoal.ssl.reload.interval.ms"]
            self._node.timers.call_every(interval_ms, self.check_all)

    async def find_refusal(self, layers: ConfigLayers) -> str | None:
        """Return why the listeners could not use the configs in `layers`, or None."""
        for name, listener in self.listeners.items():
            reason = await listener.find_refusal(layers)
            if reason is not None:
                return f"Invalid TLS configuration of the listener {name}: {reason}"
        return None

    def stop(self) -> None:
        for check in self._checks:
            check.cancel()

    def _on_image_changed(self, _image: MetadataImage, delta: MetadataDelta) -> None:
        if any(
            (ConfigResourceType.BROKER, name) in delta.configs for name in (str(self._node.id), "")
        ):
            self.check_all()

    def check_all(self) -> None:
        """Look for changes of files and configs in the background."""
        for listener in self.listeners.values():
            task = self._node.loop.create_task(listener.check(self._cache.image.layers))
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)

    def register(self, metrics: MetricRegistry) -> None:
        """Add the families of these listeners."""
        add = metrics.add
        add(
            "shoal_listener_certificate_expiry_seconds",
            "gauge",
            "Seconds until the first certificate in the chain of the listener expires.",
            lambda: self._collect_values(lambda one: one.compute_expires_in_s()),
        )
        add(
            "shoal_listener_certificate_info",
            "gauge",
            "SHA-256 fingerprint of the certificate that the listener shows to new clients.",
            lambda: self._collect_fingerprints(lambda one: one.list_own_fingerprints()),
        )
        add(
            "shoal_listener_trusted_certificate_info",
            "gauge",
            "SHA-256 fingerprints of the authorities that the listener trusts.",
            lambda: self._collect_fingerprints(lambda one: one.list_trusted_fingerprints()),
        )
        add(
            "shoal_listener_certificate_loads_total",
            "counter",
            "Changes of certificates that came into force.",
            lambda: self._collect_values(lambda one: [one.loads_total]),
        )
        add(
            "shoal_listener_certificate_load_failures_total",
            "counter",
            "Changes of certificates that were refused. The previous ones stay in use.",
            lambda: self._collect_values(lambda one: [one.load_failures_total]),
        )

    def _collect_values(self, collect: Callable[[ListenerTls], list[float]]) -> Samples:
        return [
            (label(listener=name), value)
            for name, listener_tls in self.listeners.items()
            for value in collect(listener_tls)
        ]

    def _collect_fingerprints(self, collect: Callable[[ListenerTls], list[str]]) -> Samples:
        return [
            (label(listener=name, fingerprint=fingerprint), 1)
            for name, listener_tls in self.listeners.items()
            for fingerprint in collect(listener_tls)
        ]
