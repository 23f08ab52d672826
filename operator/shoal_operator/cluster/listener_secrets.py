"""The users' own certificates of listeners (`tls.secretName`).

A Secret of type `kubernetes.io/tls` has certificate and key in two files, which could be of two
versions while they change. Brokers read one file for each listener. So the operator joins them in
the Secret `<cluster>-listener-tls`, which brokers mount.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator import certificates
from shoal_operator.certificates import BadCertificate, KeyPair
from shoal_operator.diagnostics import Diagnosis
from shoal_operator.model import names, secret, security

if TYPE_CHECKING:
    from shoal_operator.kube import Kube
    from shoal_operator.model.names import Manifest
    from shoal_operator.store import Store


class NoListenerCertificate(Exception):
    """A listener has no certificate that it could show; `diagnosis` has the reason and remedy."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.message)
        self.diagnosis = diagnosis


class ListenerSecrets:
    """Writes the Secret with the users' certificates of one QueueCluster."""

    def __init__(self, kube: Kube, store: Store, namespace: str, name: str) -> None:
        self._kube, self._store = kube, store
        self._namespace, self._name = namespace, name
        #: A certificate that cannot be used, so that the previous one stays.
        self.problem: Diagnosis | None = None

    async def reconcile(self, cluster: Manifest) -> None:
        """Copy the certificates from the users' Secrets.

        Raises `NoListenerCertificate` if a listener has none yet, and `KubeError`.
        """
        self.problem = None
        wanted = security.own_certificates(cluster)
        if not wanted:
            return
        have = self._store.get("Secret", self._namespace, security.listener_tls(self._name)) or {}
        before = have.get("data", {})
        data: dict[str, str] = {}
        for listener, name in wanted.items():
            key = f"{listener}.pem"
            try:
                data |= secret.encoded({key: await self._read(name)})
            except BadCertificate as error:
                text = (
                    f"The certificate of listener {listener!r} cannot be used: Secret {name!r} "
                    f"{error}. Correct the Secret; it needs tls.crt and tls.key."
                )
                self.problem = Diagnosis("ListenerCertificateInvalid", text)
                if key not in before:
                    raise NoListenerCertificate(self.problem) from None
                data[key] = before[key]
        if data != before:
            want = secret.manifest(
                self._namespace,
                security.listener_tls(self._name),
                names.labels(self._name, "security"),
                data,
                owner=cluster,
            )
            self._store.put(await self._kube.apply(want))

    async def _read(self, name: str) -> bytes:
        """Return key and certificates of a user's Secret. Raises `BadCertificate`, `KubeError`."""
        found = await self._kube.get("v1", "Secret", name, self._namespace)
        if found is None:
            raise BadCertificate("does not exist")
        for key in ("tls.crt", "tls.key"):
            if not found.get("data", {}).get(key):
                raise BadCertificate(f"has no {key}")
        try:
            data = secret.data_of(found)
            pair = KeyPair(data["tls.crt"], data["tls.key"])
            certificates.check_pair(pair)
        except BadCertificate as error:
            raise BadCertificate(f"is invalid: {error}") from None
        return pair.key.rstrip() + b"\n" + pair.certificate
