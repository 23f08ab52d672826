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
from typing import TYPE_CHECKING

from shoal_operator.model.resources.share_consumer import ShareConsumer
from shoal_operator.scaler import keda_messages as messages
from shoal_operator.scaler.grpc_server import GrpcError, GrpcServer, GrpcStatus
from shoal_operator.scaler.keda_messages import BadMessage, ScaledObjectRef

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shoal_operator.http_access import HttpAccess
    from shoal_operator.runtime import Operator
    from shoal_operator.scaler.grpc_server import GrpcRequest, Handler

SERVICE = "externalscaler.ExternalScaler"
METRIC = "due"
#: The default of `targetValue` for a ShareConsumer without `scaling`.
TARGET = 1000


def make_server(operator: Operator, access: HttpAccess | None = None) -> GrpcServer:
    """Return a server of the scaler, which asks for what `access` asks for."""
    return GrpcServer(KedaScaler(operator, access).build_handlers())


class KedaScaler:
    """The methods of the service."""

    def __init__(self, operator: Operator, access: HttpAccess | None) -> None:
        self._operator, self._access = operator, access

    def build_handlers(self) -> dict[str, Handler]:
        """Return the methods by their paths."""
        return {
            f"/{SERVICE}/IsActive": self._is_active,
            f"/{SERVICE}/StreamIsActive": self._stream_is_active,
            f"/{SERVICE}/GetMetricSpec": self._get_metric_spec,
            f"/{SERVICE}/GetMetrics": self._get_metrics,
        }

    async def _is_active(self, request: GrpcRequest) -> AsyncIterator[bytes]:
        due = self._count_due(_decode(request), request.certified)
        yield messages.encode_active_response(due > 0)

    async def _stream_is_active(self, request: GrpcRequest) -> AsyncIterator[bytes]:
        ref = _decode(request)
        changed = asyncio.Event()
        unsubscribe = self._operator.subscribe(changed.set)
        sent: bool | None = None
        try:
            while True:
                changed.clear()
                active = self._count_due(ref, request.certified) > 0
                if active != sent:
                    yield messages.encode_active_response(active)
                    sent = active
                await changed.wait()
        finally:
            unsubscribe()

    async def _get_metric_spec(self, request: GrpcRequest) -> AsyncIterator[bytes]:
        ref = _decode(request)
        self._get_signal(ref, request.certified)
        yield messages.encode_metric_response(METRIC, self._get_target(ref))

    async def _get_metrics(self, request: GrpcRequest) -> AsyncIterator[bytes]:
        try:
            ref, _ = messages.parse_metrics_request(request.message)
        except BadMessage as error:
            raise GrpcError(GrpcStatus.INVALID_ARGUMENT, str(error)) from None
        yield messages.encode_metric_response(METRIC, self._count_due(ref, request.certified))

    def _count_due(self, ref: ScaledObjectRef, certified: bool) -> int:
        """Return the records that are due. Raises `GrpcError`."""
        signal = self._get_signal(ref, certified)
        if METRIC not in signal:
            text = f"the lag of the group of ShareConsumer {_format_name(ref)} is unknown"
            raise GrpcError(GrpcStatus.UNAVAILABLE, text)
        return signal[METRIC]

    def _get_signal(self, ref: ScaledObjectRef, certified: bool) -> dict[str, int]:
        namespace, name = _locate(ref)
        token = ref.metadata.get("tokenFromEnv", "")
        if self._access is not None and not self._access.may_read(
            f"Bearer {token}", (namespace, name), certified=certified
        ):
            text = (
                f"the trigger's tokenFromEnv is not the token of ShareConsumer {_format_name(ref)}"
            )
            raise GrpcError(GrpcStatus.PERMISSION_DENIED, text)
        signal = self._operator.get_signal(namespace, name)
        if signal is None:
            raise GrpcError(
                GrpcStatus.NOT_FOUND, f"ShareConsumer {_format_name(ref)} does not exist"
            )
        return signal

    def _get_target(self, ref: ScaledObjectRef) -> int:
        text = ref.metadata.get("targetValue", "")
        if text:
            if not text.isascii() or not text.isdigit() or int(text) < 1:
                message = f"targetValue is {text!r}; it must be a whole number above 0"
                raise GrpcError(GrpcStatus.INVALID_ARGUMENT, message)
            return int(text)
        consumer = self._operator.store.get(ShareConsumer, *_locate(ref))
        if consumer is None:
            return TARGET
        return consumer["spec"].get("scaling", {}).get("targetLagPerReplica", TARGET)


def _decode(request: GrpcRequest) -> ScaledObjectRef:
    try:
        return messages.parse_scaled_object_ref(request.message)
    except BadMessage as error:
        raise GrpcError(GrpcStatus.INVALID_ARGUMENT, str(error)) from None


def _locate(ref: ScaledObjectRef) -> tuple[str, str]:
    return ref.namespace, ref.metadata.get("shareConsumer") or ref.name


def _format_name(ref: ScaledObjectRef) -> str:
    return "/".join(_locate(ref))
