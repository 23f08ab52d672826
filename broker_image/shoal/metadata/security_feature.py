"""The feature `shoal.security.version`, which guards the records of security (ADR 62).

Releases before the feature refuse the records of access control entries, SCRAM credentials and
delegation tokens. Level 1 states that no such node is left. Brokers register the levels that they
support. The first decision with such a record raises the level, in the same batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.controller import ControllerResult
from shoal.metadata.records import MetadataRecord
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.protocol.feature_levels import SECURITY_FEATURE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.metadata.image import MetadataImage

LEVEL = 1


def is_enabled(image: MetadataImage) -> bool:
    """Return whether every node of the cluster supports the records."""
    return image.features.get(SECURITY_FEATURE, 0) >= LEVEL


def with_feature_enabled(image: MetadataImage, decision: ControllerResult) -> ControllerResult:
    """Return a decision with records of security, with the feature's level if that is missing.

    Raises `ApiError` with UNSUPPORTED_VERSION if a registered broker does not support the records.
    """
    if is_enabled(image) or not decision.records:
        return decision
    older = [
        id
        for id, broker in sorted(image.brokers.items())
        if broker.features.get(SECURITY_FEATURE, (0, 0))[1] < LEVEL
    ]
    if older:
        raise build_unsupported_error(
            "brokers", older, "Upgrade them, or unregister those that are gone."
        )
    fields = {"name": SECURITY_FEATURE, "feature_level": LEVEL}
    level = MetadataRecord("FeatureLevelRecord", fields)
    return ControllerResult([level, *decision.records], decision.response)


def build_unsupported_error(kind: str, ids: Sequence[int], remedy: str) -> ApiError:
    """Return the error that names the nodes of an older release."""
    listed = ", ".join(map(str, ids))
    return ApiError(
        ErrorCode.unsupported_version,
        f"The feature {SECURITY_FEATURE} is not supported by these {kind}: {listed}. {remedy}",
    )
