"""The manifests on all pages fit the schemas, so that a reader can apply them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from kube.structural import errors, schemas

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

DOCS = Path(__file__).parents[3] / "docs"
#: Pages on which a block that is no manifest is a part of a spec.
PAGES = ("operator/clusters", "operator/queues", "operator/consumers")
BLOCK = re.compile(r"^```yaml\b[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
API_VERSION = "shoal.dev/v1beta1"
#: Kinds that a part of a manifest may belong to.
KINDS = ("QueueCluster", "QueueUser", "ShareGroup", "ShareConsumer")
#: Fields by which parts of other manifests are known: pods, SparkApplications, ScaledObjects.
FOREIGN = {"containers", "driver", "triggers"}


def blocks(page: str) -> list[list[Any]]:
    """Return the documents of each block of YAML of a page, named by its path in `docs`."""
    text = (DOCS / f"{page}.md").read_text()
    return [list(yaml.safe_load_all(block)) for block in BLOCK.findall(text)]


def wrong_fields(part: dict[str, Any], kinds: Collection[str] = KINDS) -> list[str]:
    """Return what is wrong with a part of a spec for the kind that it fits best. A part may lack
    required fields."""
    each = [errors({"apiVersion": API_VERSION, "kind": kind, "spec": part}) for kind in kinds]
    return min(([e for e in found if not e.endswith(": required")] for found in each), key=len)


def wrong_manifests(page: str) -> Iterator[str]:
    """Yield what is wrong with the custom resources on a page, and with parts of their specs."""
    ours = {kind for _, kind in schemas()}
    for document in (one for block in blocks(page) for one in block):
        # A list is a part of `spec.listeners`.
        is_list = isinstance(document, list)
        part: dict[str, Any] = {"spec": {"listeners": document}} if is_list else document
        if part.get("apiVersion") == API_VERSION:
            yield from errors(part)
        elif part.get("kind") in ours:
            yield from wrong_fields(part["spec"], [part["kind"]])
        elif "kind" not in part and ("spec" in part or page in PAGES):
            if not FOREIGN & (spec := part.get("spec", part)).keys():
                yield from wrong_fields(spec)


def test_manifests_fit_the_schemas() -> None:
    pages = sorted(path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md"))
    wrong = {page: found for page in pages if (found := list(wrong_manifests(page)))}
    assert wrong == {}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_whole_manifests(page: str) -> None:
    first = blocks(page)[0]
    assert [one["apiVersion"] for one in first] == [API_VERSION] * len(first)


def test_a_field_that_does_not_exist_is_found() -> None:
    assert wrong_fields({"scaling": {"cooldown": "60s"}}) == []
    assert wrong_fields({"scaling": {"coolDown": "60s"}}) != []
