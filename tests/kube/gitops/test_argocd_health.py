"""The health of each state of a resource in Argo CD, computed by Argo CD's own Lua engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kube.api_server import STATUSES
from kube.gitops import argocd
from kube.gitops.test_kstatus import KINDS, resource, verdicts, written
from shoal_operator.kube.conditions import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The health of a resource that is neither ready nor paused, by its kstatus result.
HEALTH = {"InProgress": "Progressing", "Failed": "Degraded"}


def expected(verdict: Verdict, kstatus: str) -> str:
    """Return the health of a resource in this state. A sync wave waits for Healthy: a resource that
    serves must not hold the next wave while the operator improves something."""
    if verdict.paused:
        return "Suspended"
    return "Healthy" if verdict.ready else HEALTH[kstatus]


def health(resources: Iterable[argocd.Manifest]) -> list[dict[str, str]]:
    scripts = argocd.health_scripts()
    return argocd.run((scripts[one["kind"]], one) for one in resources)


def test_each_kind_has_a_script() -> None:
    assert sorted(argocd.health_scripts()) == sorted(STATUSES)


def test_each_state_of_each_kind_has_a_health() -> None:
    states = [(kind, *state) for kind in KINDS for state in verdicts()]
    found = health(resource(kind, written(verdict)) for kind, verdict, _ in states)
    wanted = [
        {"status": expected(verdict, kstatus), "message": verdict.message}
        for _, verdict, kstatus in states
    ]
    shown = [f"{kind} {verdict}" for kind, verdict, _ in states]
    assert list(zip(shown, found, strict=True)) == list(zip(shown, wanted, strict=True))


def test_a_new_or_changed_resource_is_progressing() -> None:
    fine = written(Verdict.make_reconciled("text"))
    unseen = [resource(kind, status, generation=1) for kind, status in STATUSES.items()]
    changed = [resource(kind, fine, generation=3) for kind in KINDS]
    bare = [{k: v for k, v in one.items() if k != "status"} for one in unseen]
    found = health([*unseen, *changed, *bare])
    assert [one["status"] for one in found] == ["Progressing"] * 3 * len(KINDS)
