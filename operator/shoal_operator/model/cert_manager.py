"""Certificates of cert-manager for authorities of a QueueCluster (`type: certManager`). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal_operator.model import certificates, names, security

if TYPE_CHECKING:
    from shoal_operator.model.kubernetes import CertificateSpec
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import QueueCluster

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


def get_issuer(cluster: QueueCluster, kind: str) -> IssuerRef | None:
    """Return the issuer of an authority; None if the operator or the user makes it."""
    authority = cluster["spec"].get(security.FIELDS[kind], {})
    if authority.get("type") != TYPE:
        return None
    ref = authority["issuerRef"]
    return IssuerRef(ref["name"], ref.get("kind", ISSUER), ref.get("group", GROUP))


def format_secret_name(cluster: str, kind: str) -> str:
    """Return the name of the Secret that cert-manager writes."""
    return f"{cluster}-{kind}-ca-issued"


def build_certificate(cluster: QueueCluster, kind: str, ref: IssuerRef) -> Manifest:
    """Return the Certificate of an authority. cert-manager renews it with a new key."""
    meta, settings = cluster["metadata"], security.get_settings(cluster, kind)
    labels = names.build_labels(meta["name"], "security")
    spec: CertificateSpec = {
        "secretName": format_secret_name(meta["name"], kind),
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
        "metadata": names.build_metadata(
            cluster, security.format_ca_secret(meta["name"], kind), labels
        ),
        "spec": spec,
    }
