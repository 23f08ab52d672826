"""`spec.metadataVersion`: the features that the operator finalizes once all brokers support them.

Until then the brokers can return to the last release. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.protocol.feature_levels import RELEASE_FEATURES, SECURITY_FEATURE

from shoal_operator.brokers.diagnostics import Diagnosis

if TYPE_CHECKING:
    from collections.abc import Mapping


class FeaturePlan(NamedTuple):
    """The features to raise, by name with their new levels, or what is in the way."""

    levels: Mapping[str, int] = {}
    problem: Diagnosis | None = None


def find_finalized_release(features: Mapping[str, int]) -> str:
    """Return the newest release whose features a cluster has, or an empty text."""
    reached = [
        release for release in RELEASE_FEATURES if not _list_missing_levels(release, features)
    ]
    return reached[-1] if reached else ""


def make_plan(
    release: str, versions: Mapping[int, str], features: Mapping[str, int]
) -> FeaturePlan:
    """Return what to do for a release such as 0.1.

    `versions` are those of the brokers that answered, and `features` the finalized levels.
    """
    if release not in RELEASE_FEATURES:
        known_releases = ", ".join(RELEASE_FEATURES)
        text = (
            f"spec.metadataVersion is {release}, and this operator has {known_releases}. "
            "Upgrade it."
        )
        return FeaturePlan(problem=Diagnosis("MetadataVersionUnknown", text))
    reached = find_finalized_release(features)
    is_newer = _parse_version(reached) > _parse_version(release)
    if is_newer and RELEASE_FEATURES[reached] != RELEASE_FEATURES[release]:
        return FeaturePlan(
            problem=Diagnosis(
                "MetadataVersionNotLowered",
                f"spec.metadataVersion is {release}, and the cluster has the features of "
                f"{reached}, which cannot be taken back. Set {reached}.",
            )
        )
    missing = _list_missing_levels(release, features)
    for broker_id, version in sorted(versions.items()):
        if missing and _parse_version(version) < _parse_version(release):
            return FeaturePlan(
                problem=Diagnosis(
                    "MetadataVersionWaits",
                    f"spec.metadataVersion is {release}, and broker {broker_id} runs {version}. "
                    "Upgrade the brokers first: set spec.version or spec.image.",
                )
            )
    return FeaturePlan(missing)


def _list_missing_levels(release: str, features: Mapping[str, int]) -> dict[str, int]:
    """Return the levels of a release that are not reached. The first request that needs the records
    of security raises their feature."""
    return {
        name: level
        for name, level in RELEASE_FEATURES[release].items()
        if name != SECURITY_FEATURE and features.get(name, 0) < level
    }


def _parse_version(version: str) -> tuple[int, ...]:
    """Return major and minor number, to compare releases."""
    numbers = version.split(".")[:2]
    return tuple(int(number) if number.isdecimal() else 0 for number in numbers)
