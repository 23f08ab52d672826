"""Failures of one resource. They become its conditions, so that the others of its kind continue.

What no broker answers, and what the brokers will accept later, concerns all resources alike: such
an error is raised, and the whole pass is repeated. So is a failure that cannot be written into the
resource, but only after all others have had their turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from shoal.client.errors import ClientError, KafkaError
from shoal.protocol.errors import ErrorCode

from shoal_operator import metrics
from shoal_operator.kube.conditions import Verdict
from shoal_operator.kube.kube import KubeError, NotOwned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping

T = TypeVar("T")
log = structlog.get_logger()
#: The API server refuses the object itself: it will do so until the spec changes.
_INVALID = (400, 422)
#: The API server's own trouble, or a change by somebody else at the same time.
_TRANSIENT = (0, 409, 429)


def is_of_all(error: Exception) -> bool:
    """Return whether an error concerns all resources of a request to the brokers."""
    if isinstance(error, KafkaError):
        return error.retriable or error.code == ErrorCode.cluster_authorization_failed
    return isinstance(error, ClientError)


async def complete_all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Make these calls one after the other, and return their results.

    Raises the first `KubeError`, after all calls: a resource whose status is refused must not keep
    others from theirs. An API server that does not answer ends it at once.
    """
    results: list[T] = []
    refused = None
    for call in calls:
        try:
            results.append(await call)
        except KubeError as error:
            if error.status == 0:
                raise
            refused = refused or error
    if refused is not None:
        raise refused
    return results


def report(kind: str, resource: Mapping[str, Any], error: Exception) -> Verdict:
    """Log and count the failure of one resource; return the verdict on it."""
    metrics.ERRORS.labels(kind).inc()
    meta = resource["metadata"]
    log_fields = {"kind": kind, "namespace": meta["namespace"], "name": meta["name"]}
    if isinstance(error, KubeError | KafkaError):
        log.warning("refused", **log_fields, error=str(error))
    else:
        log.error("a defect of the operator", **log_fields, exc_info=error)
    return judge(error)


def judge(error: Exception) -> Verdict:
    """Return the verdict on a resource at which the operator failed with this error."""
    if isinstance(error, NotOwned):
        return Verdict.make_refused("ObjectNotOwned", f"{error}")
    if isinstance(error, KubeError):
        if error.status in _INVALID:
            return Verdict.make_refused("ApplyFailed", f"{error}. Change the spec.")
        if error.status in _TRANSIENT or error.status >= 500 or error.terminating:
            return Verdict.make_waiting("ApplyFailed", f"{error}")
        return Verdict.make_blocked("ApplyFailed", f"{error}. The operator tries again.")
    if isinstance(error, KafkaError):
        text = f"The brokers refused the request: {error}. Change the spec."
        return Verdict.make_refused("RequestRefused", text)
    return Verdict.make_refused(
        "Defect",
        f"The operator failed at this resource: {type(error).__name__}: {error}. Its log has the "
        "details: report them. Other resources continue; a change of this one is tried at once.",
    )
