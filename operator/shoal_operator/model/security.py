"""Names and settings of the security of a QueueCluster: Secrets, principals, authorities. Pure."""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The kinds of certificate authorities, and their fields in the spec. The cluster's authority
#: signs the certificates of brokers and of the operator, the clients' those of clients.
CLUSTER, CLIENTS = "cluster", "clients"
KINDS = (CLUSTER, CLIENTS)
FIELDS = {CLUSTER: "clusterCa", CLIENTS: "clientsCa"}
#: The common name of the operator's certificate.
OPERATOR = "shoal-operator"
#: The listener of brokers and of the operator, in a cluster with internal TLS.
REPLICATION, REPLICATION_PORT = "replication", 9091
#: Annotation of a StatefulSet whose brokers have internal TLS.
INTERNAL_TLS = "shoal.dev/internal-tls"
#: Where the Secret with the brokers' certificate is mounted.
TLS_DIR = "/etc/shoal-tls"
VALIDITY_DAYS, RENEWAL_DAYS, OVERLAP = 365, 30, "10m"
_UNITS = {"h": "hours", "m": "minutes", "s": "seconds"}


class CaSettings(NamedTuple):
    """The settings of an authority. `renewal` is how long before its end it is renewed."""

    generate: bool
    validity_days: int
    renewal: datetime.timedelta
    overlap: datetime.timedelta


def settings(cluster: Mapping[str, Any], kind: str) -> CaSettings:
    """Return the settings of an authority."""
    given = cluster["spec"].get(FIELDS[kind], {})
    parts = re.findall(r"(\d+)([hms])", given.get("overlap", OVERLAP))
    overlap = datetime.timedelta(**{_UNITS[unit]: int(number) for number, unit in parts})
    return CaSettings(
        given.get("generate", True),
        given.get("validityDays", VALIDITY_DAYS),
        datetime.timedelta(days=given.get("renewalDays", RENEWAL_DAYS)),
        overlap,
    )


def ca(cluster: str, kind: str) -> str:
    """Return the name of the Secret with an authority and its key."""
    return f"{cluster}-{kind}-ca"


def ca_cert(cluster: str, kind: str) -> str:
    """Return the name of the Secret with the certificates that clients trust."""
    return f"{cluster}-{kind}-ca-cert"


def broker_tls(cluster: str) -> str:
    """Return the name of the Secret with the brokers' certificate."""
    return f"{cluster}-broker-tls"


def operator_tls(cluster: str) -> str:
    """Return the name of the Secret with the operator's certificate."""
    return f"{cluster}-operator-tls"


def broker_name(cluster: str) -> str:
    """Return the common name of the brokers' certificate."""
    return f"{cluster}-broker"


def known_fingerprint(cluster: Mapping[str, Any], kind: str) -> str:
    """Return the fingerprint of an authority as the status has it; empty if it has none."""
    known = cluster.get("status", {}).get("certificates", [])
    return next((str(c["fingerprint"]) for c in known if c["name"] == f"{kind}-ca"), "")
