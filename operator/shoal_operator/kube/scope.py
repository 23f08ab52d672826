"""Whether another operator acts on the same namespaces.

The Lease of each operator has an annotation with the namespaces that it watches. An operator that
finds the held Lease of another one with a namespace in common does not acquire its own, so two
operators never change the same objects in turn. Operators of disjoint namespaces do not disturb
each other.

Replicas of one installation share a Lease and are not meant here: see `election`.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import structlog

from shoal_operator.kube.kube import KubeClient, KubeError
from shoal_operator.model import names

if TYPE_CHECKING:
    from shoal_operator.model.names import Manifest

log = structlog.get_logger()
API_VERSION, KIND = "coordination.k8s.io/v1", "Lease"
#: Annotation of a Lease: the namespaces that its operator watches, separated by commas.
WATCHES, ALL = f"{names.GROUP}/watches", "*"
#: A Lease that was renewed within this time is held. It is longer than a failover between the
#: replicas of the other operator (`election`), with some allowance for clocks that differ. An
#: operator that is uninstalled may have lost its roles before it can release its Lease.
HELD_SECONDS = 30.0


class OperatorScope:
    """The namespaces of this operator, all if `watched` is empty. `namespace` is its own, which has
    its Lease."""

    def __init__(self, kube: KubeClient, namespace: str, watched: tuple[str, ...]) -> None:
        self._kube, self._namespace, self._watched = kube, namespace, watched
        #: The sentence about the other operator, empty without one.
        self.problem = ""

    @property
    def metadata(self) -> Manifest:
        """The labels and annotations of this operator's Lease."""
        watches = ",".join(self._watched) or ALL
        return {"labels": dict(names.OPERATOR_LABELS), "annotations": {WATCHES: watches}}

    async def has_rival(self, since: str = "") -> bool:
        """Return whether another operator acts on our namespaces; log it and record an event.

        With `since`, the time at which we acquired our Lease, only one that was earlier counts.
        Raises `KubeError`.
        """
        problem = await self._find_problem(since)
        if problem and problem != self.problem:
            log.error("does not act", reason=problem)
            lease = {"name": names.FIELD_MANAGER, "namespace": self._namespace}
            involved = {"apiVersion": API_VERSION, "kind": KIND, "metadata": lease}
            await self._kube.record_event(
                involved, "AnotherOperator", problem, warning=True, once=problem
            )
        self.problem = problem
        return bool(problem)

    async def _find_problem(self, since: str) -> str:
        try:
            leases, _ = await self._kube.list_snapshot(
                API_VERSION, KIND, None, names.OPERATOR_LABELS
            )
        except KubeError as error:
            if error.status != 403:
                raise
            # Roles of an earlier release of the chart do not allow it.
            log.warning("cannot look for other operators", error=str(error))
            return ""
        for lease in leases:
            other_namespace, spec = lease["metadata"]["namespace"], lease.get("spec", {})
            common = self._find_common(lease["metadata"].get("annotations", {}).get(WATCHES, ""))
            if other_namespace == self._namespace or not common or not _is_held(spec):
                continue
            if since and (since, self._namespace) < (spec.get("acquireTime", ""), other_namespace):
                continue
            return (
                f"The operator in namespace {other_namespace!r} acts on {common}. Two operators "
                "would undo each other's changes: uninstall one of them, or give both disjoint "
                "watchNamespaces."
            )
        return ""

    def _find_common(self, watches: str) -> str:
        """Return the namespaces that an operator with this annotation shares with this one."""
        other_namespaces = set(watches.split(",")) if watches else set()
        if not other_namespaces:
            return ""  # It is of an earlier release, and does not say what it watches.
        if ALL in other_namespaces and not self._watched:
            return "all namespaces"
        common = other_namespaces if not self._watched else set(self._watched)
        if ALL not in other_namespaces and self._watched:
            common &= other_namespaces
        return ", ".join(f"namespace {name!r}" for name in sorted(common))


def _is_held(spec: Manifest) -> bool:
    renewed = spec.get("renewTime")
    if not spec.get("holderIdentity") or not renewed:
        return False
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(renewed)
    return age.total_seconds() < HELD_SECONDS
