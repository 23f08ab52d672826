"""Drift of Kubernetes objects from their manifests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shoal_operator.model import names

if TYPE_CHECKING:
    from shoal_operator.model.names import Manifest

#: Annotation of an object with the digest of the manifest that was applied last.
APPLIED = f"{names.GROUP}/applied"


def marked(want: Manifest) -> Manifest:
    """Return the manifest with its digest in an annotation.

    `has_drifted` then also finds a field that the manifest no longer has; server-side apply removes
    it.
    """
    digest = hashlib.sha256(json.dumps(want, sort_keys=True).encode()).hexdigest()[:16]
    meta = want["metadata"]
    notes = {**meta.get("annotations", {}), APPLIED: digest}
    return {**want, "metadata": {**meta, "annotations": notes}}


def has_drifted(want: Any, have: Any) -> bool:
    """Return whether `have` lacks something of `want`. Additions by others do not count."""
    if isinstance(want, Mapping):
        return not isinstance(have, Mapping) or any(
            has_drifted(v, have.get(k)) for k, v in want.items()
        )
    if isinstance(want, list):
        return (
            not isinstance(have, list)
            or len(want) != len(have)
            or any(has_drifted(w, h) for w, h in zip(want, have, strict=True))
        )
    return bool(want != have and str(want) != str(have) and want not in ("", None))
