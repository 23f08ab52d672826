"""Reconciles a QueueCluster of type `external`: connects, checks the features, reports.

The operator creates nothing for it and changes nothing in its brokers' configs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.errors import ClientError, SecurityError

from shoal_operator.kube.conditions import Verdict
from shoal_operator.kube.statuses import StatusWriter
from shoal_operator.model import external as model
from shoal_operator.model import secret
from shoal_operator.model.certificates import BadCertificate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal_operator.brokers.broker_states import ExternalState
    from shoal_operator.brokers.calls import Brokers
    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store
    from shoal_operator.model.queue_cluster import QueueCluster, QueueClusterStatus

#: The feature that share groups need (KIP-932).
SHARE_VERSION = "share.version"
#: The first levels of `metadata.version` of Apache Kafka's releases, and the first unknown one.
_RELEASES = {22: "4.0", 26: "4.1", 28: "4.2", 30: "4.3", 31: "4.4", 34: "later than 4.4"}
#: Seconds between passes of a cluster that is ready, and of any other one.
STEADY_SECONDS, RETRY_SECONDS = 30.0, 5.0
#: What Apache Kafka does not have, for the message of `Ready`.
LIMITS = (
    "Consumers scale by lag alone. QueueUsers, Redrives and fields whose configs Apache Kafka does "
    "not have are refused."
)


def decide_verdict(state: ExternalState) -> Verdict:
    """Return the verdict on an external cluster whose brokers answer. Pure."""
    if state.features.get(SHARE_VERSION, 0) < 1:
        return Verdict.make_refused(
            "ShareGroupsDisabled",
            "The brokers have no share groups: the feature share.version is not 1. Run Apache "
            "Kafka 4.2 or later, and finalize the feature: `kafka-features.sh upgrade --feature "
            "share.version=1`.",
        )
    if not state.reports_lag:
        return Verdict.make_refused(
            "LagNotReported",
            "The brokers do not report the lag of share groups, by which consumers scale "
            "(KIP-1226). Upgrade to Apache Kafka 4.2 or later.",
        )
    count = f"{state.brokers} broker{'s' * (state.brokers != 1)} run"
    return Verdict.make_reconciled(
        f"{count} outside of the operator. {'' if state.is_shoal else LIMITS}".rstrip()
    )


def find_release(features: Mapping[str, int]) -> str:
    """Return the release of Apache Kafka whose metadata version is finalized, empty for old ones.

    Brokers do not report their own version.
    """
    level = features.get("metadata.version", 0)
    return max(
        ((first, name) for first, name in _RELEASES.items() if first <= level), default=(0, "")
    )[1]


class ExternalClusterReconciler:
    """The reconciler of one external QueueCluster.

    `on_reachable` is called when its brokers begin to answer.
    """

    def __init__(
        self, kube: KubeClient, store: Store, brokers: Brokers, on_reachable: Callable[[], None]
    ) -> None:
        self._kube, self._brokers = kube, brokers
        self._statuses = StatusWriter(kube, store)
        self._on_reachable, self._reachable = on_reachable, False

    async def reconcile(self, cluster: QueueCluster) -> float:
        """Connect to the brokers and report; return seconds until the next pass."""
        servers = model.get_bootstrap_servers(cluster)
        fields: QueueClusterStatus = {"bootstrapServers": servers}
        if cluster["spec"].get("paused"):
            paused = Verdict(False, "Paused", "spec.paused is true.", paused=True)
            await self._statuses.write(cluster, paused, fields)
            return STEADY_SECONDS
        try:
            properties = await self._build_properties(cluster)
        except _UnusableCredentials as error:
            self._reachable = False
            await self._statuses.write(cluster, error.verdict, fields)
            return STEADY_SECONDS if error.verdict.is_stalled else RETRY_SECONDS
        await self._brokers.set_addresses(servers, {})
        self._brokers.set_client(properties)
        try:
            state = await self._brokers.describe_external_cluster()
        except (ClientError, ValueError) as error:
            self._reachable = False
            await self._statuses.write(cluster, _make_unreachable_verdict(servers, error), fields)
            return RETRY_SECONDS
        verdict = decide_verdict(state)
        if verdict.ready and not self._reachable:
            self._reachable = True
            self._on_reachable()
        fields |= {
            "clusterId": state.cluster_id,
            "controllerId": state.controller_id,
            "brokersReady": f"{state.brokers}/{state.brokers}",
            "features": dict(sorted(state.features.items())),
            "version": "Shoal" if state.is_shoal else find_release(state.features),
        }
        await self._statuses.write(cluster, verdict, fields)
        return STEADY_SECONDS

    async def _build_properties(self, cluster: QueueCluster) -> dict[str, str]:
        """Return the client properties of the cluster's Secrets. Raises `_UnusableCredentials`."""
        name, (trusted, key) = (
            model.get_credentials_secret(cluster),
            model.get_trust_secret(cluster),
        )
        credentials = await self._read_secret(cluster, name) if name else None
        authorities = None
        if trusted:
            authorities = (await self._read_secret(cluster, trusted)).get(key)
            if not authorities:
                text = f"Secret {trusted!r} of spec.external.trust has no key {key!r}."
                raise _UnusableCredentials(Verdict.make_refused("CredentialsInvalid", text))
        try:
            return model.build_client_properties(credentials, authorities)
        except model.BadCredentials as error:
            text = f"Secret {name!r} of spec.external.credentials cannot be used: {error}."
            raise _UnusableCredentials(Verdict.make_refused("CredentialsInvalid", text)) from None

    async def _read_secret(self, cluster: QueueCluster, name: str) -> dict[str, bytes]:
        # The operator watches its own Secrets only.
        manifest = await self._kube.get("v1", "Secret", name, cluster["metadata"]["namespace"])
        if manifest is None:
            text = f"Secret {name!r} of spec.external does not exist in this namespace."
            raise _UnusableCredentials(Verdict.make_waiting("CredentialsNotFound", text))
        try:
            return secret.decode_data(manifest)
        except BadCertificate as error:
            text = f"Secret {name!r} of spec.external cannot be used: {error}."
            raise _UnusableCredentials(Verdict.make_refused("CredentialsInvalid", text)) from None


class _UnusableCredentials(Exception):
    """The cluster's Secrets give no credentials."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


def _make_unreachable_verdict(servers: str, error: Exception) -> Verdict:
    if isinstance(error, SecurityError):
        text = f"The brokers at {servers} refused the connection or the login: {error}."
        return Verdict.make_blocked("LoginFailed", text)
    return Verdict.make_blocked("BrokersUnreachable", f"No broker answered at {servers}: {error}.")
