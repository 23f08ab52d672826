"""`spec.metadataVersion`: which features the operator raises, and when."""

from __future__ import annotations

import pytest
import shoal
from shoal.metadata.controller import INITIAL_FEATURES, METADATA_VERSION, SUPPORTED_FEATURES
from shoal.protocol import feature_levels
from shoal.protocol.feature_levels import SECURITY_FEATURE
from shoal_operator.cluster.metadata_version import FeaturePlan, find_finalized_release, make_plan

RELEASES = {
    "0.9": {"share.version": 1, SECURITY_FEATURE: 1},
    "0.10": {"share.version": 2, SECURITY_FEATURE: 1, "group.version": 1},
}


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("shoal.protocol.feature_levels", "shoal_operator.cluster.metadata_version"):
        monkeypatch.setattr(f"{module}.RELEASE_FEATURES", RELEASES)


def test_this_release_has_its_features() -> None:
    """Those of a new cluster, which brokers support."""
    release = shoal.__version__.rpartition(".")[0]
    assert list(feature_levels.RELEASE_FEATURES)[-1] == release
    assert feature_levels.RELEASE_FEATURES[release] == INITIAL_FEATURES
    assert INITIAL_FEATURES["metadata.version"] == METADATA_VERSION
    highest = {name: high for name, (_, high) in SUPPORTED_FEATURES.items()}
    assert highest == INITIAL_FEATURES


@pytest.mark.usefixtures("releases")
@pytest.mark.parametrize(
    ("wanted", "versions", "features", "levels"),
    [
        ("0.10", ["0.10.0", "0.10.3"], {}, {"share.version": 2, "group.version": 1}),
        ("0.10", ["0.10.0"], {"share.version": 2}, {"group.version": 1}),
        # Brokers of a later release have the features of this one.
        ("0.9", ["0.9.1", "0.10.0"], {}, {"share.version": 1}),
        # Nothing is left to do, so no broker needs to be asked.
        ("0.9", ["0.8.0"], {"share.version": 1}, {}),
        ("0.10", [], {"share.version": 2}, {"group.version": 1}),
    ],
)
def test_missing_levels_are_raised(
    wanted: str, versions: list[str], features: dict[str, int], levels: dict[str, int]
) -> None:
    """The feature of security is not: a request raises it."""
    assert make_plan(wanted, dict(enumerate(versions)), features) == FeaturePlan(levels)


@pytest.mark.usefixtures("releases")
@pytest.mark.parametrize(
    ("wanted", "versions", "features", "reason", "words"),
    [
        ("0.11", ["0.10.0"], {}, "MetadataVersionUnknown", "has 0.9, 0.10"),
        ("0.10", ["0.10.0", "0.9.7"], {}, "MetadataVersionWaits", "broker 1 runs 0.9.7"),
        ("0.9", [], RELEASES["0.10"], "MetadataVersionNotLowered", "Set 0.10."),
    ],
)
def test_what_is_in_the_way_is_named(
    wanted: str, versions: list[str], features: dict[str, int], reason: str, words: str
) -> None:
    levels, problem = make_plan(wanted, dict(enumerate(versions)), features)
    assert not levels
    assert problem is not None
    assert problem.reason == reason
    assert words in problem.message


def test_a_release_without_new_features_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that asks for the earlier release stays as it is after an upgrade."""
    same = RELEASES | {"0.11": RELEASES["0.10"]}
    monkeypatch.setattr("shoal_operator.cluster.metadata_version.RELEASE_FEATURES", same)
    features = RELEASES["0.10"]
    assert find_finalized_release(features) == "0.11"
    assert make_plan("0.10", {0: "0.11.0"}, features) == FeaturePlan({})
    assert make_plan("0.9", {0: "0.11.0"}, features).problem is not None


@pytest.mark.usefixtures("releases")
@pytest.mark.parametrize(
    ("features", "release"),
    [
        ({}, ""),
        ({"share.version": 1}, "0.9"),
        ({"share.version": 2}, "0.9"),
        ({"share.version": 2, "group.version": 1}, "0.10"),
    ],
)
def test_the_status_has_the_newest_release(features: dict[str, int], release: str) -> None:
    assert find_finalized_release(features) == release
