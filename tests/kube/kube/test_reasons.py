"""Nothing that is accepted stays without a reason for longer than 30 seconds of virtual time.

The whole operator runs over an API server in memory, with all manifests that the API server accepts
of the trial in `tests/e2e/trial`, and with drawn ones of each kind. No broker answers, which is
when statuses are easily forgotten; on Kubernetes, `tests/e2e/test_trial.py` has brokers and pods.
"""

from __future__ import annotations

import asyncio
import copy
import datetime
import random
import re
from typing import TYPE_CHECKING, Any

import pytest
from e2e.test_trial import DEFAULTS, PROGRESS, load
from kube.api_server import ApiServer, CrashPoint
from shoal_operator import clock
from shoal_operator.kube import kube
from shoal_operator.kube.kube import KubeError
from shoal_operator.local.definitions import PRESERVE, load_definitions
from shoal_operator.local.validation import prepare
from shoal_operator.model import names
from shoal_operator.runtime import CUSTOM, Operator
from shoal_operator.settings import ChartSettings
from support.runs.seeding import SEED
from support.runs.virtual_time import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal_operator.model.names import Manifest

SECONDS_MAX = 30
BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
#: Texts of which one fits most fields; a field without one is left out.
TEXTS = (
    "a",
    "main",
    "jobs",
    "5",
    "30s",
    "1h",
    "10Gi",
    "500m",
    "0 3 * * *",
    "UTC",
    "x.example",
    "/a",
)
#: Times that the API server takes, and some that it does not.
TIMES = (
    "2026-01-01T08:00:00Z",
    "2026-01-01t08:00:00.5z",
    "2026-01-01T08:00:00,123456789-01:30",
    "2026-01-01T08:00:00+99:00",
    "0000-01-01T08:00:00Z",
    "2026-01-01",
)


class LonelyLoop(VirtualLoop):
    """A loop with a clock of its own and no network."""

    async def getaddrinfo(self, host: Any, *_: Any, **__: Any) -> Any:
        raise OSError(f"no address of {host}")

    async def create_connection(self, *_: Any, **__: Any) -> Any:
        raise ConnectionRefusedError("nobody listens")


class WatchedServer(ApiServer):
    """An API server that validates, and reports each change to an operator."""

    def __init__(self) -> None:
        super().__init__(CrashPoint())
        self.operator: Operator | None = None

    def accept(self, manifest: Manifest) -> bool:
        """Add a resource with the defaults of its definition, unless that refuses it."""
        placed = {**manifest, "metadata": {"namespace": "n", **manifest["metadata"]}}
        try:
            self.add(prepare(load_definitions()[manifest["kind"]], placed))
        except KubeError:
            return False
        return True

    def _write(self, *arguments: Any, **options: Any) -> Manifest:
        written = super()._write(*arguments, **options)
        if self.operator is not None:
            loop = asyncio.get_running_loop()
            loop.call_soon(self.operator.on_update, copy.deepcopy(written))
        return written


def pass_virtual_time(monkeypatch: pytest.MonkeyPatch, loop: LonelyLoop) -> None:
    def now() -> datetime.datetime:
        return BEGIN + datetime.timedelta(seconds=loop.time())

    def count_seconds_since(stamp: str) -> float:
        return max(0.0, (now() - datetime.datetime.fromisoformat(stamp)).total_seconds())

    monkeypatch.setattr(clock, "now_ms", lambda: int(loop.time() * 1000))
    monkeypatch.setattr(clock, "epoch_ms", lambda: int(now().timestamp() * 1000))
    monkeypatch.setattr(clock, "count_seconds_since", count_seconds_since)
    monkeypatch.setattr(kube, "format_now", lambda: now().strftime("%Y-%m-%dT%H:%M:%SZ"))


def operate(monkeypatch: pytest.MonkeyPatch, server: WatchedServer) -> None:
    """Run an operator for 30 virtual seconds."""
    loop = LonelyLoop()
    pass_virtual_time(monkeypatch, loop)

    async def begin() -> Operator:
        server.operator = Operator(server, ChartSettings("b:1", "s:1", "Role", "http://o:8080"))
        server.operator.set_leading(True)
        return server.operator

    operator = loop.run_until_complete(begin())
    loop.advance(SECONDS_MAX)
    server.operator = None
    loop.run_until_complete(operator.close())
    loop.close()


