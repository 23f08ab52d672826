"""The last hour of a share group from Prometheus, which scrapes the brokers, by its HTTP API.

The times are multiples of `STEP_S`, so that all consoles show the same, and the pages of a group
share an answer until the next of these times. If Prometheus does not answer, it is not asked again
for `PAUSE_S`; pages then show what the console keeps itself, and say why.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import ssl
import time
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import aiohttp

from shoal.client.security.secret import NO_SECRET, Secret
from shoal.console.login_files import InvalidAccess, parse_login
from shoal.console.sampling.history import POINTS_MAX, STEP_S, Hour
from shoal.security import strict_verification

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")
log = logging.getLogger("shoal.console")
#: Seconds for one answer, bytes of it, and the pause after a failure.
ANSWER_S_MAX, ANSWER_BYTES_MAX, PAUSE_S = 3.0, 16 << 20, 10.0
#: Requests at the same time.
CONNECTIONS_MAX = 8
#: A rate is measured over the first of these periods that has two scrapes.
WINDOWS = ("30s", "2m")
_TEXT_MAX = 300
_MATCHER = r'\s*[a-zA-Z_]\w*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\\n]|\\.)*"\s*'
_MATCHERS = re.compile(f"{_MATCHER}(?:,{_MATCHER})*")


class PrometheusSettings(NamedTuple):
    """Where Prometheus is, the matchers of the cluster's labels, and the console's login there.

    `token` is a file with a bearer token, which is read for each request. `context` is for HTTPS.
    """

    url: str
    labels: str = ""
    user: str = ""
    password: Secret = NO_SECRET
    token: Path | None = None
    context: ssl.SSLContext | None = None


class HistoryAnswer(NamedTuple):
    """The last hour until `end_s` of each topic, and a sentence about topics that have none."""

    end_s: float
    hours: Mapping[str, Hour]
    why: str = ""


class _PrometheusError(Exception):
    """Why there is no history, as a sentence."""


class _Silence(_PrometheusError):
    """Prometheus answers nobody, or not this console."""


def parse_prometheus(
    url: str, labels: str = "", login: str = "", token: Path | None = None, ca: str = ""
) -> PrometheusSettings:
    """Return the settings; `login` is USER:PASSWORD or empty. Raises `InvalidAccess`."""
    parts = urlsplit(url)
    is_plain = not (parts.username or parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
        raise InvalidAccess(
            "--prometheus-url must be an address with http:// or https://, without a user and a"
            f" query, not {shown.geturl()!r:.200}"
        )
    if labels.strip() and not _MATCHERS.fullmatch(labels):
        raise InvalidAccess(
            "--prometheus-labels must be matchers of labels, such as"
            f' namespace="shop",shoal_dev_cluster="main", not {labels!r:.200}'
        )
    user, password = parse_login(login, "--prometheus-login")
    if login and token is not None:
        raise InvalidAccess(
            "--prometheus-login and --prometheus-token are different logins. Choose one"
        )
    context = None
    if ca:
        try:
            context = ssl.create_default_context(cafile=ca)
        except OSError as error:
            reason = error.strerror or error
            raise InvalidAccess(
                f"cannot use {ca} of --prometheus-ca: {reason}. It must be a PEM file with the"
                " certificates of authorities"
            ) from None
    return PrometheusSettings(url.rstrip("/"), labels.strip(), user, password, token, context)


def make_queries(labels: str, group: str, topics: Sequence[str]) -> dict[str, str]:
    """Return the query of each column of an `Hour`; each has one result for a topic.

    Numbers of a partition are those of its leader, which alone reports a lag. What was completed is
    the difference of log end offset and lag, as they were scraped together.
    """
    of_group = ",".join(filter(None, (f"group={json.dumps(group, ensure_ascii=False)}", labels)))
    names = "|".join(topic.replace(".", "[.]") for topic in topics)
    of_topics = ",".join(filter(None, (f'topic=~"{names}"', labels)))
    lag = f"shoal_share_partition_lag{{{of_group}}}"
    end = f"kafka_log_Log_LogEndOffset{{{of_topics}}}"
    leads = f"and ignoring (group) {lag}"
    rates_in = [f"(deriv({end}[{period}]) {leads})" for period in WINDOWS]
    rates_out = [
        f"((deriv({end}[{period}]) - ignoring (group) deriv({lag}[{period}])) {leads})"
        for period in WINDOWS
    ]
    vectors = {
        "depth": lag,
        "in_flight": f"shoal_share_partition_locked_records{{{of_group}}}",
        "rate_in": " or ".join(rates_in),
        "rate_out": " or ".join(rates_out),
    }
    return {
        name: f"sum by (topic) (max by (topic, partition) ({vector}))"
        for name, vector in vectors.items()
    }


@dataclass(slots=True)
class Prometheus:
    """One Prometheus, and the answers that pages share."""

    settings: PrometheusSettings
    _http: aiohttp.ClientSession | None = None
    _kept: dict[tuple[str, ...], HistoryAnswer] = field(default_factory=dict)
    _reading: dict[tuple[str, ...], asyncio.Task[HistoryAnswer]] = field(default_factory=dict)
    _pause_until_s: float = 0.0
    _why: str = ""

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    async def read_group(self, group: str, topics: Sequence[str]) -> HistoryAnswer:
        """Return the last hour of a group's topics. Callers share an answer."""
        end_s = time.time() // STEP_S * STEP_S
        key = (group, *sorted(topics))
        if key in self._kept and self._kept[key].end_s == end_s:
            return self._kept[key]
        if time.monotonic() < self._pause_until_s:
            return HistoryAnswer(end_s, {}, self._why)
        if key not in self._reading:
            reading = asyncio.create_task(self._read(key, end_s), name=f"history of {group}")
            reading.add_done_callback(lambda _: self._reading.pop(key, None))
            self._reading[key] = reading
        return await asyncio.shield(self._reading[key])

    async def _read(self, key: tuple[str, ...], end_s: float) -> HistoryAnswer:
        group, *topics = key
        column_queries = make_queries(self.settings.labels, group, topics)
        try:
            # All end before the answer, so that no question is open without a page that waits.
            columns = await _gather(
                self._run_query(query, end_s) for query in column_queries.values()
            )
        except _PrometheusError as error:
            answer = HistoryAnswer(end_s, {}, str(error))
            if isinstance(error, _Silence):
                log.warning("%s %s", error, error.__cause__ or "")
                self._why = str(error)
                self._pause_until_s = time.monotonic() + PAUSE_S
                return answer
        else:
            answer = self._make_answer(
                topics, dict(zip(column_queries, columns, strict=True)), end_s
            )
        # Those of earlier times are never shown again.
        self._kept = {
            answer_key: kept for answer_key, kept in self._kept.items() if kept.end_s == end_s
        }
        self._kept[key] = answer
        return answer

    def _make_answer(
        self, topics: Sequence[str], columns: Mapping[str, Mapping[str, array[float]]], end_s: float
    ) -> HistoryAnswer:
        times = array("d", (_compute_start_s(end_s) + i * STEP_S for i in range(POINTS_MAX)))
        unknown = array("d", [math.nan] * POINTS_MAX)
        hours = {}
        for topic in topics:
            if topic in columns["depth"]:
                series = {name: some.get(topic, unknown) for name, some in columns.items()}
                hours[topic] = Hour(
                    end_s,
                    times,
                    series["depth"],
                    _fill_locked(series["depth"], series["in_flight"]),
                    _hide_resets(series["rate_in"]),
                    _hide_resets(series["rate_out"]),
                )
        if lacking := [topic for topic in topics if topic not in hours]:
            some = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" * (len(lacking) > 3))
            return HistoryAnswer(
                end_s,
                hours,
                f"Prometheus at {self.settings.url} has no values of this group on {some}. It must"
                " scrape the brokers, and `--prometheus-labels` must match the labels of their"
                " metrics.",
            )
        return HistoryAnswer(end_s, hours)

    async def _run_query(self, query: str, end_s: float) -> dict[str, array[float]]:
        """Return the result of a query by topic. Raises `_PrometheusError`."""
        fields = {
            "query": query,
            "start": f"{_compute_start_s(end_s):.0f}",
            "end": f"{end_s:.0f}",
            "step": f"{STEP_S:.0f}",
            "timeout": f"{ANSWER_S_MAX:.0f}s",
        }
        url = self.settings.url
        try:
            status, body = await self._post(fields)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            remedy = strict_verification.find_remedy(error)
            raise _Silence(f"Prometheus at {url} does not answer.{remedy}") from error
        if status in (401, 403):
            raise _Silence(
                f"Prometheus at {url} refuses the console: it answers {status}. See"
                " `--prometheus-login` and `--prometheus-token`."
            )
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        if status == 200 and isinstance(document, dict) and document.get("status") == "success":
            return _parse_columns(document.get("data"), _compute_start_s(end_s))
        reason = str(document.get("error") or "") if isinstance(document, dict) else ""
        if not reason:
            raise _Silence(
                f"Prometheus at {url} answers {status} without a result. `--prometheus-url` must be"
                " the address before `/api/v1`."
            )
        text = f"Prometheus at {url} answers {status}: {reason[:_TEXT_MAX].rstrip('.')}."
        raise _Silence(text) if status >= 500 else _PrometheusError(text)

    async def _post(self, fields: Mapping[str, str]) -> tuple[int, bytes]:
        """Return the status and the body of an answer. Raises `_Silence` and aiohttp's errors."""
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=CONNECTIONS_MAX, ssl=self.settings.context or True
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=ANSWER_S_MAX),
            )
        url = f"{self.settings.url}/api/v1/query_range"
        body = bytearray()
        # In the body, the names of groups and topics stay out of the logs of proxies.
        async with self._http.post(
            url, data=fields, headers=self._make_headers(), allow_redirects=False
        ) as answer:
            async for piece in answer.content.iter_chunked(1 << 16):
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise _PrometheusError(
                        f"The answer of Prometheus at {self.settings.url} is too large."
                    )
            return answer.status, bytes(body)

    def _make_headers(self) -> dict[str, str]:
        settings, headers = self.settings, {"Accept": "application/json"}
        if settings.user:
            pair = (settings.user, settings.password.reveal())
            headers["Authorization"] = aiohttp.encode_basic_auth(*pair)
        elif settings.token is not None:
            # Kubernetes replaces a token before it expires.
            headers["Authorization"] = f"Bearer {_read_token(settings.token)}"
        return headers


