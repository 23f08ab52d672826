"""The Secret of a ShareConsumer with which its Spark driver, or KEDA, reads its scale signal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator.model import names, secret

if TYPE_CHECKING:
    from shoal_operator.http_access import HttpAccess
    from shoal_operator.model.names import Manifest


def name(consumer: Manifest) -> str:
    """Return the name of the Secret."""
    return f"{consumer['metadata']['name']}-scale"


def manifest(consumer: Manifest, cluster: str, access: HttpAccess) -> Manifest:
    """Return the Secret, with the token of the ShareConsumer and the authority to trust."""
    meta = consumer["metadata"]
    data = {
        "ca.crt": access.authority(),
        "token": access.token_of(meta["namespace"], meta["name"]),
    }
    labels = names.consumer_labels(meta["name"], cluster)
    return secret.manifest(
        meta["namespace"], name(consumer), labels, secret.encoded(data), owner=consumer
    )
