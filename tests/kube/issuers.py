"""cert-manager beside the API server in memory: an issuer that signs authorities.

It accepts only fields that Certificates of cert-manager.io/v1 have.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

from kube.api_server import ApiServer, CrashPoint
from shoal_operator.kube.kube import KubeError
from shoal_operator.model import cert_manager
from support.security.certificates import Authority, Identity

if TYPE_CHECKING:
    from collections.abc import Mapping

Manifest = dict[str, Any]
DURATION = re.compile(r"(\d+h)?(\d+m)?(\d+s)?")
#: Fields of a Certificate's spec, with the types of their values; a dict has fields in turn.
FIELDS: dict[str, Any] = {
    "commonName": str,
    "duration": str,
    "isCA": bool,
    "issuerRef": {"group": str, "kind": str, "name": str},
    "privateKey": {"algorithm": str, "encoding": str, "rotationPolicy": str, "size": int},
    "renewBefore": str,
    "secretName": str,
    "secretTemplate": {"annotations": dict, "labels": dict},
    "subject": {"organizations": list},
    "usages": list,
}
ENUMS = {
    "algorithm": {"RSA", "ECDSA", "Ed25519"},
    "encoding": {"PKCS1", "PKCS8"},
    "rotationPolicy": {"Never", "Always"},
}


def check(spec: Mapping[str, Any], fields: Mapping[str, Any] = FIELDS) -> None:
    """Check the names and types of fields, as the definition of Certificates does."""
    for name, value in spec.items():
        assert name in fields, f"Certificates have no field {name}"
        kind = fields[name]
        if isinstance(kind, dict):
            check(value, kind)
            continue
        assert type(value) is kind, f"{name} is {value!r}"
        assert name not in ENUMS or value in ENUMS[name], f"{name} is {value!r}"
        if name in ("duration", "renewBefore"):
            assert DURATION.fullmatch(value), f"{name} is {value!r}"


class CertManager(ApiServer):
    """An API server with an issuer `queues`, which signs authorities by its root."""

    def __init__(self) -> None:
        super().__init__(CrashPoint())
        self.root = Authority("Root of the issuer")
        #: The status of requests for cert-manager's kinds; 0 if they are served.
        self.refuses = 0
        #: Whether new Certificates are signed at once.
        self.signs = True
        self.issuer("True", "ready")

    async def _call(
        self,
        verb: str,
        path: str,
        body: Any = None,
        content_type: str = "",
        params: Mapping[str, str] | None = None,
    ) -> Manifest:
        if cert_manager.GROUP in path and self.refuses:
            raise KubeError(self.refuses, "the server refused it")
        # ClusterIssuers have no namespace.
        path = path.replace("clusterissuers", "namespaces/n/clusterissuers")
        return await super()._call(verb, path, body, content_type, params)

    def _write(
        self,
        kind: str,
        name: str,
        body: Manifest,
        *,
        status: bool = False,
        merge: bool = False,
        replace_spec: bool = False,
    ) -> Manifest:
        made = super()._write(
            kind, name, body, status=status, merge=merge, replace_spec=replace_spec
        )
        if kind == "Certificate" and not status:
            check(made["spec"])
            if self.signs and ("Secret", made["spec"]["secretName"]) not in self.objects:
                self.sign(name)
        return made

    def issuer(self, ready: str, message: str, kind: str = "Issuer") -> None:
        """Create the issuer with this condition Ready."""
        self.objects.pop((kind, "queues"), None)
        self.add(
            {
                "apiVersion": "cert-manager.io/v1",
                "kind": kind,
                "metadata": {"name": "queues", "namespace": "n"},
                "spec": {"ca": {"secretName": "root"}},
                "status": {"conditions": [{"type": "Ready", "status": ready, "message": message}]},
            }
        )

    def sign(self, certificate: str) -> Authority:
        """Sign a new authority with a new key, as at a renewal."""
        made = Authority(certificate, parent=self.root)
        identity = Identity(made.key, made.certificate, [])
        self.write(
            certificate,
            {
                "tls.crt": made.pem.encode(),
                "tls.key": identity.key_pem().encode(),
                "ca.crt": self.root.pem.encode(),
            },
        )
        return made

    def write(self, certificate: str, data: Mapping[str, bytes]) -> None:
        """Write the Secret of a Certificate."""
        spec = self.find("Certificate", certificate)["spec"]
        self.objects.pop(("Secret", spec["secretName"]), None)
        self.add(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {
                    "name": spec["secretName"],
                    "namespace": "n",
                    "labels": spec["secretTemplate"]["labels"],
                },
                "type": "kubernetes.io/tls",
                "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
            }
        )
