"""What users of Argo CD can do with Shoal's resources: each action makes the change it claims, and
the API server's schema has the changed field."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from kube.gitops import argocd
from kube.structural import errors
from shoal_operator.model.names import API_VERSION, RESTART

ABOUT = {"name": "mine", "namespace": "n", "uid": "u-1", "generation": 4}
SPECS: dict[str, dict[str, Any]] = {
    "QueueCluster": {"replicas": 3, "storage": {"size": "1Gi"}, "config": {}, "listeners": []},
    "ShareGroup": {"cluster": "main", "topics": ["jobs"], "deadLetters": {"topic": "dlq.jobs"}},
    "ShareConsumer": {"shareGroup": "mine", "deployment": {"template": {"spec": {}}}},
    "Redrive": {"cluster": "main", "topic": "dlq.jobs"},
    "QueueRebalance": {"cluster": "main"},
}
FIELDS = {"ShareGroup": "pauseDelivery"}


def resource(kind: str, **spec: Any) -> argocd.Manifest:
    meta = {**ABOUT, "annotations": {"theirs": "stays"}}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": meta, "spec": SPECS[kind] | spec}


def discovered(kind: str, **spec: Any) -> set[str]:
    """Return the actions that Argo CD offers for a resource with this spec."""
    script = argocd.actions()[kind]["discovery.lua"]
    (found,) = argocd.run([(script, resource(kind, **spec))])
    assert set(found) == set(scripts(kind))
    return {name for name, action in found.items() if not action.get("disabled")}


def scripts(kind: str) -> dict[str, str]:
    return {d["name"]: d["action.lua"] for d in argocd.actions()[kind]["definitions"]}


def act(action: str, before: argocd.Manifest) -> Any:
    (found,) = argocd.run([(scripts(before["kind"])[action], before)])
    return found


def without_empty(value: Any) -> Any:
    """Return a value without empty objects and lists. Lua has one empty table for both, and
    Argo CD keeps what was there."""
    if isinstance(value, dict):
        return {k: kept for k, v in value.items() if (kept := without_empty(v)) not in ({}, [])}
    return [without_empty(one) for one in value] if isinstance(value, list) else value


def recent(text: str, form: str) -> bool:
    time = datetime.datetime.strptime(text, form).replace(tzinfo=datetime.UTC)
    return abs(datetime.datetime.now(datetime.UTC) - time) < datetime.timedelta(minutes=2)


@pytest.mark.parametrize(
    ("kind", "spec", "offered"),
    [
        ("QueueCluster", {}, {"restart", "rebalance", "pause", "hibernate"}),
        ("QueueCluster", {"replicas": 1}, {"restart", "pause", "hibernate"}),
        ("QueueCluster", {"hibernated": True}, {"pause", "wake"}),
        ("QueueCluster", {"hibernated": True, "paused": True}, {"resume"}),
        ("QueueCluster", {"paused": True}, {"resume"}),
        ("QueueCluster", {"type": "external", "external": {}}, {"pause"}),
        ("ShareGroup", {}, {"pause", "redrive"}),
        ("ShareGroup", {"pauseDelivery": True}, {"resume", "redrive"}),
        ("ShareConsumer", {}, {"pause"}),
        ("ShareConsumer", {"paused": True}, {"resume"}),
        ("Redrive", {"paused": False}, {"pause"}),
        ("Redrive", {"paused": True}, {"resume"}),
    ],
)
def test_an_action_is_offered_where_it_changes_something(
    kind: str, spec: dict[str, Any], offered: set[str]
) -> None:
    assert discovered(kind, **spec) == offered


def test_a_group_without_dead_letters_has_none_to_redrive() -> None:
    (found,) = argocd.run(
        [
            (
                argocd.actions()["ShareGroup"]["discovery.lua"],
                {**resource("ShareGroup"), "spec": {"cluster": "main"}},
            )
        ]
    )
    assert found["redrive"]["disabled"] is True


@pytest.mark.parametrize(
    ("kind", "actions", "field"),
    [
        *((kind, ("pause", "resume"), FIELDS.get(kind, "paused")) for kind in SPECS),
        ("QueueCluster", ("hibernate", "wake"), "hibernated"),
    ],
)
def test_pairs_of_actions_change_one_field(kind: str, actions: tuple[str, str], field: str) -> None:
    before = resource(kind)
    for action, value in zip(actions, (True, False), strict=True):
        wanted = {**before, "spec": {**before["spec"], field: value}}
        after = act(action, before)
        assert without_empty(after) == without_empty(wanted)
        assert not [error for error in errors(wanted) if f"spec.{field}" in error]


@pytest.mark.parametrize("annotated", [True, False])
def test_restart_sets_an_annotation(annotated: bool) -> None:
    before = resource("QueueCluster")
    if not annotated:
        del before["metadata"]["annotations"]
    after = act("restart", before)
    made = after["metadata"]["annotations"].pop(RESTART)
    assert without_empty(after) == without_empty(before)
    assert recent(made, "%Y-%m-%dT%H:%M:%SZ")


def test_rebalance_creates_a_proposal_for_the_cluster() -> None:
    (made,) = act("rebalance", resource("QueueCluster"))
    assert made["operation"] == "create"
    rebalance = made["resource"]
    assert errors(rebalance) == []
    assert (rebalance["kind"], rebalance["spec"]) == (
        "QueueRebalance",
        {"cluster": "mine", "mode": "Full"},
    )
    name, _, stamp = rebalance["metadata"]["name"].rpartition("-")
    assert (name, rebalance["metadata"]["namespace"]) == ("mine", "n")
    assert recent(stamp, "%Y%m%d%H%M%S")
    (owner,) = rebalance["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("QueueCluster", "mine", "u-1")


def test_approve_names_the_proposal_that_is_shown() -> None:
    shown = {"proposal": {"id": "ab12"}}
    before = resource("QueueRebalance") | {"status": shown}
    after = act("approve", before)
    assert after["metadata"]["annotations"].pop("shoal.dev/approve") == "ab12"
    assert without_empty(after) == without_empty(before)
    script = argocd.actions()["QueueRebalance"]["discovery.lua"]
    for status, disabled in (({}, True), (shown, False), (shown | {"approved": "ab12"}, True)):
        (found,) = argocd.run([(script, resource("QueueRebalance") | {"status": status})])
        assert bool(found["approve"].get("disabled")) == disabled


def test_redrive_runs_as_the_user_that_the_group_names() -> None:
    """A cluster that authorizes requests refuses a Redrive without one."""
    group = resource("ShareGroup")
    group["metadata"]["annotations"]["shoal.dev/redrive-user"] = "mender"
    for before, user in ((group, "mender"), (resource("ShareGroup"), None)):
        (made,) = act("redrive", before)
        assert errors(made["resource"]) == []
        assert made["resource"]["spec"].get("user") == user
    del group["metadata"]["annotations"]
    (made,) = act("redrive", group)
    assert "user" not in made["resource"]["spec"]


@pytest.mark.parametrize(("spec", "group"), [({}, "mine"), ({"groupId": "others"}, "others")])
def test_redrive_creates_a_redrive_of_the_groups_letters(spec: dict[str, Any], group: str) -> None:
    (made,) = act("redrive", resource("ShareGroup", **spec))
    assert made["operation"] == "create"
    redrive = made["resource"]
    assert errors(redrive) == []
    assert redrive["kind"] == "Redrive"
    name, _, stamp = redrive["metadata"]["name"].rpartition("-")
    assert (name, redrive["metadata"]["namespace"]) == ("mine", "n")
    assert recent(stamp, "%Y%m%d%H%M%S")
    (owner,) = redrive["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("ShareGroup", "mine", "u-1")
    wanted = {"cluster": "main", "topic": "dlq.jobs", "letters": {"groups": [group]}}
    assert {k: v for k, v in redrive["spec"].items() if k != "note"} == wanted
