"""Secrets as the operator reads and writes them. Pure."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from shoal_operator.model import names
from shoal_operator.model.certificates import BadCertificate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.model.kubernetes import ObjectMeta
    from shoal_operator.model.names import Manifest


def decode_data(secret: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the values of a Secret. Raises `BadCertificate`."""
    try:
        return {k: base64.b64decode(v, validate=True) for k, v in secret.get("data", {}).items()}
    except (binascii.Error, TypeError):
        raise BadCertificate("its data is not in base 64") from None


def encode_data(data: Mapping[str, bytes]) -> dict[str, str]:
    """Return values as the data of a Secret."""
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


def build_manifest(
    namespace: str,
    name: str,
    labels: Mapping[str, str],
    data: Mapping[str, str],
    *,
    owner: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Return a Secret with `encode_data` data. It is deleted with its `owner`, if it has one."""
    meta: ObjectMeta = {"name": name, "namespace": namespace, "labels": dict(labels)}
    if annotations:
        meta["annotations"] = dict(annotations)
    if owner is not None:
        meta["ownerReferences"] = [names.build_owner_reference(owner)]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": meta,
        "type": "Opaque",
        "data": dict(data),
    }
