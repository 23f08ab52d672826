"""Certificates of cert-manager for authorities of a QueueCluster (`type: certManager`). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator import certificates
from shoal_operator.model import names, security

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.model.names import Manifest

API_VERSION = "cert-manager.io/v1"
GROUP, ISSUER = "cert-manager.io", "Issuer"
#: The kinds of issuers in that group.
ISSUERS = (ISSUER, "ClusterIssuer")
CERTIFICATE = "Certificate"
#: The value of `type` with which an issuer signs an authority.
TYPE = "certManager"


class IssuerRef(NamedTuple):
    """The issuer that signs an authority."""

    name: str
    kind: str
    group: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


def issuer(cluster: Mapping[str, Any], kind: str) -> IssuerRef | None:
    """Return the issuer of an authority; None if the operator or the user makes it."""
    given = cluster["spec"].get(security.FIELDS[kind], {})
    if given.get("type") != TYPE:
        return None
    ref = given["issuerRef"]
    return IssuerRef(ref["name"], ref.get("kind", ISSUER), ref.get("group", GROUP))


def issued(cluster: str, kind: str) -> str:
    """Return the name of the Secret that cert-manager writes."""
    return f"{cluster}-{kind}-ca-issued"


def certificate(cluster: Mapping[str, Any], kind: str, ref: IssuerRef) -> Manifest:
    """Return the Certificate of an authority. cert-manager renews it with a new key."""
    meta, settings = cluster["metadata"], security.settings(cluster, kind)
    labels = names.labels(meta["name"], "security")
    spec: Manifest = {
        "secretName": issued(meta["name"], kind),
        "secretTemplate": {"labels": labels},
        "commonName": f"{meta['name']}-{kind}-ca",
        "subject": {"organizations": [certificates.ORGANIZATION]},
        "isCA": True,
        "usages": ["cert sign", "crl sign"],
        "duration": f"{24 * settings.validity_days}h0m0s",
        "privateKey": {
            "algorithm": "ECDSA",
            "size": 256,
            "encoding": "PKCS8",
            "rotationPolicy": "Always",
        },
        "issuerRef": ref._asdict(),
    }
    if settings.renewal:
        spec["renewBefore"] = f"{24 * settings.renewal.days}h0m0s"
    return {
        "apiVersion": API_VERSION,
        "kind": CERTIFICATE,
        "metadata": {
            "name": security.ca(meta["name"], kind),
            "namespace": meta["namespace"],
            "labels": labels,
            "ownerReferences": [names.owner(cluster)],
        },
        "spec": spec,
    }
