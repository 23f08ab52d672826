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

from shoal.console.charts import Chart, Line, chart
from shoal.console.security import InvalidAccess

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


class _Failure(Exception):
    """Why a list cannot be read, as a sentence."""


class Resource(NamedTuple):
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


class Consumer(NamedTuple):
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


class Event(NamedTuple):
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
class Seen:
    """One reading. `problems` are sentences about what could not be read."""

    at_ms: int
    consumers: Sequence[Consumer] = ()
    resources: Sequence[Resource] = ()
    events: Sequence[Event] = ()
    problems: Sequence[str] = ()


def in_pod(
    environment: Mapping[str, str], namespaces: Sequence[str], account: Path = ACCOUNT
) -> KubernetesSettings:
    """Return the settings of the pod in which the console runs. Raises `InvalidAccess`."""
    host, port = (environment.get(f"KUBERNETES_SERVICE_{one}", "") for one in ("HOST", "PORT"))
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
    seen: Seen | None = None
    _points: dict[tuple[str, str], deque[_Point]] = field(default_factory=dict)
    _http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    async def step(self) -> None:
        """Read all lists. What cannot be read becomes a problem of the reading."""
        found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in PLURALS}
        events: list[dict[str, Any]] = []
        problems: list[str] = []
        of_shoal = {"fieldSelector": f"involvedObject.apiVersion={VERSION}"}
        for namespace in self.settings.namespaces:
            quoted = quote(namespace, safe="")
            root = f"/apis/{VERSION}/namespaces/{quoted}/"
            every = await asyncio.gather(
                *(self._listed(root + plural, {}) for plural in PLURALS.values()),
                self._listed(f"/api/v1/namespaces/{quoted}/events", of_shoal),
            )
            for (some, why), into in zip(every, [*found.values(), events], strict=True):
                into += some
                problems += why
        groups = {_place(one): _group_id(one) for one in found["ShareGroup"]}
        consumers = [_consumer(one, groups) for one in found["ShareConsumer"]]
        resources = [_resource(kind, one) for kind, some in found.items() for one in some]
        # Those that are not ready come first; the others keep their order.
        resources.sort(key=lambda one: _ORDER.get(one.ready, 1))
        newest = sorted(map(_event, events), key=lambda one: one.at, reverse=True)[:EVENTS_MAX]
        self.seen = Seen(
            int(time.time() * 1000),
            sorted(consumers, key=lambda one: (one.namespace, one.name)),
            resources,
            newest,
            # Lists that fail for the same reason have one sentence.
            tuple(dict.fromkeys(problems)),
        )
        self._remember(consumers)

    def chart(self, consumer: Consumer) -> Chart:
        """Return an hour of consumers against partitions."""
        points = self._points.get((consumer.namespace, consumer.name), deque())
        columns = list(zip(*points, strict=True)) or [()] * len(_Point._fields)
        lines = [
            Line("in-flight", "Running", columns[1]),
            Line("depth", "Wanted", columns[2]),
            Line("partitions", "Partitions", columns[3]),
        ]
        title = f"Consumers of {consumer.name} against partitions"
        return chart(title, columns[0], lines, now_s=time.monotonic())

    def _remember(self, consumers: list[Consumer]) -> None:
        now_s = time.monotonic()
        keys = {(one.namespace, one.name) for one in consumers}
        for key in self._points.keys() - keys:
            del self._points[key]
        for one in consumers:
            points = self._points.setdefault((one.namespace, one.name), deque())
            numbers = (one.running, one.wanted, one.partitions)
            points.append(_Point(now_s, *(float("nan") if n is None else n for n in numbers)))
            while points[0].at_s < now_s - HISTORY_S:
                points.popleft()

    async def _listed(
        self, path: str, query: dict[str, str]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the objects of a list, and a sentence if some or all cannot be read."""
        found: list[dict[str, Any]] = []
        more = ""
        try:
            while len(found) < OBJECTS_MAX:
                page = {**query, "limit": str(PAGE), **({"continue": more} if more else {})}
                answer = await self._answer(f"{path}?{urlencode(page)}", path)
                found += [one for one in answer.get("items") or [] if isinstance(one, dict)]
                more = str((answer.get("metadata") or {}).get("continue") or "")
                if not more:
                    return found, []
        except _Failure as error:
            return found, [str(error)]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or f"no answer to {path} within {ANSWER_S_MAX:.0f} s"
            return found, [f"The API server at {self.settings.url} did not answer: {reason}."]
        return found, [f"Only the first {len(found):,} objects of {path} are shown."]

    async def _answer(self, address: str, path: str) -> dict[str, Any]:
        if self._http is None:
            self._http = self._session()
        # Kubernetes replaces the token before it expires.
        token = (self.settings.account / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        body = b""
        url = self.settings.url + address
        async with self._http.get(url, headers=headers, allow_redirects=False) as answer:
            async for piece in answer.content.iter_chunked(1 << 16):
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise _Failure(f"The API server's answer to {path} is too large.")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if answer.status == 200 and isinstance(found, dict):
            return found
        why = {
            401: "The token of the console's service account is not accepted.",
            403: "The console's service account may not list them: it needs the chart's role.",
            404: "The API server does not have them: install Shoal's CRDs.",
        }.get(answer.status, f"It answers {answer.status}.")
        raise _Failure(f"{path} cannot be read. {why}")

    def _session(self) -> aiohttp.ClientSession:
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


def _place(given: dict[str, Any]) -> tuple[str, str]:
    meta = given.get("metadata") or {}
    return str(meta.get("namespace", "")), str(meta.get("name", ""))


def _group_id(group: dict[str, Any]) -> str:
    return str((group.get("spec") or {}).get("groupId") or _place(group)[1])


def _consumer(given: dict[str, Any], groups: Mapping[tuple[str, str], str]) -> Consumer:
    namespace, name = _place(given)
    spec, status = given.get("spec") or {}, given.get("status") or {}
    named = str(spec.get("shareGroup", ""))
    workload = "Deployment"
    if "spark" in spec:
        workload = "Spark"
    elif "scaleTargetRef" in spec:
        workload = str(spec["scaleTargetRef"].get("kind", "scale target"))

    def number(name: str) -> int | None:
        found = status.get(name)
        return found if isinstance(found, int) else None

    return Consumer(
        namespace,
        name,
        groups.get((namespace, named), named),
        workload,
        number("desiredReplicas"),
        number("replicas"),
        number("readyReplicas"),
        number("ceiling"),
        number("partitions"),
        number("lag"),
        str(status.get("decision") or ""),
        str(status.get("lastScaleTime") or ""),
    )


def _resource(kind: str, given: dict[str, Any]) -> Resource:
    namespace, name = _place(given)
    conditions = (given.get("status") or {}).get("conditions") or []
    texts = {
        str(one.get("type")): [
            str(one.get(part) or "")
            for part in ("status", "reason", "message", "lastTransitionTime")
        ]
        for one in conditions
        if isinstance(one, dict)
    }
    ready, reason, message, since = texts.pop("Ready", ["Unknown", "", "", ""])
    other = tuple(
        (type, text[1], text[2])
        for type, text in texts.items()
        if text[0] == "True" and text[1:3] != [reason, message]
    )
    return Resource(kind, namespace, name, ready, reason, message, since, other)


def _event(given: dict[str, Any]) -> Event:
    about = given.get("involvedObject") or {}
    at = given.get("lastTimestamp") or given.get("eventTime") or given.get("firstTimestamp") or ""
    count = given.get("count")
    return Event(
        str(at),
        given.get("type") == "Warning",
        str(given.get("reason") or ""),
        str(about.get("kind") or ""),
        str(about.get("namespace") or ""),
        str(about.get("name") or ""),
        str(given.get("message") or ""),
        count if isinstance(count, int) else 1,
    )
