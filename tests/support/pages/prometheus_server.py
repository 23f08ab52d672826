"""A Prometheus of a test, and the queries of the chart's dashboards."""

from __future__ import annotations

import json
import math
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from e2e.promtool import prometheus
from support.brokers.ports import free_ports
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

DASHBOARDS = Path(__file__).parents[3] / "helm" / "shoal" / "dashboards"
START_TIMEOUT_S = 60
#: What Grafana puts for its variables, with all values chosen.
VARIABLES = {"$__rate_interval": "1m", "$namespace": ".*", "$cluster": ".*"}


class Line(NamedTuple):
    """One query of a panel, with the panel's dashboard and title."""

    dashboard: str
    panel: str
    query: str


def lines() -> Iterator[Line]:
    """Yield the queries of all panels, with values for Grafana's variables."""
    for file in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                yield Line(file.stem, panel["title"], with_variables(target["expr"]))


def with_variables(query: str) -> str:
    """Return a query with values for Grafana's variables."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


class Prometheus:
    """The server, with its data in a folder, on a port of loopback."""

    def __init__(self, folder: Path, scrapes: Iterable[Mapping[str, Any]]) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        folder.mkdir(parents=True, exist_ok=True)
        # JSON is YAML.
        config = {"global": {"scrape_interval": "5s"}, "scrape_configs": list(scrapes)}
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self._command = (
            prometheus(),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        )
        self._out = folder / "out"
        self._process: subprocess.Popen[bytes] | None = None
        self._began = time.time()

    def start(self) -> Prometheus:
        """Start it, and wait until it answers."""
        with self._out.open("wb") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=subprocess.STDOUT)
        try:
            eventually(self._answers, timeout_s=START_TIMEOUT_S, what="Prometheus answers")
        except (AssertionError, ChildProcessError):
            self.stop()
            raise AssertionError(f"Prometheus: {self._out.read_text()[-2000:]}") from None
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def has(self, query: str) -> bool:
        """Return whether a panel with this query had a line since the start, of other numbers than
        NaN. Raises ValueError if it is no query."""
        found = self.values(query, self._began, time.time(), step_s=2)
        return any(not math.isnan(value) for value in found)

    def values(self, query: str, start_s: float, end_s: float, step_s: float) -> list[float]:
        """Return the values of a query at these times, of all its lines. Raises ValueError if it is
        no query."""
        found = self.lines(query, start_s, end_s, step_s)
        return [value for _, points in found for _, value in points]

    def lines(
        self, query: str, start_s: float, end_s: float, step_s: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Return the labels, and the times with values, of each line of a query. Raises ValueError
        if it is no query."""
        words = {"start": f"{start_s}", "end": f"{end_s}", "step": f"{step_s}"}
        found = self._get("/api/v1/query_range", query=query, **words)["data"]["result"]
        return [(one["metric"], [(at, float(v)) for at, v in one["values"]]) for one in found]

    def label_values(self, name: str, query: str) -> list[str]:
        """Return the values of a label, as a variable of a dashboard has them."""
        words = urllib.parse.urlencode({"match[]": query})
        with urllib.request.urlopen(f"{self.url}/api/v1/label/{name}/values?{words}") as answer:
            return list(json.load(answer)["data"])

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ChildProcessError("Prometheus has ended")
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _get(self, path: str, **words: str) -> dict[str, Any]:
        url = f"{self.url}{path}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            raise ValueError(f"{words}: {error.read().decode()}") from None
