"""Secrets as the operator reads and writes them. Pure."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from shoal_operator.certificates import BadCertificate
from shoal_operator.model import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal_operator.model.names import Manifest


def data_of(secret: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the values of a Secret. Raises `BadCertificate`."""
    try:
        return {k: base64.b64decode(v, validate=True) for k, v in secret.get("data", {}).items()}
    except (binascii.Error, TypeError):
        raise BadCertificate("its data is not in base 64") from None


def encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    """Return values as the data of a Secret."""
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


def manifest(
    namespace: str,
    name: str,
    labels: Mapping[str, str],
    data: Mapping[str, str],
    *,
    owner: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Return a Secret with `encoded` data. It is deleted with its `owner`, if it has one."""
    meta: Manifest = {"name": name, "namespace": namespace, "labels": dict(labels)}
    if annotations:
        meta["annotations"] = dict(annotations)
    if owner is not None:
        meta["ownerReferences"] = [names.owner(owner)]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": meta,
        "type": "Opaque",
        "data": dict(data),
    }
