"""`spec.metadataVersion`: the features that the operator finalizes once all brokers support them.

Until then the brokers can return to the last release. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.protocol.feature_levels import RELEASE_FEATURES, SECURITY_FEATURE

from shoal_operator.diagnostics import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Mapping


class Plan(NamedTuple):
    """The features to raise, by name with their new levels, or what is in the way."""

    levels: Mapping[str, int] = {}
    problem: Diagnosis | None = None


def finalized(features: Mapping[str, int]) -> str:
    """Return the newest release whose features a cluster has, or an empty text."""
    reached = [release for release in RELEASE_FEATURES if not _missing(release, features)]
    return reached[-1] if reached else ""


def plan(wanted: str, versions: Mapping[int, str], features: Mapping[str, int]) -> Plan:
    """Return what to do for a release such as 0.1.

    `versions` are those of the brokers that answered, and `features` the finalized levels.
    """
    if wanted not in RELEASE_FEATURES:
        known = ", ".join(RELEASE_FEATURES)
        text = f"spec.metadataVersion is {wanted}, and this operator has {known}. Upgrade it."
        return Plan(problem=Diagnosis("MetadataVersionUnknown", text))
    reached = finalized(features)
    later = _order(reached) > _order(wanted)
    if later and RELEASE_FEATURES[reached] != RELEASE_FEATURES[wanted]:
        return Plan(
            problem=Diagnosis(
                "MetadataVersionNotLowered",
                f"spec.metadataVersion is {wanted}, and the cluster has the features of "
                f"{reached}, which cannot be taken back. Set {reached}.",
            )
        )
    missing = _missing(wanted, features)
    for broker_id, version in sorted(versions.items()):
        if missing and _order(version) < _order(wanted):
            return Plan(
                problem=Diagnosis(
                    "MetadataVersionWaits",
                    f"spec.metadataVersion is {wanted}, and broker {broker_id} runs {version}. "
                    "Upgrade the brokers first: set spec.version or spec.image.",
                )
            )
    return Plan(missing)


def _missing(release: str, features: Mapping[str, int]) -> dict[str, int]:
    """Return the levels of a release that are not reached. The first request that needs the records
    of security raises their feature."""
    return {
        name: level
        for name, level in RELEASE_FEATURES[release].items()
        if name != SECURITY_FEATURE and features.get(name, 0) < level
    }


def _order(version: str) -> tuple[int, ...]:
    """Return major and minor number, to compare releases."""
    numbers = version.split(".")[:2]
    return tuple(int(number) if number.isdecimal() else 0 for number in numbers)
