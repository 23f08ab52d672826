"""Authorities that an issuer of cert-manager signs (ADR 95).

The operator writes a Certificate for the authority, and cert-manager a Secret. The operator keeps a
copy in the authority's own Secret, and moves from one to the next in the phases of a renewal, so
that cert-manager may replace its Secret at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator.brokers.diagnostics import Diagnosis
from shoal_operator.kube.drift import has_drifted
from shoal_operator.kube.kube import KubeError
from shoal_operator.model import cert_manager as model
from shoal_operator.model import certificates, secret
from shoal_operator.model.certificates import BadCertificate, KeyPair

if TYPE_CHECKING:
    import datetime
    from collections.abc import Mapping

    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store
    from shoal_operator.model.cert_manager import IssuerRef
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import QueueCluster


class SignedAuthority(NamedTuple):
    """An authority as an issuer has signed it. `chain` has the certificates above it in PEM, for
    clients that trust an authority only with its root."""

    pair: KeyPair
    chain: bytes


class CertManager:
    """Writes the Certificates of one QueueCluster, and reads what cert-manager made of them."""

    def __init__(self, kube: KubeClient, store: Store, namespace: str, name: str) -> None:
        self._kube, self._store = kube, store
        self._namespace, self._name = namespace, name

    async def find_signed_authority(
        self, cluster: QueueCluster, kind: str, ref: IssuerRef, now: datetime.datetime
    ) -> SignedAuthority | Diagnosis:
        """Return the newest authority, or why there is none. Raises `KubeError`."""
        try:
            certificate = await self._apply_certificate(model.build_certificate(cluster, kind, ref))
        except KubeError as error:
            if error.status not in (403, 404) or error.terminating:
                raise
            return _diagnose_unavailable(error)
        name = model.format_secret_name(self._name, kind)
        manifest = self._store.get("Secret", self._namespace, name)
        manifest = manifest or await self._kube.get("v1", "Secret", name, self._namespace)
        if manifest is None or not manifest.get("data", {}).get("tls.crt"):
            return await self._diagnose_issuer(ref) or _diagnose_pending(certificate, name)
        try:
            return _parse_authority(secret.decode_data(manifest), now)
        except BadCertificate as error:
            text = (
                f"{ref} has signed no usable authority in Secret {name!r}: {error}. Use an issuer "
                "that signs authorities, such as one of the type ca or selfSigned."
            )
            return Diagnosis("IssuerNotSuitable", text)

    async def _apply_certificate(self, want: Manifest) -> Manifest:
        meta = want["metadata"]
        have = await self._kube.get(
            model.API_VERSION, model.CERTIFICATE, meta["name"], meta["namespace"]
        )
        if have is None or has_drifted(want, have):
            return await self._kube.apply(want)
        return have

    async def _diagnose_issuer(self, ref: IssuerRef) -> Diagnosis | None:
        """Return what is wrong with an issuer of cert-manager itself, None if nothing is known."""
        if ref.group != model.GROUP or ref.kind not in model.ISSUERS:
            return None
        namespace = self._namespace if ref.kind == model.ISSUER else ""
        try:
            issuer = await self._kube.get(model.API_VERSION, ref.kind, ref.name, namespace)
        except KubeError as error:
            if error.status != 403:
                raise
            return None
        if issuer is None:
            text = f"{ref} does not exist. Create it, or correct issuerRef."
            return Diagnosis("IssuerNotReady", text)
        ready = _find_condition(issuer, "Ready")
        if ready.get("status") == "True":
            return None
        message = ready.get("message") or "cert-manager has not looked at it"
        return Diagnosis("IssuerNotReady", f"{ref} is not ready: {message}")


def _diagnose_unavailable(error: KubeError) -> Diagnosis:
    if error.status == 404:
        text = "cert-manager is not installed: the API server has no Certificates. Install it."
    else:
        text = (
            f"The operator may not use cert-manager: {error}. Set the chart's value "
            "certManager.enabled to true."
        )
    return Diagnosis("CertManagerMissing", text)


def _diagnose_pending(certificate: Manifest, name: str) -> Diagnosis:
    message = _find_condition(certificate, "Issuing").get("message") or "it has not begun"
    text = f"cert-manager has not written Secret {name!r} yet: {message}"
    return Diagnosis("CertificatePending", text)


def _find_condition(resource: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = resource.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})


def _parse_authority(data: Mapping[str, bytes], now: datetime.datetime) -> SignedAuthority:
    """Return the authority in a Secret of cert-manager. Raises `BadCertificate`."""
    first, *more = certificates.split(data["tls.crt"])
    pair = KeyPair(first, data.get("tls.key", b""))
    certificates.check_ca(pair, now)
    above = [pem for pem in (*more, *certificates.split(data.get("ca.crt", b""))) if pem != first]
    chain = list(dict.fromkeys(above))
    if not any(certificates.is_signed_by(pem, pem) for pem in (first, *chain)):
        raise BadCertificate("its root is neither in tls.crt nor in ca.crt")
    return SignedAuthority(pair, b"".join(chain))
