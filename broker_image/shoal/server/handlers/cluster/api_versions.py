"""ApiVersions: the APIs, their versions and the features (KIP-35, KIP-511, KIP-584).

Since version 5 a client may name the cluster and the node that it means to reach (KIP-1242).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shoal.coordinator.group.offsets import individual_commit
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from shoal.protocol.features import (
    COMMIT_ORDER_FEATURE,
    FEATURES,
    GROUP_KEY_RANGES_FEATURE,
    INDIVIDUAL_COMMIT_FEATURE,
    KEY_RANGES_FEATURE,
    OWN_CLIENT,
)
from shoal.security.acls import ANONYMOUS
from shoal.server.cluster_config import Listeners
from shoal.server.replication import range_reads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.protocol.responses import cluster as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Api, Request

#: librdkafka up to 2.8 does not compress for a broker without Produce v0 (KAFKA-18659). So Kafka
#: names these versions, and refuses requests with them.
_NAMED_FROM = {ApiKey.PRODUCE: 0}
#: Features that a broker config switches off.
_SWITCHES = {
    INDIVIDUAL_COMMIT_FEATURE: individual_commit.ENABLE,
    KEY_RANGES_FEATURE: range_reads.ENABLE,
    GROUP_KEY_RANGES_FEATURE: individual_commit.KEY_RANGES_ENABLE,
    COMMIT_ORDER_FEATURE: individual_commit.KEY_RANGES_ENABLE,
}
_IDENTITY_SINCE = 5
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(broker: Broker, request: Request) -> responses.ApiVersionsResponse:
    body = request.body
    if request.version >= 3:
        software = (body.client_software_name, body.client_software_version)
        if not all(_SOFTWARE.fullmatch(name) for name in software):
            return {"error_code": ErrorCode.invalid_request}
        request.peer.client_software = software
    if request.version >= _IDENTITY_SINCE and (error := _check_identity(broker, request)):
        return {"error_code": error}
    features = broker.get_features()
    supported = features.supported
    if request.version >= 3 and body.client_software_name == OWN_CLIENT:
        supported |= dict.fromkeys(FEATURES, (1, 1))
        for feature, switch in _SWITCHES.items():
            if not broker.node.config[switch]:
                del supported[feature]
    if request.version < 4:  # Clients before KIP-1022 reject features that start at 0.
        supported = {name: span for name, span in supported.items() if span[0] > 0}
    return {
        "error_code": ErrorCode.none,
        "api_keys": list_api_versions(
            broker.served.advertised_apis[request.peer.listener].values()
        ),
        "supported_features": [
            {"name": name, "min_version": low, "max_version": high}
            for name, (low, high) in supported.items()
        ],
        "finalized_features_epoch": features.epoch,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in features.finalized.items()
        ],
    }


def _check_identity(broker: Broker, request: Request) -> ErrorCode:
    """Return the error of a client that means another cluster or node, or names only one of both.

    As in Kafka, a listener of controllers does not compare them, and one with SASL only once the
    client has logged in.
    """
    cluster_id, node_id = request.body.cluster_id, request.body.node_id
    if (cluster_id is None) is not (node_id == -1):
        return ErrorCode.invalid_request
    peer = request.peer
    is_logging_in = peer.security_protocol.is_sasl and peer.principal == ANONYMOUS
    for_controllers = Listeners.BROKER not in broker.served.get_kind(peer.listener)
    if cluster_id is None or is_logging_in or for_controllers:
        return ErrorCode.none
    if (cluster_id, node_id) != (broker.cluster_id, broker.node_id):
        return ErrorCode.rebootstrap_required
    return ErrorCode.none


def list_api_versions(apis: Iterable[Api]) -> list[responses.ApiVersionsApiVersion]:
    """The version ranges for clients, in the order of the API keys."""
    return [
        {
            "api_key": api.key,
            "min_version": _NAMED_FROM.get(api.key, api.versions.start),
            "max_version": api.versions.stop - 1,
        }
        for api in sorted(apis, key=lambda api: api.key)
    ]
