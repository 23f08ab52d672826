"""The manifests on the operator's pages fit the schemas, so that a reader can apply them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from kube.structural import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parents[2] / "docs" / "operator"
PAGES = ("clusters", "queues", "consumers")
BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
API_VERSION = "shoal.dev/v1beta1"
#: Kinds that a part of a manifest may belong to.
KINDS = ("QueueCluster", "QueueUser", "ShareGroup", "ShareConsumer")
#: Fields by which parts of other manifests are known: pods, SparkApplications, ScaledObjects.
FOREIGN = {"containers", "driver", "triggers"}


def blocks(page: str) -> list[list[Any]]:
    """Return the documents of each block of YAML."""
    text = (DOCS / f"{page}.md").read_text()
    return [list(yaml.safe_load_all(block)) for block in BLOCK.findall(text)]


def wrong_fields(part: dict[str, Any]) -> list[str]:
    """Return what is wrong with a part of a spec for the kind that it fits best. A part may lack
    required fields."""
    each = [errors({"apiVersion": API_VERSION, "kind": kind, "spec": part}) for kind in KINDS]
    return min(([e for e in found if not e.endswith(": required")] for found in each), key=len)


def faults(page: str) -> Iterator[str]:
    for document in (one for block in blocks(page) for one in block):
        # A list is a part of `spec.listeners`.
        part = {"listeners": document} if isinstance(document, list) else document
        if part.get("apiVersion") == API_VERSION:
            yield from errors(part)
        elif "kind" not in part and not FOREIGN & (spec := part.get("spec", part)).keys():
            yield from wrong_fields(spec)


@pytest.mark.parametrize("page", PAGES)
def test_manifests_fit_the_schemas(page: str) -> None:
    assert list(faults(page)) == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_whole_manifests(page: str) -> None:
    first = blocks(page)[0]
    assert [one["apiVersion"] for one in first] == [API_VERSION] * len(first)


def test_a_field_that_does_not_exist_is_found() -> None:
    assert wrong_fields({"scaling": {"cooldown": "60s"}}) == []
    assert wrong_fields({"scaling": {"coolDown": "60s"}}) != []
