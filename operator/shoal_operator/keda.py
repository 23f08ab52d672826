"""KEDA's external push scaler: the scale signals of ShareConsumers over gRPC.

A trigger of type `external-push` names a ShareConsumer in its metadata:

shareConsumer: its name; default: the name of the ScaledObject.
targetValue: records for each replica; default: `scaling.targetLagPerReplica`.
tokenFromEnv: a variable of the workload with the token of the ShareConsumer, if the operator asks
for tokens.

The metric is `due`. While the lag is unknown, calls fail with UNAVAILABLE, so that KEDA uses its
fallback. `StreamIsActive` sends the first record of an empty queue at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from shoal_operator import keda_messages as messages
from shoal_operator.grpc_server import GrpcError, GrpcServer, Status
from shoal_operator.keda_messages import BadMessage, ScaledObjectRef

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shoal_operator.grpc_server import Handler, Request
    from shoal_operator.http_access import HttpAccess
    from shoal_operator.runtime import Operator

SERVICE = "externalscaler.ExternalScaler"
METRIC = "due"
#: The default of `targetValue` for a ShareConsumer without `scaling`.
TARGET = 1000


def server(operator: Operator, access: HttpAccess | None = None) -> GrpcServer:
    """Return a server of the scaler, which asks for what `access` asks for."""
    return GrpcServer(Scaler(operator, access).handlers())


class Scaler:
    """The methods of the service."""

    def __init__(self, operator: Operator, access: HttpAccess | None) -> None:
        self._operator, self._access = operator, access

    def handlers(self) -> dict[str, Handler]:
        """Return the methods by their paths."""
        return {
            f"/{SERVICE}/IsActive": self._is_active,
            f"/{SERVICE}/StreamIsActive": self._stream_is_active,
            f"/{SERVICE}/GetMetricSpec": self._metric_spec,
            f"/{SERVICE}/GetMetrics": self._metrics,
        }

    async def _is_active(self, request: Request) -> AsyncIterator[bytes]:
        due = self._due(_decoded(request), request.certified)
        yield messages.is_active_response(due > 0)

    async def _stream_is_active(self, request: Request) -> AsyncIterator[bytes]:
        ref = _decoded(request)
        changed = asyncio.Event()
        unsubscribe = self._operator.subscribe(changed.set)
        sent: bool | None = None
        try:
            while True:
                changed.clear()
                active = self._due(ref, request.certified) > 0
                if active != sent:
                    yield messages.is_active_response(active)
                    sent = active
                await changed.wait()
        finally:
            unsubscribe()

    async def _metric_spec(self, request: Request) -> AsyncIterator[bytes]:
        ref = _decoded(request)
        self._signal(ref, request.certified)
        yield messages.metric_response(METRIC, self._target(ref))

    async def _metrics(self, request: Request) -> AsyncIterator[bytes]:
        try:
            ref, _ = messages.metrics_request(request.message)
        except BadMessage as error:
            raise GrpcError(Status.INVALID_ARGUMENT, str(error)) from None
        yield messages.metric_response(METRIC, self._due(ref, request.certified))

    def _due(self, ref: ScaledObjectRef, certified: bool) -> int:
        """Return the records that are due. Raises `GrpcError`."""
        found = self._signal(ref, certified)
        if METRIC not in found:
            text = f"the lag of the group of ShareConsumer {_name(ref)} is unknown"
            raise GrpcError(Status.UNAVAILABLE, text)
        return int(found[METRIC])

    def _signal(self, ref: ScaledObjectRef, certified: bool) -> dict[str, Any]:
        namespace, name = _place(ref)
        token = ref.metadata.get("tokenFromEnv", "")
        if self._access is not None and not self._access.allows(
            f"Bearer {token}", (namespace, name), certified=certified
        ):
            text = f"the trigger's tokenFromEnv is not the token of ShareConsumer {_name(ref)}"
            raise GrpcError(Status.PERMISSION_DENIED, text)
        found = self._operator.signal(namespace, name)
        if found is None:
            raise GrpcError(Status.NOT_FOUND, f"ShareConsumer {_name(ref)} does not exist")
        return found

    def _target(self, ref: ScaledObjectRef) -> int:
        text = ref.metadata.get("targetValue", "")
        if text:
            if not text.isascii() or not text.isdigit() or int(text) < 1:
                message = f"targetValue is {text!r}; it must be a whole number above 0"
                raise GrpcError(Status.INVALID_ARGUMENT, message)
            return int(text)
        consumer = self._operator.store.get("ShareConsumer", *_place(ref)) or {}
        given = consumer.get("spec", {}).get("scaling", {}).get("targetLagPerReplica", TARGET)
        return int(given)


def _decoded(request: Request) -> ScaledObjectRef:
    try:
        return messages.scaled_object_ref(request.message)
    except BadMessage as error:
        raise GrpcError(Status.INVALID_ARGUMENT, str(error)) from None


def _place(ref: ScaledObjectRef) -> tuple[str, str]:
    return ref.namespace, ref.metadata.get("shareConsumer") or ref.name


def _name(ref: ScaledObjectRef) -> str:
    return "/".join(_place(ref))
