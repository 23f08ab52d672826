"""Asks Kueue why parts of a workload wait for their admission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator.kube.conditions import Verdict
from shoal_operator.kube.kube import KubeError
from shoal_operator.model.consumers import kueue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.kube.kube import KubeClient


async def explain(
    kube: KubeClient, waiting: Sequence[Mapping[str, Any]], *, subject: str, ready: int
) -> Verdict:
    """Return the verdict on a workload of which these objects wait for Kueue, the oldest first.

    `subject` is the number of those that wait, with a verb, as the begin of a sentence. Raises
    `KubeError`.
    """
    oldest = waiting[0]
    reason = await _find_reason(kube, oldest)
    text = f"{subject} for admission by Kueue in LocalQueue {kueue.get_queue(oldest)!r}: {reason}"
    return Verdict(ready > 0, "WaitsForAdmission", f"{text.rstrip('.')}.", progressing=True)


async def _find_reason(kube: KubeClient, waiting: Mapping[str, Any]) -> str:
    """Return why an object waits: what its Workload says."""
    meta = waiting["metadata"]
    selector = {kueue.OWNER_UID_LABEL: meta["uid"]}
    try:
        workloads, _ = await kube.list_snapshot(kueue.API, "Workload", meta["namespace"], selector)
    except KubeError as error:
        if error.status not in (403, 404):
            raise
        return f"its Workload cannot be read ({error})"
    return next(filter(None, map(kueue.find_reason, workloads)), "Kueue has not said why yet")
