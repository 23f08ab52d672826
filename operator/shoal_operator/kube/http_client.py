"""The operator's requests to an API server of Kubernetes, by HTTP."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import httpx2
from lightkube.config.client_adapter import AsyncClient, ConnectionParams

from shoal_operator import metrics
from shoal_operator.kube.kube import (
    KubeClient,
    KubeError,
    build_path,
    build_selector_params,
    make_unreadable_error,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from lightkube.config.kubeconfig import SingleConfig

    from shoal_operator.model.names import Manifest

TIMEOUT_SECONDS = 20.0
#: How long one watch lasts before the next one starts.
WATCH_SECONDS = 290

_CHANGES = ("ADDED", "MODIFIED", "DELETED")


def _parse_object(text: str) -> Manifest:
    """Return an object that the API server sends. Raises `KubeError` for anything else, which a
    proxy may have sent, or of which the rest is missing."""
    try:
        result = json.loads(text)
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise make_unreadable_error(text)
    return result


def _find_message(answer: httpx2.Response) -> str:
    """Return what the API server, or a proxy before it, says about an error."""
    try:
        return str(_parse_object(answer.text).get("message", ""))
    except KubeError:
        return answer.text[:200]


async def _read_events(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, Manifest]]:
    """Yield the changes of a watch. Raises `KubeError`."""
    async for line in lines:
        event = _parse_object(line)
        change, manifest = event.get("type"), event.get("object")
        if not isinstance(manifest, dict):
            raise make_unreadable_error(line)
        if change == "ERROR":
            raise KubeError(manifest.get("code", 0), manifest.get("message", line[:200]))
        # A bookmark, for example, has only a version.
        if change in _CHANGES:
            yield change, manifest


class HttpKubeClient(KubeClient):
    """Requests to one API server; `metrics.API_CALLS` counts them by verb."""

    def __init__(self, config: SingleConfig) -> None:
        timeout = httpx2.Timeout(TIMEOUT_SECONDS)
        self._web = AsyncClient(config, ConnectionParams(timeout=timeout))

    async def close(self) -> None:
        """Close all connections."""
        await self._web.aclose()

    async def _call(
        self,
        verb: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Manifest:
        metrics.API_CALLS.labels(verb).inc()
        method = {"list": "GET", "create": "POST", "replace": "PUT"}.get(verb, verb.upper())
        try:
            answer = await self._web.request(
                method,
                path,
                params=params,
                content=None if body is None else json.dumps(body),
                headers={"Content-Type": content_type},
            )
        except httpx2.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise KubeError(0, f"the API server did not answer: {reason}") from None
        if answer.is_error:
            raise KubeError(answer.status_code, _find_message(answer) or answer.reason_phrase)
        return _parse_object(answer.text)

    @contextlib.asynccontextmanager
    async def watch(
        self,
        api_version: str,
        kind: str,
        namespace: str | None,
        labels: Mapping[str, str],
        version: str,
    ) -> AsyncIterator[AsyncIterator[tuple[str, Manifest]]]:
        """See `KubeClient.watch`."""
        metrics.API_CALLS.labels("watch").inc()
        params = {
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
            **build_selector_params(labels),
        }
        timeout = httpx2.Timeout(TIMEOUT_SECONDS, read=WATCH_SECONDS + TIMEOUT_SECONDS)
        path = build_path(api_version, kind, namespace)
        try:
            async with self._web.stream("GET", path, params=params, timeout=timeout) as answer:
                if answer.is_error:
                    raise KubeError(answer.status_code, answer.reason_phrase)
                yield _read_events(answer.aiter_lines())
        except httpx2.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise KubeError(0, f"the API server did not answer: {reason}") from None