def list_silent(server: WatchedServer) -> dict[str, Any]:
    """Return the resources that do not say what state they are in, with what they do say."""
    silent = {}
    for kind in CUSTOM:
        for resource in server.all(kind):
            status, generation = resource["status"], resource["metadata"]["generation"]
            (ready,) = [c for c in status["conditions"] if c["type"] == "Ready"]
            is_fresh = status["observedGeneration"] == ready["observedGeneration"] == generation
            is_said = ready["status"] == "True" or ready["reason"] not in {*PROGRESS, "Defect"}
            if not (is_fresh and is_said and ready["message"]):
                silent[f"{kind} {resource['metadata']['name']}"] = resource["spec"], ready
    return silent


def draw(schema: Manifest, chance: random.Random) -> Any:
    """Return a value of a schema, None if none is known."""
    if "enum" in schema:
        return chance.choice(schema["enum"])
    if schema.get("format") == "date-time":
        return chance.choice(TIMES)
    kind = schema.get("type", "integer" if "x-kubernetes-int-or-string" in schema else "")
    if kind == "boolean":
        return chance.random() < 0.5
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", 0), schema.get("maximum", 1000)
        return chance.choice((low, high, min(max(low, 3), high)))
    if kind == "string":
        return draw_text(schema, chance)
    if kind == "array":
        size = chance.randint(schema.get("minItems", 0), max(schema.get("minItems", 0), 2))
        return [item for _ in range(size) if (item := draw(schema["items"], chance)) is not None]
    return draw_object(schema, chance) if kind == "object" and PRESERVE not in schema else None


def draw_text(schema: Manifest, chance: random.Random) -> str | None:
    pattern, least = schema.get("pattern", ""), schema.get("minLength", 0)
    fitting = [text for text in TEXTS if re.search(pattern, text) and len(text) >= least]
    return chance.choice(fitting) if fitting else None


def draw_object(schema: Manifest, chance: random.Random) -> Manifest:
    properties, required = schema.get("properties", {}), schema.get("required", ())
    fields = {
        name: draw(field, chance)
        for name, field in properties.items()
        if name in required or chance.random() < 0.3
    }
    if isinstance(others := schema.get("additionalProperties"), dict):
        fields |= {key: draw(others, chance) for key in TEXTS[: chance.randint(0, 2)]}
    return {name: value for name, value in fields.items() if value is not None}


def draw_manifests(kind: str, chance: random.Random) -> Iterator[Manifest]:
    """Yield resources of a kind with up to three drawn fields, some of which are not valid."""
    spec = load_definitions()[kind].schema["properties"]["spec"]["properties"]
    for number in range(10_000):
        fields = chance.sample(sorted(spec), chance.randint(1, 3))
        drawn = {name: draw(spec[name], chance) for name in fields}
        own = {name: value for name, value in drawn.items() if value is not None}
        yield {
            "apiVersion": names.API_VERSION,
            "kind": kind,
            "metadata": {"name": f"drawn-{number}"},
            "spec": copy.deepcopy(DEFAULTS[kind]) | own,
        }


def add_base(server: WatchedServer) -> None:
    """Add the cluster, group and user that other resources name. The group was configured before,
    so that its consumers start."""
    for kind, name in (
        ("QueueCluster", "main"),
        ("ShareGroup", "workers"),
        ("QueueUser", "worker"),
    ):
        manifest = {"apiVersion": names.API_VERSION, "kind": kind, "spec": DEFAULTS[kind]}
        assert server.accept(manifest | {"metadata": {"name": name}})
    server.find("ShareGroup", "workers")["status"]["configuredGeneration"] = 1


@pytest.mark.parametrize("clusters", [3, pytest.param(100, marks=pytest.mark.nightly)])
def test_what_the_trial_accepts_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, clusters: int
) -> None:
    """By day with some of its clusters: an operator of all works for 20 real seconds, and that of
    three for two."""
    server, rows = WatchedServer(), [manifest for manifest, _ in load("accepted")]
    add_base(server)
    of_clusters = [manifest for manifest in rows if manifest["kind"] == "QueueCluster"]
    chosen = random.Random(SEED).sample(of_clusters, min(clusters, len(of_clusters)))
    rows = [*chosen, *(manifest for manifest in rows if manifest["kind"] != "QueueCluster")]
    assert [manifest for manifest in rows if not server.accept(manifest)] == []
    operate(monkeypatch, server)
    assert list_silent(server) == {}


@pytest.mark.parametrize("factor", [1, pytest.param(20, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", CUSTOM)
def test_what_is_drawn_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, kind: str, factor: int
) -> None:
    """The operator of a cluster works for half a real second."""
    server, chance = WatchedServer(), random.Random(f"{SEED} {kind}")
    add_base(server)
    missing = (3 if kind == "QueueCluster" else 12) * factor
    for manifest in draw_manifests(kind, chance):
        missing -= server.accept(manifest)
        if not missing:
            break
    assert not missing
    operate(monkeypatch, server)
    assert list_silent(server) == {}
