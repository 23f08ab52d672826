"""What the console reads of Kubernetes: Shoal's resources and their events, in some namespaces.

It lists them with the service account of its pod, and writes nothing. Kafka has no part in it: the
numbers of ShareConsumers are those that the operator reports in their status.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import aiohttp

from shoal.console.charts import Chart, ChartLine, draw_chart
from shoal.console.login_files import InvalidAccess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

log = logging.getLogger("shoal.console")
VERSION = "shoal.dev/v1beta1"
#: The kinds of Shoal's resources, in the order of their table.
PLURALS = {
    "QueueCluster": "queueclusters",
    "QueueTopic": "queuetopics",
    "QueueUser": "queueusers",
    "ShareGroup": "sharegroups",
    "ShareConsumer": "shareconsumers",
    "Redrive": "redrives",
    "QueueRebalance": "queuerebalances",
    "QueueSchedule": "queueschedules",
}
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Seconds between two readings, for one answer, and of history.
INTERVAL_S, ANSWER_S_MAX, HISTORY_S = 10.0, 10.0, 3_600.0
#: Objects in one answer, and of one kind in one namespace; bytes of an answer.
PAGE, OBJECTS_MAX, ANSWER_BYTES_MAX = 500, 5_000, 16 << 20
#: Those that are not ready come first in a table.
_ORDER = {"False": 0, "True": 2}
#: Events that a page shows.
EVENTS_MAX = 100


class KubernetesSettings(NamedTuple):
    """The API server, the service account's folder, and the namespaces to read."""

    url: str
    account: Path
    namespaces: tuple[str, ...]


class _KubernetesError(Exception):
    """Why a list cannot be read, as a sentence."""


class KubernetesResource(NamedTuple):
    """One resource of Shoal's and its condition Ready. `other` are its conditions that are true and
    have another reason or message."""

    kind: str
    namespace: str
    name: str
    ready: str
    reason: str
    message: str
    since: str
    other: tuple[tuple[str, str, str], ...]


class ShareConsumerSummary(NamedTuple):
    """A ShareConsumer: the number of consumers, and why. Numbers are None if not reported."""

    namespace: str
    name: str
    group: str
    workload: str
    wanted: int | None
    running: int | None
    ready: int | None
    ceiling: int | None
    partitions: int | None
    lag: int | None
    decision: str
    scaled_at: str


class KubernetesEvent(NamedTuple):
    """One event on a resource of Shoal's."""

    at: str
    is_warning: bool
    reason: str
    kind: str
    namespace: str
    name: str
    message: str
    times: int


class _Point(NamedTuple):
    at_s: float
    running: float
    wanted: float
    partitions: float


@dataclass(frozen=True, slots=True)
class KubernetesSnapshot:
    """One reading. `problems` are sentences about what could not be read."""

    at_ms: int
    consumers: Sequence[ShareConsumerSummary] = ()
    resources: Sequence[KubernetesResource] = ()
    events: Sequence[KubernetesEvent] = ()
    problems: Sequence[str] = ()


def make_pod_settings(
    environment: Mapping[str, str], namespaces: Sequence[str], account: Path = ACCOUNT
) -> KubernetesSettings:
    """Return the settings of the pod in which the console runs. Raises `InvalidAccess`."""
    host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    if not host or not (account / "token").is_file():
        raise InvalidAccess(
            "--kubernetes works in a pod only, with the token of a service account"
            " (automountServiceAccountToken: true)"
        )
    own = (account / "namespace").read_text().strip()
    host = f"[{host}]" if ":" in host else host
    return KubernetesSettings(f"https://{host}:{port}", account, tuple(namespaces) or (own,))


