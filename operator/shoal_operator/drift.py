"""Drift of Kubernetes objects from their manifests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
