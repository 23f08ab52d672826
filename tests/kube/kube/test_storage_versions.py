"""Resources that are stored in an earlier version of their kind are rewritten."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.api_server import ApiServer, Crash, CrashPoint, resource
from shoal_operator.kube.kube import KubeError
from shoal_operator.kube.storage_versions import KIND, get_storage_version, migrate, migrate_all
from shoal_operator.model import names

NAME = "queuetopics.shoal.dev"
CRDS = Path(__file__).parents[3] / "crds"
RESOURCES = 3


def definition(*stored: str) -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((CRDS / f"{NAME}.yaml").read_text())
    return made | {"status": {"storedVersions": list(stored)}}


def server(*stored: str) -> ApiServer:
    kube = ApiServer(CrashPoint())
    kube.add(definition(*stored))
    for number in range(RESOURCES):
        kube.add(resource("QueueTopic", f"t-{number}", cluster="main", partitions=1))
    return kube


def stored(kube: ApiServer) -> list[str]:
    found: list[str] = kube.find(KIND, NAME)["status"]["storedVersions"]
    return found


def versions(kube: ApiServer) -> list[str]:
    return [one["metadata"]["resourceVersion"] for one in kube.all("QueueTopic")]


@pytest.mark.parametrize("file", sorted(CRDS.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_kind_is_served_in_both_versions_with_the_same_fields(file: Path) -> None:
    spec = yaml.safe_load(file.read_text())["spec"]
    now, before = spec["versions"]
    assert (now["name"], before["name"]) == (names.VERSION, "v1alpha1")
    assert now["served"]
    assert before["served"]
    assert get_storage_version({"spec": spec}) == names.VERSION
    assert names.VERSION in before["deprecationWarning"]
    for key in ("schema", "subresources", "additionalPrinterColumns"):
        assert now[key] == before[key]
    assert "conversion" not in spec, "the fields are the same: no webhook is needed"


def test_each_resource_is_written_once_and_then_the_list_of_versions() -> None:
    kube = server("v1alpha1", names.VERSION)
    before = versions(kube)
    assert asyncio.run(migrate(kube, NAME)) == RESOURCES
    assert stored(kube) == [names.VERSION]
    assert all(new != old for new, old in zip(versions(kube), before, strict=True))
    assert [one["spec"]["cluster"] for one in kube.all("QueueTopic")] == ["main"] * RESOURCES
    after = versions(kube)
    assert asyncio.run(migrate(kube, NAME)) == 0, "nothing is left"
    assert versions(kube) == after


def test_a_definition_that_is_not_there_has_nothing_to_migrate() -> None:
    assert asyncio.run(migrate(ApiServer(CrashPoint()), NAME)) == 0


@pytest.mark.parametrize("changes", range(1, RESOURCES + 2))
def test_an_operator_that_is_killed_migrates_again(changes: int) -> None:
    """The list of versions changes last: until then, the next operator starts over."""
    kube = server("v1alpha1", names.VERSION)
    kube.crash_point.last = changes
    with pytest.raises(Crash):
        asyncio.run(migrate(kube, NAME))
    kube.crash_point.last = None
    done = changes > RESOURCES
    assert (stored(kube) == [names.VERSION]) == done
    asyncio.run(migrate(kube, NAME))
    assert stored(kube) == [names.VERSION]


def test_an_error_is_tried_again_and_a_missing_permission_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal_operator.kube.storage_versions.RETRY_SECONDS", 0.0)
    answers = [KubeError(500, "etcd"), KubeError(403, "no")]

    class Failing(ApiServer):
        async def get(self, *_: Any) -> Any:
            raise answers.pop(0)

    asyncio.run(migrate_all(Failing(CrashPoint()), [NAME]))
    assert answers == []
