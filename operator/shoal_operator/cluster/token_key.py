"""The key that signs the delegation tokens of a cluster with TLS (`delegation.token.secret.key`).

It is in a Secret of its own, which brokers mount and read at their start. All brokers need the same
key, so that a new one restarts them. As in Kafka, tokens of the previous key are void then: the key
never changes unless someone asks for it (ADR 94).
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, NamedTuple

from shoal_operator.brokers.diagnostics import Diagnosis
from shoal_operator.kube.drift import has_drifted
from shoal_operator.model import names, secret, security
from shoal_operator.model.certificates import BadCertificate

if TYPE_CHECKING:
    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store
    from shoal_operator.model.queue_cluster import QueueCluster

#: Annotations of a QueueCluster: a new value asks for a new key, and the fingerprint of a key that
#: was lost permits to make a new one.
RENEW = f"{names.GROUP}/renew-delegation-token-key"
REPLACE = f"{names.GROUP}/replace-lost-delegation-token-key"
#: Annotation of the Secret: the request for a new key that was handled last.
HANDLED = f"{names.GROUP}/renewed"
#: Size of a new key.
KEY_BYTES = 32
#: What fingerprints hash beside the key, so that they are no hash of the key alone.
_PURPOSE = b"delegation.token.secret.key\n"


class TokenKeyLost(Exception):
    """The key cannot be used; `diagnosis` has the reason and the remedy."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        super().__init__(diagnosis.message)
        self.diagnosis = diagnosis


class TokenKey(NamedTuple):
    """A key and the request that it came from."""

    key: bytes
    handled: str


def compute_fingerprint(key: bytes) -> str:
    """Return what the status and the pods show of a key."""
    return hashlib.sha256(_PURPOSE + key).hexdigest()[:16]


class TokenKeyReconciler:
    """Writes the Secret of one QueueCluster."""

    def __init__(self, kube: KubeClient, store: Store, namespace: str, name: str) -> None:
        self._kube, self._store = kube, store
        self._namespace, self._name = namespace, name

    async def reconcile(self, cluster: QueueCluster) -> str:
        """Make the key if there never was one, or if a new one is asked for; return its
        fingerprint, empty if the operator sets no key.

        Raises `TokenKeyLost`, `KubeError`.
        """
        if not security.has_token_key(cluster):
            return ""
        have = await self._read()
        requested = cluster["metadata"].get("annotations", {}).get(RENEW, "")
        if have is None:
            self._check_unknown(cluster)
        if have is None or requested not in ("", have.handled):
            have = TokenKey(secrets.token_urlsafe(KEY_BYTES).encode(), requested)
        await self._apply(have)
        return compute_fingerprint(have.key)

    def _check_unknown(self, cluster: QueueCluster) -> None:
        """Raise `TokenKeyLost` if the cluster has had a key that nobody permits to replace."""
        known_fingerprint = cluster.get("status", {}).get("delegationTokenKey", "")
        permitted = cluster["metadata"].get("annotations", {}).get(REPLACE)
        if known_fingerprint and permitted != known_fingerprint:
            text = (
                f"Secret {security.format_token_key_secret(self._name)!r} has disappeared. Restore "
                "it from a "
                "backup. If it is lost, all delegation tokens are void with a new key: permit that "
                f"by the annotation {REPLACE}={known_fingerprint}."
            )
            raise TokenKeyLost(Diagnosis("DelegationTokenKeyLost", text))

    async def _read(self) -> TokenKey | None:
        name = security.format_token_key_secret(self._name)
        manifest = self._store.get("Secret", self._namespace, name)
        manifest = manifest or await self._kube.get("v1", "Secret", name, self._namespace)
        if manifest is None:
            return None
        try:
            key = secret.decode_data(manifest).get(security.TOKEN_KEY_FILE, b"")
        except BadCertificate:
            key = b""
        if not key.strip():
            text = (
                f"Secret {name!r} has no {security.TOKEN_KEY_FILE}. Restore the Secret from a "
                f"backup, or write a new key into {security.TOKEN_KEY_FILE}."
            )
            raise TokenKeyLost(Diagnosis("DelegationTokenKeyInvalid", text))
        return TokenKey(key, manifest["metadata"].get("annotations", {}).get(HANDLED, ""))

    async def _apply(self, have: TokenKey) -> None:
        want = secret.build_manifest(
            self._namespace,
            security.format_token_key_secret(self._name),
            names.build_labels(self._name, "security"),
            secret.encode_data({security.TOKEN_KEY_FILE: have.key}),
            annotations={HANDLED: have.handled},
        )
        before = self._store.get(
            "Secret", self._namespace, security.format_token_key_secret(self._name)
        )
        if before is None or has_drifted(want, before) or before.get("data") != want["data"]:
            # The Secret may come from the user, or from a backup.
            self._store.put(await self._kube.apply(want, adopt=True))