async def _gather(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of calls at the same time; when all have ended, raise the first error."""
    results = []
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


def _read_token(path: Path) -> str:
    """Return the token of a file. Raises `_Silence`."""
    try:
        words = path.read_text().split()
    except (OSError, UnicodeDecodeError):
        raise _Silence(f"The file {path} of `--prometheus-token` cannot be read.") from None
    if len(words) != 1 or not words[0].isprintable():
        raise _Silence(f"The file {path} of `--prometheus-token` must have one line, the token.")
    return words[0]


def _compute_start_s(end_s: float) -> float:
    return end_s - (POINTS_MAX - 1) * STEP_S


def _parse_columns(data: Any, start_s: float) -> dict[str, array[float]]:
    """Return the values of a matrix by topic, with nan where there are none."""
    columns = {}
    try:
        for series in data["result"]:
            column = array("d", [math.nan] * POINTS_MAX)
            for at_s, text in series["values"]:
                index, value = round((at_s - start_s) / STEP_S), float(text)
                if 0 <= index < POINTS_MAX and math.isfinite(value):
                    column[index] = value
            columns[str(series["metric"]["topic"])] = column
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _PrometheusError(
            "The answer of Prometheus is not a matrix of numbers by topic."
        ) from None
    return columns


def _fill_locked(depths: array[float], locked: array[float]) -> array[float]:
    """Return the records in flight; brokers do not report them where nothing is in flight."""
    return array(
        "d",
        (
            0.0 if math.isnan(many) and not math.isnan(depth) else many
            for depth, many in zip(depths, locked, strict=True)
        ),
    )


def _hide_resets(rates: array[float]) -> array[float]:
    """Return rates of counters. One that went back, because offsets were reset, is unknown."""
    return array("d", (rate if rate >= 0 else math.nan for rate in rates))