@dataclass(slots=True)
class Kubernetes:
    """The newest reading of one API server, and an hour of each ShareConsumer's numbers."""

    settings: KubernetesSettings
    snapshot: KubernetesSnapshot | None = None
    _points: dict[tuple[str, str], deque[_Point]] = field(default_factory=dict)
    _http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    async def step(self) -> None:
        """Read all lists. What cannot be read becomes a problem of the reading."""
        objects: dict[str, list[dict[str, Any]]] = {kind: [] for kind in PLURALS}
        events: list[dict[str, Any]] = []
        problems: list[str] = []
        of_shoal = {"fieldSelector": f"involvedObject.apiVersion={VERSION}"}
        for namespace in self.settings.namespaces:
            quoted = quote(namespace, safe="")
            root = f"/apis/{VERSION}/namespaces/{quoted}/"
            answers = await asyncio.gather(
                *(self._list_objects(root + plural, {}) for plural in PLURALS.values()),
                self._list_objects(f"/api/v1/namespaces/{quoted}/events", of_shoal),
            )
            for (items, why), into in zip(answers, [*objects.values(), events], strict=True):
                into += items
                problems += why
        groups = {_get_place(item): _get_group_id(item) for item in objects["ShareGroup"]}
        consumers = [_parse_consumer(item, groups) for item in objects["ShareConsumer"]]
        resources = [
            _parse_resource(kind, item) for kind, items in objects.items() for item in items
        ]
        # Those that are not ready come first; the others keep their order.
        resources.sort(key=lambda item: _ORDER.get(item.ready, 1))
        newest = sorted(map(_parse_event, events), key=lambda item: item.at, reverse=True)[
            :EVENTS_MAX
        ]
        self.snapshot = KubernetesSnapshot(
            int(time.time() * 1000),
            sorted(consumers, key=lambda item: (item.namespace, item.name)),
            resources,
            newest,
            # Lists that fail for the same reason have one sentence.
            tuple(dict.fromkeys(problems)),
        )
        self._remember(consumers)

    def make_chart(self, consumer: ShareConsumerSummary) -> Chart:
        """Return an hour of consumers against partitions."""
        points = self._points.get((consumer.namespace, consumer.name), deque())
        columns = list(zip(*points, strict=True)) or [()] * len(_Point._fields)
        lines = [
            ChartLine("in-flight", "Running", columns[1]),
            ChartLine("depth", "Wanted", columns[2]),
            ChartLine("partitions", "Partitions", columns[3]),
        ]
        title = f"Consumers of {consumer.name} against partitions"
        return draw_chart(title, columns[0], lines, now_s=time.monotonic())

    def _remember(self, consumers: list[ShareConsumerSummary]) -> None:
        now_s = time.monotonic()
        keys = {(consumer.namespace, consumer.name) for consumer in consumers}
        for key in self._points.keys() - keys:
            del self._points[key]
        for consumer in consumers:
            points = self._points.setdefault((consumer.namespace, consumer.name), deque())
            numbers = (consumer.running, consumer.wanted, consumer.partitions)
            points.append(_Point(now_s, *(float("nan") if n is None else n for n in numbers)))
            while points[0].at_s < now_s - HISTORY_S:
                points.popleft()

    async def _list_objects(
        self, path: str, query: dict[str, str]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the objects of a list, and a sentence if some or all cannot be read."""
        objects: list[dict[str, Any]] = []
        more = ""
        try:
            while len(objects) < OBJECTS_MAX:
                page = {**query, "limit": str(PAGE), **({"continue": more} if more else {})}
                answer = await self._read_answer(f"{path}?{urlencode(page)}", path)
                objects += [item for item in answer.get("items") or [] if isinstance(item, dict)]
                more = str((answer.get("metadata") or {}).get("continue") or "")
                if not more:
                    return objects, []
        except _KubernetesError as error:
            return objects, [str(error)]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or f"no answer to {path} within {ANSWER_S_MAX:.0f} s"
            return objects, [f"The API server at {self.settings.url} did not answer: {reason}."]
        return objects, [f"Only the first {len(objects):,} objects of {path} are shown."]

    async def _read_answer(self, address: str, path: str) -> dict[str, Any]:
        if self._http is None:
            self._http = self._open_session()
        # Kubernetes replaces the token before it expires.
        token = (self.settings.account / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        body = b""
        url = self.settings.url + address
        async with self._http.get(url, headers=headers, allow_redirects=False) as answer:
            async for piece in answer.content.iter_chunked(1 << 16):
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise _KubernetesError(f"The API server's answer to {path} is too large.")
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        if answer.status == 200 and isinstance(document, dict):
            return document
        why = {
            401: "The token of the console's service account is not accepted.",
            403: "The console's service account may not list them: it needs the chart's role.",
            404: "The API server does not have them: install Shoal's CRDs.",
        }.get(answer.status, f"It answers {answer.status}.")
        raise _KubernetesError(f"{path} cannot be read. {why}")

    def _open_session(self) -> aiohttp.ClientSession:
        context: ssl.SSLContext | bool = True
        if self.settings.url.startswith("https:"):
            context = ssl.create_default_context(cafile=str(self.settings.account / "ca.crt"))
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=ANSWER_S_MAX),
            headers={"Accept": "application/json"},
        )


@asynccontextmanager
async def reading(kubernetes: Kubernetes | None) -> AsyncIterator[None]:
    """Read again and again."""
    if kubernetes is None:
        yield
        return

    async def read() -> None:
        while True:
            try:
                await kubernetes.step()
            except Exception:
                log.exception("kubernetes")
            await asyncio.sleep(INTERVAL_S)

    task = asyncio.create_task(read(), name="kubernetes")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


def _get_place(item: dict[str, Any]) -> tuple[str, str]:
    meta = item.get("metadata") or {}
    return str(meta.get("namespace", "")), str(meta.get("name", ""))


def _get_group_id(group: dict[str, Any]) -> str:
    return str((group.get("spec") or {}).get("groupId") or _get_place(group)[1])


def _parse_consumer(
    item: dict[str, Any], groups: Mapping[tuple[str, str], str]
) -> ShareConsumerSummary:
    namespace, name = _get_place(item)
    spec, status = item.get("spec") or {}, item.get("status") or {}
    share_group = str(spec.get("shareGroup", ""))
    workload = "Deployment"
    if "spark" in spec:
        workload = "Spark"
    elif "scaleTargetRef" in spec:
        workload = str(spec["scaleTargetRef"].get("kind", "scale target"))

    def get_number(name: str) -> int | None:
        value = status.get(name)
        return value if isinstance(value, int) else None

    return ShareConsumerSummary(
        namespace,
        name,
        groups.get((namespace, share_group), share_group),
        workload,
        get_number("desiredReplicas"),
        get_number("replicas"),
        get_number("readyReplicas"),
        get_number("ceiling"),
        get_number("partitions"),
        get_number("lag"),
        str(status.get("decision") or ""),
        str(status.get("lastScaleTime") or ""),
    )


def _parse_resource(kind: str, item: dict[str, Any]) -> KubernetesResource:
    namespace, name = _get_place(item)
    conditions = (item.get("status") or {}).get("conditions") or []
    texts = {
        str(condition.get("type")): [
            str(condition.get(part) or "")
            for part in ("status", "reason", "message", "lastTransitionTime")
        ]
        for condition in conditions
        if isinstance(condition, dict)
    }
    ready, reason, message, changed_at = texts.pop("Ready", ["Unknown", "", "", ""])
    true_conditions = tuple(
        (type, text[1], text[2])
        for type, text in texts.items()
        if text[0] == "True" and text[1:3] != [reason, message]
    )
    return KubernetesResource(
        kind, namespace, name, ready, reason, message, changed_at, true_conditions
    )


def _parse_event(item: dict[str, Any]) -> KubernetesEvent:
    involved = item.get("involvedObject") or {}
    timestamp = (
        item.get("lastTimestamp") or item.get("eventTime") or item.get("firstTimestamp") or ""
    )
    count = item.get("count")
    return KubernetesEvent(
        str(timestamp),
        item.get("type") == "Warning",
        str(item.get("reason") or ""),
        str(involved.get("kind") or ""),
        str(involved.get("namespace") or ""),
        str(involved.get("name") or ""),
        str(item.get("message") or ""),
        count if isinstance(count, int) else 1,
    )
