"""Drift of Kubernetes objects from their manifests, and of configs from their resources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shoal_operator.model import names

if TYPE_CHECKING:
    from shoal_operator.model.names import Manifest

#: The event about something that somebody else had changed.
REVERTED = "DriftReverted"
#: Annotation of an object with the digest of the manifest that was applied last.
APPLIED = f"{names.GROUP}/applied"


def with_digest(want: Manifest) -> Manifest:
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


def describe_reverted(
    resource: Mapping[str, Any], changes: Mapping[str, str | None], have: Mapping[str, str]
) -> str:
    """Return which of these changes undo what somebody else did to the configs of a resource, as
    a sentence; empty for changes of the spec. `have` are the configs as they were."""
    status = resource.get("status", {})
    if status.get("observedGeneration") != resource["metadata"].get("generation", 0):
        return ""
    ours = sorted(changes.keys() & set(status.get("appliedConfig", ())))
    parts = [
        f"{name} is {changes[name] or 'unset'} again, and was {have.get(name, 'unset')}"
        for name in ours
    ]
    return f"Somebody else had changed this: {'; '.join(parts)}." if parts else ""
