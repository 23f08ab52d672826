"""The messages of `shoal apply` are those of the API server, whose own code is asked for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from e2e.test_topics_and_groups import BAD
from e2e.test_trial import DEFAULTS, load
from kube.custom_resources import Taken, take
from kube.model import test_bounds, test_broker_template, test_ephemeral, test_node_pools
from kube.model.test_custom_resources import (
    CHANGES,
    LISTENERS,
    POOLS,
    SCHEDULES,
    SHARE_GROUPS,
    examples,
    queue_cluster,
)
from shoal_operator import clock
from shoal_operator.kube.kube import KubeError
from shoal_operator.local.definitions import list_unknown, load_definitions
from shoal_operator.local.validation import find_violations, prepare
from shoal_operator.model import names

if TYPE_CHECKING:
    from collections.abc import Iterator

Manifest = dict[str, Any]
#: The rows of `refused.yaml` that end this code of the API server, which reads fields into their
#: types first, and finds unknown fields elsewhere.
_NOT_FOR_THAT_CODE = ("config-number", "text-replicas", "unknown-field")
#: Parts of what the API server says in places that this code of it does not have: instead of rules
#: that it does not check, about lists with keys, and about replicas that can be scaled. At night,
#: `tests/e2e/test_refusals.py` asks the whole server.
_ELSEWHERE = (
    "some validation rules were not checked",
    "must be an object for an array of list-type map",
    ": Duplicate value: ",
)
#: Of the latter, all begins so.
_SCALED = ".spec.replicas: "


def mutate(value: Any) -> Iterator[Any]:
    """Yield the value with one field less, or with another one out of bounds."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from ({**value, name: changed} for changed in mutate(item))
            yield {other: kept for other, kept in value.items() if other != name}
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (-5, 10**9)
    elif isinstance(value, str):
        yield from ("", "Not Valid!", "x" * 5000)


def is_said_elsewhere(line: str) -> bool:
    """Return whether that code of the API server cannot have said a line."""
    return line.startswith(_SCALED) or any(text in line for text in _ELSEWHERE)


def list_refusals(manifest: Manifest, old: Manifest | None = None) -> list[str]:
    """Return our errors, as the lines of the message."""
    definition = load_definitions()[manifest["kind"]]
    try:
        prepare(definition, manifest, old)
    except KubeError as error:
        text = str(error).partition(" is invalid: ")[2]
        lines = text.removeprefix("\n* ").split("\n* ") if text.startswith("\n* ") else [text]
        return sorted(line for line in lines if not is_said_elsewhere(line))
    return []


def assert_same(manifest: Manifest, taken: Taken, old: Manifest | None = None) -> None:
    ours, theirs = list_refusals(manifest, old), sorted(taken.errors)
    definition = load_definitions()[manifest["kind"]]
    if theirs and set(ours) < set(theirs):
        # Only errors that keep the API server from checking rules leave rules out.
        blocked = {v.keyword for v in find_violations(definition, taken.stored, old)}
        assert "rule" not in blocked
        theirs = [line for line in theirs if line in ours]
    assert ours == theirs, manifest
    if not ours:
        stored = prepare(definition, manifest, old)
        assert {k: stored.get(k) for k in ("spec", "status")} == {
            k: taken.stored.get(k) for k in ("spec", "status")
        }


def list_bad_manifests() -> Iterator[Manifest | tuple[Manifest, Manifest]]:
    """Yield what tests expect the API server or the operator to refuse; of a pair, the second one
    after the first."""
    # The API server finds an unknown field before what this code of it does.
    yield from (manifest for manifest, text in BAD.values() if "unknown field" not in text)
    for manifest, _ in load("refused"):
        if manifest["metadata"]["name"] not in _NOT_FOR_THAT_CODE:
            yield manifest
    yield from (queue_cluster(listener=listener) for listener, _ in LISTENERS)
    yield from (queue_cluster(pools=pools) for pools, _ in POOLS)
    yield from (manifest for manifest, _ in SHARE_GROUPS)
    yield from (case for case, _ in SCHEDULES)
    for kind, spec in test_bounds.TOO_LARGE:
        yield {**queue_cluster(), "kind": kind, "spec": spec}
    yield from (test_ephemeral.cluster(**spec) for spec, _ in test_ephemeral.LOSING_RECORDS)
    in_memory = test_ephemeral.least()
    in_memory["spec"]["storage"]["type"] = "memory"
    yield in_memory
    yield from (manifest for manifest, _ in test_node_pools.LOSING_DATA)
    for pod, _ in test_node_pools.OPERATORS_FIELDS:
        yield queue_cluster(pools=[{**test_node_pools.LARGE, "template": {"pod": pod}}])
    for field, entry, _ in test_broker_template.OPERATORS_NAMES:
        cluster = queue_cluster()
        cluster["spec"]["template"] = {"pod": {field: [entry]}}
        yield cluster


