"""A QueueCluster with types, which `tools/resource_types.py` generates from the definition.

`Store.get_cluster` reads a QueueCluster once. From there on, it has its types (ADR 172).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NotRequired, cast

from shoal_operator.model.resources import queue_cluster as resources

if TYPE_CHECKING:
    from shoal_operator.model.names import Manifest

CertificateStatus = resources.QueueClusterStatusCertificates
ClusterSpec = resources.QueueClusterSpec
QueueClusterStatus = resources.QueueClusterStatus
Listener = resources.QueueClusterSpecListeners
#: What a listener sets for bootstrap; a row of `brokers` is one as well.
ListenerEndpoint = resources.QueueClusterSpecListenersBootstrap
MaintenanceWindow = resources.QueueClusterSpecMaintenanceWindows
NodePoolSettings = resources.QueueClusterSpecNodePools
PodTemplate = resources.QueueClusterSpecTemplatePod
PodVariable = resources.QueueClusterSpecTemplatePodEnv
RestoreStatus = resources.QueueClusterStatusRestore
Resources = resources.QueueClusterSpecResources
SecretKey = resources.QueueClusterSpecMetricsTokenSecretKeyRef
TieredStatus = resources.QueueClusterStatusTieredStorage
TieredStorage = resources.QueueClusterSpecTieredStorage


class QueueCluster(resources.QueueCluster):
    """A QueueCluster, and what the operator has decided about it, in memory only."""

    #: The `security.InternalTls` of the brokers; absent if they use none.
    internalTls: NotRequired[str]
    #: The fingerprint of the key of delegation tokens.
    delegationTokenKey: NotRequired[str]
    #: The id of the restore that the pods do.
    restoreId: NotRequired[str]


def read(manifest: Manifest) -> QueueCluster:
    """Return a QueueCluster with its types; the API server has validated it."""
    return cast("QueueCluster", manifest)
