"""The folder of `shoal up` beside the API server of the tests.

Each request of an operator goes to both, from the same object, and both must leave the same one. So
every case of tests/kube compares the statuses that `shoal up` would write with those in Kubernetes:
the reconcilers are the same, and see the same answers.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from kube.api_server import ApiServer
from shoal_operator.kube.kube import KubeError
from shoal_operator.local import api as local_api
from shoal_operator.local.api import LocalApi

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

Manifest = dict[str, Any]
#: What each of them numbers and stamps by itself.
_OWN = ("uid", "creationTimestamp", "resourceVersion", "deletionTimestamp", "namespace")
#: Kinds whose controllers the API server of the tests plays at once.
_CONTROLLED = ("StatefulSet", "Pod")
#: Answers that a test has set.
_REFUSED = (0, 403, 500, 503)


class _Twin(LocalApi):
    """It keeps its objects in memory, since a request begins with those of the other."""

    def _save(self, *_: Any) -> None:
        pass


def compare_calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the answers of both to each request until the test ends. `folder` stays empty."""
    call = ApiServer._call  # noqa: SLF001

    async def compare(
        self: ApiServer,
        verb: str,
        path: str,
        body: Any = None,
        content_type: str = "",
        params: Mapping[str, str] | None = None,
    ) -> Manifest:
        twin, key = _Twin(folder), _find_key(path, body)
        if key is None or verb in ("list", "get") or self.dropped or key[0] in self.absent:
            return await call(self, verb, path, body, content_type, params)
        known, have = (key[0], key[2]), self.objects.get((key[0], key[2]))
        if have is not None:
            twin.objects[key] = copy.deepcopy(have)
        if known in self.applied:
            twin._applied[key] = copy.deepcopy(self.applied[known])  # noqa: SLF001
        request = (verb, path, copy.deepcopy(body), content_type, params)
        refusal, answer = None, Manifest()
        try:
            answer = await call(self, verb, path, body, content_type, params)
        except KubeError as error:
            refusal = error
        if refusal is not None and (refusal.status in _REFUSED or refusal in self.refused.values()):
            raise refusal
        assert await _get_refusal(twin, request) == (refusal.status if refusal else 0), key
        if refusal is not None:
            raise refusal
        if key[0] not in _CONTROLLED:
            # The default status of a new resource comes from its definition, when it is applied.
            left_out = {"status"} if have is None else set()
            # The other does not count a generation if an apply only removes fields.
            own = {*_OWN, *(("generation",) if "apply-patch" in content_type else ())}
            _assert_same(key, twin.objects.get(key), self.objects.get(known), left_out, own)
        return answer

    monkeypatch.setattr(ApiServer, "_call", compare)


def _find_key(path: str, body: Any) -> tuple[str, str, str] | None:
    """Return kind, namespace and name of a request's object, None if the two cannot share it."""
    try:
        kind, namespace, name, subresource = local_api._parse_path(path)  # noqa: SLF001
    except KubeError:
        return None
    name = name or (body or {}).get("metadata", {}).get("name", "")
    return (kind, namespace, name) if name and subresource in ("", "status") else None


async def _get_refusal(twin: LocalApi, request: tuple[Any, ...]) -> int:
    try:
        await twin._call(*request)  # noqa: SLF001
    except KubeError as error:
        return error.status
    return 0


def _assert_same(
    key: tuple[str, str, str],
    ours: Manifest | None,
    theirs: Manifest | None,
    left_out: set[str],
    own: set[str],
) -> None:
    """Compare two objects without these fields, and these of their metadata."""
    assert (ours is None) == (theirs is None), key
    if ours is not None and theirs is not None:
        assert _strip(ours, left_out, own) == _strip(theirs, left_out, own), key


def _strip(manifest: Manifest, left_out: set[str], own: set[str]) -> Manifest:
    body = {name: value for name, value in manifest.items() if name not in left_out}
    meta = {name: value for name, value in manifest["metadata"].items() if name not in own}
    return {**body, "metadata": meta}