def make_applied(manifest: Manifest) -> Manifest:
    """Return a manifest as somebody applies it: some are stored objects, of which only that is left
    that the operator reads."""
    whole = {"apiVersion": names.API_VERSION, **manifest}
    return {name: value for name, value in whole.items() if name != "status"}


def test_bad_manifests_of_the_suite_get_the_same_messages() -> None:
    """It takes seconds, because the API server's code compiles the rules of all definitions."""
    bad = list(list_bad_manifests())
    cases = [case if isinstance(case, tuple) else (None, make_applied(case)) for case in bad]
    assert sum(bool(list_refusals(manifest, old)) for old, manifest in cases) > 150
    answers = take(manifest if old is None else (old, manifest) for old, manifest in cases)
    for (old, manifest), taken in zip(cases, answers, strict=True):
        assert_same(manifest, taken, old)


#: Texts that are times for Go, for Python, for both or for neither.
TIMES = (
    *("2026-01-01T08:00:00Z", "2026-01-01t08:00:00z", "2026-01-01T08:00:00.5+01:00", "soon", ""),
    *("2026-01-01T08:00:00,5Z", "2026-01-01T08:00:00x5Z", "2026-01-01T08:00:00ZTx", "2026-01-01"),
    *(
        "2026-01-01T08:00:00",
        "2026-01-01 08:00:00Z",
        "2026-13-01T08:00:00Z",
        "2026-02-30T08:00:00Z",
    ),
    *("2026-01-01T24:00:00Z", "2026-01-01T08:00:60Z", "2026-01-01T08:00:00+99:00", "20260101T08Z"),
    *("0000-01-01T08:00:00Z", "0000-02-29T08:00:00Z", "0001-02-29T08:00:00Z"),
)


def test_times_are_the_same_for_the_api_server() -> None:
    """And each one that it takes is a time for the operator."""
    redrive = DEFAULTS["Redrive"]
    manifests: list[Manifest] = [
        {
            "apiVersion": names.API_VERSION,
            "kind": "Redrive",
            "metadata": {"name": "at", "namespace": "n"},
            "spec": redrive | {"letters": {"since": text}},
        }
        for text in TIMES
    ]
    accepted = 0
    for manifest, taken in zip(manifests, take(manifests), strict=True):
        assert list_refusals(manifest) == sorted(taken.errors)
        if not taken.errors:
            accepted += 1
            assert clock.parse_time_ms(manifest["spec"]["letters"]["since"]) > 10**12
    assert accepted == 4


def test_changes_get_the_same_messages() -> None:
    """Rules about transitions compare with the stored object."""
    befores = [taken.stored for taken in take(queue_cluster(pools=[b]) for b, _, _ in CHANGES)]
    pairs = [(b, queue_cluster(pools=[a])) for b, (_, a, _) in zip(befores, CHANGES, strict=True)]
    refused = 0
    for (before, after), taken in zip(pairs, take(pairs), strict=True):
        assert_same(after, taken, before)
        refused += bool(taken.errors)
    assert refused > 3


@pytest.mark.parametrize("kind", ["QueueTopic", "ShareGroup", "QueueUser", "Redrive"])
def test_examples_with_a_wrong_field_get_the_same_messages(kind: str) -> None:
    cases = [
        {**manifest, "spec": spec}
        for _, manifest in examples()
        if manifest["kind"] == kind
        for spec in mutate(manifest["spec"])
    ]
    assert len(cases) > 20
    for manifest, taken in zip(cases, take(cases), strict=True):
        assert_same(manifest, taken)


def test_an_unknown_field_and_another_version_are_refused() -> None:
    topic = {"apiVersion": "shoal.dev/v1beta1", "kind": "QueueTopic", "metadata": {"name": "jobs"}}
    definition = load_definitions()["QueueTopic"]
    spec = {"cluster": "main", "partition": 1, "config": {"anything": "goes"}}
    with pytest.raises(KubeError, match=r'strict decoding error: unknown field "spec.partition"$'):
        prepare(definition, {**topic, "spec": spec})
    with pytest.raises(
        KubeError, match=r'no matches for kind "QueueTopic" in version "shoal.dev/v9"'
    ):
        prepare(definition, {**topic, "apiVersion": "shoal.dev/v9", "spec": {"cluster": "main"}})


