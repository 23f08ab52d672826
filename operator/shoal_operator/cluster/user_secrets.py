"""The users' own Secrets: certificates of listeners (`tls.secretName`), and the tokens for the
brokers' metrics (`metrics.token`).

A Secret of type `kubernetes.io/tls` has certificate and key in two files, which could be of two
versions while they change. Brokers read one file for each listener. So the operator joins them in
the Secret `<cluster>-listener-tls`, which brokers mount.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator.brokers.diagnostics import Diagnosis
from shoal_operator.model import certificates, names, secret, security
from shoal_operator.model.certificates import BadCertificate, KeyPair

if TYPE_CHECKING:
    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store
    from shoal_operator.model.queue_cluster import QueueCluster


class NoListenerCertificate(Exception):
    """A listener has no certificate that it could show; `diagnosis` has the reason and remedy."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.message)
        self.diagnosis = diagnosis


class ListenerSecretReconciler:
    """Writes the Secret with the users' certificates of one QueueCluster."""

    def __init__(self, kube: KubeClient, store: Store, namespace: str, name: str) -> None:
        self._kube, self._store = kube, store
        self._namespace, self._name = namespace, name

    async def reconcile(self, cluster: QueueCluster) -> Diagnosis | None:
        """Copy the certificates from the users' Secrets.

        Returns why one cannot be used, so that the previous one stays. Raises
        `NoListenerCertificate` if a listener has none yet, and `KubeError`.
        """
        secret_names = security.get_user_certificates(cluster)
        if not secret_names:
            return None
        have = (
            self._store.get("Secret", self._namespace, security.format_listener_secret(self._name))
            or {}
        )
        before = have.get("data", {})
        data: dict[str, str] = {}
        problem = None
        for listener, name in secret_names.items():
            key = f"{listener}.pem"
            try:
                data |= secret.encode_data({key: await self._read(name)})
            except BadCertificate as error:
                text = (
                    f"The certificate of listener {listener!r} cannot be used: Secret {name!r} "
                    f"{error}. Correct the Secret; it needs tls.crt and tls.key."
                )
                problem = Diagnosis("ListenerCertificateInvalid", text)
                if key not in before:
                    raise NoListenerCertificate(problem) from None
                data[key] = before[key]
        if data != before:
            want = secret.build_manifest(
                self._namespace,
                security.format_listener_secret(self._name),
                names.build_labels(self._name, "security"),
                data,
                owner=cluster,
            )
            self._store.put(await self._kube.apply(want))
        return problem

    async def _read(self, name: str) -> bytes:
        """Return key and certificates of a user's Secret. Raises `BadCertificate`, `KubeError`."""
        manifest = await self._kube.get("v1", "Secret", name, self._namespace)
        if manifest is None:
            raise BadCertificate("does not exist")
        for key in ("tls.crt", "tls.key"):
            if not manifest.get("data", {}).get(key):
                raise BadCertificate(f"has no {key}")
        try:
            data = secret.decode_data(manifest)
            pair = KeyPair(data["tls.crt"], data["tls.key"])
            certificates.check_pair(pair)
        except BadCertificate as error:
            raise BadCertificate(f"is invalid: {error}") from None
        return pair.key.rstrip() + b"\n" + pair.certificate


async def diagnose_metrics_token(kube: KubeClient, cluster: QueueCluster) -> Diagnosis | None:
    """Return why the metrics of a `resolved` cluster are shown to nobody but the operator, or None.

    Raises `KubeError`.
    """
    token = security.get_metrics_token(cluster)
    if token is None:
        return None
    name, key = token["name"], token["key"]
    manifest = await kube.get("v1", "Secret", name, cluster["metadata"]["namespace"])
    if manifest is not None and manifest.get("data", {}).get(key):
        return None
    lacks = "does not exist" if manifest is None else f"has no {key}"
    return Diagnosis(
        "MetricsTokenMissing",
        f"The brokers show their metrics to no reader: Secret {name!r} {lacks}. Create it with the "
        f"token in the key {key}, or remove spec.metrics.token.",
    )
