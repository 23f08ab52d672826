"""The Secret of a ShareConsumer with which its Spark driver, or KEDA, reads its scale signal.

It has the address, too: that of an operator under another name or in another namespace is another
one, and a driver would restart for a changed environment (ADR 171).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal_operator.model import names, secret

if TYPE_CHECKING:
    from shoal_operator.http_access import HttpAccess
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.resources.share_consumer import ShareConsumer


def format_name(consumer: ShareConsumer) -> str:
    """Return the name of the Secret."""
    return f"{consumer['metadata']['name']}-scale"


def build_manifest(
    consumer: ShareConsumer, cluster: str, scale_url: str, access: HttpAccess | None
) -> Manifest:
    """Return the Secret, with the address of the signal and, if the operator asks for a login, the
    token of the ShareConsumer and the authority to trust."""
    meta = consumer["metadata"]
    data = {"url": f"{scale_url}/scale/{meta['namespace']}/{meta['name']}".encode()}
    if access is not None:
        data |= {
            "ca.crt": access.get_authority(),
            "token": access.derive_token(meta["namespace"], meta["name"]),
        }
    labels = names.build_consumer_labels(meta["name"], cluster)
    return secret.build_manifest(
        meta["namespace"], format_name(consumer), labels, secret.encode_data(data), owner=consumer
    )