#: What a whole API server said (1.35), by the kind and what its spec has.
REFUSED_ELSEWHERE = (
    (
        "QueueCluster",
        {"storage": {"size": "1Gi"}, "replicas": "three"},
        """
* spec.replicas: Invalid value: "string": spec.replicas in body must be of type integer: "string"
* .spec.replicas: Invalid value: 0: .spec.replicas accessor error: three is of the type string, \
expected int64
* <nil>: Invalid value: null: some validation rules were not checked because the object was \
invalid; correct the existing errors to complete validation""",
    ),
    (
        "QueueCluster",
        {"storage": {"size": "1Gi"}, "replicas": -1},
        """
* spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or equal to 1
* .spec.replicas: Invalid value: -1: should be a non-negative integer""",
    ),
    (
        "ShareGroup",
        {"cluster": "main", "startOffset": "Earliest", "topics": ["a", "a", "a", "b", "b"]},
        """
* spec.topics[1]: Duplicate value: "a"
* spec.topics[4]: Duplicate value: "b\"""",
    ),
    (
        "QueueCluster",
        {"storage": {"size": "1Gi"}, "listeners": [{"name": "a", "port": 9092, "tls": {}}, 1]},
        """
* spec.listeners[1]: Invalid value: "integer": spec.listeners[1] in body must be of type object: \
"integer"
* spec.listeners[1]: Invalid value: 1: must be an object for an array of list-type map
* <nil>: Invalid value: null: some validation rules were not checked because the object was \
invalid; correct the existing errors to complete validation""",
    ),
    (
        "QueueCluster",
        {"storage": {"size": "1Gi"}, "resources": {"requests": {"cpu": 2.5}}},
        """
* spec.resources.requests.cpu: Invalid value: "number": spec.resources.requests.cpu in body must \
be of type integer,string: "number"
* <nil>: Invalid value: "": "spec.resources.requests.cpu" must validate at least one schema (anyOf)
* spec.resources.requests.cpu: Invalid value: "number": spec.resources.requests.cpu in body must \
be of type integer: "number"
* <nil>: Invalid value: null: some validation rules were not checked because the object was \
invalid; correct the existing errors to complete validation""",
    ),
)


@pytest.mark.parametrize(("kind", "spec", "text"), REFUSED_ELSEWHERE)
def test_what_only_a_whole_server_refuses_is_refused(kind: str, spec: Manifest, text: str) -> None:
    manifest = {"apiVersion": names.API_VERSION, "kind": kind, "metadata": {"name": "a"}}
    with pytest.raises(KubeError) as refused:
        prepare(load_definitions()[kind], {**manifest, "spec": spec})
    assert str(refused.value) == f'The {kind} "a" is invalid: {text}'


def make_pods(container: Any) -> Manifest:
    return {"deployment": {"template": {"spec": {"containers": [container]}}}}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"replicas": {"b": 1, "c": None}}, "spec.replicas.b"),
        (make_pods({"name": {"a": 1}}), "spec.deployment.template.spec.containers[0].name.a"),
        (make_pods({"name": "a", "x": 1}), None),
        (make_pods([{"a": 1}]), None),
    ],
)
def test_unknown_fields_are_those_of_the_server(spec: Manifest, field: str | None) -> None:
    """Also within a value that should not be an object, and in known fields of an object that
    keeps unknown ones."""
    schema = load_definitions()["ShareConsumer"].schema
    unknown = list(list_unknown({"spec": {"shareGroup": "g", **spec}}, schema))
    assert unknown == ([] if field is None else [field])


@pytest.mark.parametrize("value", ["compact, delete", "a\nb", "a\x85b", "a\u2028b", "a\x7fb"])
def test_configs_are_of_one_line_for_both(value: str) -> None:
    """And values are quoted alike."""
    topic = {"apiVersion": names.API_VERSION, "kind": "QueueTopic", "metadata": {"name": "a"}}
    spec = {"cluster": "main", "partitions": 1, "config": {"cleanup.policy": value}}
    (taken,) = take([{**topic, "spec": spec}])
    assert_same({**topic, "spec": spec}, taken)
    assert bool(taken.errors) is (value != "compact, delete")


def test_definitions_have_no_line_break_of_yaml_in_a_text() -> None:
    """`kubectl apply --server-side` sends JSON that the API server reads as YAML: a U+0085 in a
    pattern became a space, so that no config could contain one."""
    for definition in load_definitions().values():
        assert "\x85" not in json.dumps(definition.schema, ensure_ascii=False), definition.kind
