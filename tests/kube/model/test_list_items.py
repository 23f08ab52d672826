"""Fields that the items of a list, or objects that may be empty, leave out: the API server writes
no default into them.

Such a default is a conflict with who applies the list server-side, and drift for ever in Argo CD.
The operator assumes the value in its place, and the description of the field says it.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from kube import rendered
from kube.structural import CRDS, schemas
from shoal_operator.model import cluster, field_defaults, listeners, names, node_pools, users
from shoal_operator.model.consumers import schedules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Manifest = dict[str, Any]
#: Where the operator assumes values, as the kind, the path of the item in the spec, and the fields.
ASSUMED = [
    ("QueueCluster", "listeners", field_defaults.LISTENER),
    ("QueueCluster", "nodePools", field_defaults.NODE_POOL),
    ("QueueCluster", "nodePools.template.pod", field_defaults.POD_TEMPLATE),
    ("QueueUser", "acls", field_defaults.ACL),
    ("QueueUser", "acls.resource", field_defaults.ACL_RESOURCE),
    ("ShareConsumer", "scaling.schedules", field_defaults.SCHEDULE),
    ("QueueCluster", "clusterCa", field_defaults.AUTHORITY),
    ("QueueCluster", "clientsCa", field_defaults.AUTHORITY),
    ("ShareConsumer", "scaling", field_defaults.SCALING),
    ("ShareGroup", "keyOrder", field_defaults.KEY_ORDER),
    ("ShareGroup", "deadLetters.create", field_defaults.DEAD_LETTER_TOPIC),
]


def defaults_in_items(schema: Mapping[str, Any], path: str, *, within: bool) -> Iterator[str]:
    """Yield the paths of the defaults at or under a schema that are `within` an item of a list."""
    if within and "default" in schema:
        yield path
    for name, field in schema.get("properties", {}).items():
        yield from defaults_in_items(field, f"{path}.{name}", within=within)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            inner = within or key == "items"
            yield from defaults_in_items(schema[key], f"{path}[]", within=inner)


@pytest.mark.parametrize("file", sorted(CRDS.glob("*.yaml")), ids=lambda file: file.stem)
def test_no_item_of_a_list_has_a_default(file: Any) -> None:
    for version in yaml.safe_load(file.read_text())["spec"]["versions"]:
        whole = version["schema"]["openAPIV3Schema"]
        assert [*defaults_in_items(whole, version["name"], within=False)] == []


def iterate_schemas(schema: Manifest, path: str) -> Iterator[tuple[str, Manifest]]:
    """Yield the schemas of objects at or under a schema that are in no list, by path."""
    for name, field in schema.get("properties", {}).items():
        if field.get("type") == "object":
            yield f"{path}.{name}", field
            yield from iterate_schemas(field, f"{path}.{name}")


def test_what_may_be_empty_gets_nothing_inside() -> None:
    """If kubectl has applied `create: {}`, it owns the defaults inside. When another manager takes
    the same manifest over server-side, the API server removes them, and what remains is null, which
    the schema refuses from then on. An object with a default of its own is made again."""
    wrong = [
        path
        for file in sorted(CRDS.glob("*.yaml"))
        for version in yaml.safe_load(file.read_text())["spec"]["versions"]
        for path, schema in iterate_schemas(
            version["schema"]["openAPIV3Schema"]["properties"]["spec"], file.stem
        )
        if not schema.get("required") and "default" not in schema
        if any("default" in field for field in schema.get("properties", {}).values())
    ]
    assert wrong == []


def fields(kind: str, path: str) -> Manifest:
    """Return the fields of an item, or of an object in it."""
    schema = schemas()[names.API_VERSION, kind]["properties"]["spec"]
    for name in path.split("."):
        schema = schema["properties"][name]
        schema = schema.get("items", schema)
    return dict(schema["properties"])


@pytest.mark.parametrize(("kind", "path", "values"), ASSUMED)
def test_the_description_says_what_the_operator_assumes(
    kind: str, path: str, values: Mapping[str, Any]
) -> None:
    for field, value in values.items():
        text = f"[{', '.join(value)}]" if isinstance(value, tuple) else str(value)
        text = text.lower() if isinstance(value, bool) else text
        said = fields(kind, path)[field]["description"]
        usual = (f"default {text}", f"default `{text}`", f"`{text}`, the default")
        assert any(one in said for one in usual), f"{path}.{field}: {said}"


NOW = datetime.datetime(2026, 6, 1, 9, 30, tzinfo=datetime.UTC)
LISTENER: Any = {"name": "plain", "port": 9092, "tls": {"enabled": False}}
POOL = {"name": "large", "firstNodeId": 100}
ENTRY: Manifest = {"resource": {"type": "topic", "name": "a"}, "operations": ["read"]}
SCHEDULE = {"name": "day", "start": "0 9 * * *", "duration": "1h", "minReplicas": 2}


def of_cluster(**spec: Any) -> Any:
    found = rendered.clusters()["whole"]
    return {**found, "spec": {**found["spec"], **spec}}


def read_listener(item: Any) -> Any:
    whole = of_cluster(listeners=[item])
    inside = listeners.is_internal(item), listeners.is_routed(item)
    return inside, listeners.list_external(whole), listeners.build_services(whole)


def read_pool(item: Manifest) -> Any:
    whole = of_cluster(nodePools=[item])
    return node_pools.list_pools(whole), node_pools.count_replicas(
        node_pools.with_replicas(whole, {})
    )


def read_pod(item: Manifest) -> Any:
    whole = of_cluster(template={"pod": item})
    made = cluster.build_manifests(whole, "i:1", rendered.services(whole))
    return made[-1]["spec"]["template"]


def read_entry(item: Any) -> Any:
    spec = {"authentication": {"type": "tls"}, "acls": [item]}
    user: Any = {"metadata": {"name": "u"}, "spec": spec}
    return users.build_acls(user)


def read_schedule(item: Any) -> Any:
    return schedules.find_problem([item]), schedules.compute_bounds([item], NOW, 0, 9)


@pytest.mark.parametrize(
    ("read", "item", "spelled_out"),
    [
        (read_listener, LISTENER, {"type": "Internal"}),
        (read_pool, POOL, {"replicas": 1, "roles": ["broker"]}),
        (read_pod, {"labels": {"a": "b"}}, {"terminationGracePeriodSeconds": 60}),
        (read_entry, ENTRY, {"permission": "allow", "host": "*"}),
        (read_entry, ENTRY, {"resource": {**ENTRY["resource"], "patternType": "literal"}}),
        (read_schedule, SCHEDULE, {"timeZone": "Etc/UTC"}),
    ],
)
def test_a_stored_default_and_a_field_left_out_are_the_same(
    read: Any, item: Manifest, spelled_out: Manifest
) -> None:
    """Objects that an earlier release stored have the values, and nothing restarts for them."""
    assert read(item) == read({**item, **spelled_out})


def test_other_values_count() -> None:
    assert listeners.is_routed(LISTENER | {"type": "Ingress"})
    assert read_pool({**POOL, "replicas": 3, "roles": ["controller"]}) != read_pool(POOL)
    assert read_pod({"terminationGracePeriodSeconds": 61}) != read_pod({})
    assert read_entry({**ENTRY, "permission": "deny"}) != read_entry(ENTRY)
    assert read_entry({**ENTRY, "host": "10.0.0.1"}) != read_entry(ENTRY)
    assert read_schedule({**SCHEDULE, "timeZone": "Asia/Tokyo"}) != read_schedule(SCHEDULE)
