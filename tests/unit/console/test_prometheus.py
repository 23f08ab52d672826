"""The console's history from Prometheus, with a small one over real HTTP.

`tests/compat/console/test_prometheus.py` has the queries before a real one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import encode_basic_auth, web
from aiohttp.test_utils import TestServer
from shoal.cli.commands.console import PageOptions, _build_access
from shoal.cli.session import CommandError
from shoal.console.login_files import InvalidAccess
from shoal.console.sampling import prometheus
from shoal.console.sampling.history import POINTS_MAX, STEP_S
from shoal.console.sampling.prometheus import (
    HistoryAnswer,
    Prometheus,
    PrometheusSettings,
    make_queries,
    parse_prometheus,
)
from support.brokers.ports import free_ports
from support.security.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

NOW_S = 1_800_000_005.0
END_S = 1_800_000_000.0
QUERIES = 4
#: Prometheus may be below a path of its address.
PREFIX = "prometheus"
#: Texts that no message and no log may have.
SECRETS = ("s3cret", "t0ken")


class Small:
    """Answers each query with the same values. A test changes its attributes."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, str]] = []
        self.authorization = ""
        self.status = 200
        self.body: bytes | None = None
        self.values: dict[str, list[list[Any]]] = {"t": [[END_S - STEP_S, "7"], [END_S, "5"]]}
        #: The values of queries that have a text, in place of the others.
        self.of: dict[str, list[list[Any]]] = {}
        self.answers = asyncio.Event()
        self.answers.set()

    async def query_range(self, request: web.Request) -> web.Response:
        asked = {name: str(value) for name, value in (await request.post()).items()}
        self.asked.append(asked)
        await self.answers.wait()
        if self.authorization and request.headers.get("Authorization") != self.authorization:
            return web.Response(status=401, text="Unauthorized")
        if self.body is not None:
            return web.Response(status=self.status, body=self.body)
        special = [some for text, some in self.of.items() if text in asked["query"]]
        values = {"t": special[0]} if special else self.values
        result = [{"metric": {"topic": t}, "values": some} for t, some in values.items()]
        data = {"resultType": "matrix", "result": result}
        return web.json_response({"status": "success", "data": data}, status=self.status)

    def refuse(self, status: int, error: str) -> None:
        self.status = status
        self.body = json.dumps({"status": "error", "errorType": "e", "error": error}).encode()


@asynccontextmanager
async def small(context: ssl.SSLContext | None = None) -> AsyncIterator[Small]:
    served = Small()
    app = web.Application()
    app.router.add_post(f"/{PREFIX}/api/v1/query_range", served.query_range)
    server = TestServer(app)
    await server.start_server(ssl=context)
    try:
        scheme = "https" if context else "http"
        served.url = f"{scheme}://127.0.0.1:{server.port}/{PREFIX}"
        yield served
    finally:
        served.answers.set()
        await server.close()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The wall clock and the monotonic clock of the module; a test sets them forward."""
    now = {"time": NOW_S, "monotonic": 1_000.0}
    fake = type("Clock", (), {name: staticmethod(lambda n=name: now[n]) for name in now})
    monkeypatch.setattr(prometheus, "time", fake)
    # On a busy machine, the small Prometheus is slow, too.
    monkeypatch.setattr(prometheus, "ANSWER_S_MAX", 60.0)
    monkeypatch.setattr(prometheus, "ANSWER_BYTES_MAX", 100_000)
    return now


def run(call: Callable[[Small, Prometheus], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        async with small() as served:
            asked = Prometheus(PrometheusSettings(served.url))
            try:
                await call(served, asked)
            finally:
                await asked.close()

    asyncio.run(whole())


def test_an_hour_ends_at_a_step_and_has_gaps() -> None:
    async def call(served: Small, asked: Prometheus) -> None:
        served.values["t"] += [[END_S - 2 * STEP_S, "NaN"], [END_S - 3 * STEP_S, "+Inf"]]
        served.values["t"] += [[END_S + STEP_S, "1"], [END_S - 7_200, "1"]]
        found = await asked.read_group("g", ["t"])
        assert (found.end_s, found.why) == (END_S, "")
        hour = found.hours["t"]
        assert (hour.end_s, hour.times[-1], hour.times[0]) == (END_S, END_S, END_S - 3_600)
        assert {len(column) for column in hour[1:]} == {POINTS_MAX}
        for column in hour[2:]:
            assert list(column[-2:]) == [7, 5]
            assert all(map(math.isnan, column[:-2]))
        words = {"start": "1799996400", "end": "1800000000", "step": "10", "timeout": "60s"}
        assert all(words.items() <= one.items() for one in served.asked)
        asked_for = {one["query"] for one in served.asked}
        assert asked_for == set(make_queries("", "g", ["t"]).values())

    run(call)


def test_records_in_flight_and_rates_are_those_that_the_console_keeps() -> None:
    """Brokers report no records in flight where there are none; offsets that were reset are no
    throughput."""

    async def call(served: Small, asked: Prometheus) -> None:
        served.of["locked_records"] = [[END_S, "2"]]
        served.of["deriv"] = [[END_S - STEP_S, "-1"], [END_S, "2.5"]]
        hour = (await asked.read_group("g", ["t"])).hours["t"]
        assert list(hour.in_flight[-2:]) == [0, 2]
        assert math.isnan(hour.in_flight[-3])
        for rates in (hour.rate_in, hour.rate_out):
            assert math.isnan(rates[-2])
            assert rates[-1] == 2.5

    run(call)


def test_pages_share_an_answer_until_the_next_step(clock: dict[str, float]) -> None:
    async def call(served: Small, asked: Prometheus) -> None:
        found = await asyncio.gather(*(asked.read_group("g", ["t"]) for _ in range(20)))
        assert {len(one.hours) for one in found} == {1}
        assert len(served.asked) == QUERIES
        clock["time"] = NOW_S + 4.9
        await asked.read_group("g", ["t"])
        assert len(served.asked) == QUERIES
        await asked.read_group("other", ["t"])
        assert len(served.asked) == 2 * QUERIES
        clock["time"] = NOW_S + 5
        assert (await asked.read_group("g", ["t"])).end_s == END_S + STEP_S
        assert len(served.asked) == 3 * QUERIES

    run(call)


def test_a_page_that_is_closed_does_not_end_the_question_of_others() -> None:
    async def call(served: Small, asked: Prometheus) -> None:
        served.answers.clear()
        first = asyncio.create_task(asked.read_group("g", ["t"]))
        second = asyncio.create_task(asked.read_group("g", ["t"]))
        async with asyncio.timeout(60):
            while len(served.asked) < QUERIES:
                await asyncio.wait([first], timeout=0.01)
        first.cancel()
        served.answers.set()
        assert (await second).hours
        assert len(served.asked) == QUERIES

    run(call)


def test_topics_without_values_are_named() -> None:
    async def call(_served: Small, asked: Prometheus) -> None:
        found = await asked.read_group("g", ["t", "a", "b", "c", "d"])
        assert found.hours.keys() == {"t"}
        assert "has no values of this group on a, b, c and 1 more. It must scrape" in found.why

    run(call)


def test_silence_is_asked_again_after_a_pause(
    clock: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "shoal.console")

    async def call(served: Small, asked: Prometheus) -> None:
        served.refuse(503, "the storage is not ready")
        found = await asked.read_group("g", ["t"])
        why = f"Prometheus at {served.url} answers 503: the storage is not ready."
        assert found == HistoryAnswer(END_S, {}, why)
        before = len(served.asked)
        clock["time"] += STEP_S
        clock["monotonic"] += prometheus.PAUSE_S - 0.1
        assert (await asked.read_group("other", ["t"])).why == why
        assert len(served.asked) == before
        served.status, served.body = 200, None
        clock["monotonic"] += 0.1
        served.values = {"t": [[END_S + STEP_S, "1"]]}
        assert (await asked.read_group("g", ["t"])).why == ""

    run(call)
    assert caplog.text.count("answers 503") == 1


def test_an_error_of_one_query_stops_no_other() -> None:
    async def call(served: Small, asked: Prometheus) -> None:
        served.refuse(422, "found duplicate series.")
        found = await asked.read_group("g", ["t"])
        assert found.why == f"Prometheus at {served.url} answers 422: found duplicate series."
        before = len(served.asked)
        await asked.read_group("g", ["t"])
        assert len(served.asked) == before
        served.status, served.body = 200, None
        assert (await asked.read_group("other", ["t"])).why == ""

    run(call)


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, b"404 page not found", "answers 404 without a result. `--prometheus-url` must be"),
        (302, b"", "answers 302 without a result"),
        (200, b"<html>", "answers 200 without a result"),
        (200, b"[" * 99_000, "answers 200 without a result"),
        (403, b"", "refuses the console: it answers 403. See `--prometheus-login`"),
        (200, b'{"status": "success"}', "is not a matrix of numbers by topic."),
        (
            200,
            b'{"status": "success", "data": {"result": [{"metric": {}, "values": []}]}}',
            "is not a matrix of numbers by topic.",
        ),
        (200, b" " * 100_001, "is too large."),
    ],
)
def test_an_answer_that_is_none(status: int, body: bytes, why: str) -> None:
    async def call(served: Small, asked: Prometheus) -> None:
        served.status, served.body = status, body
        found = await asked.read_group("g", ["t"])
        assert why in found.why
        assert not found.hours

    run(call)


def test_a_prometheus_that_hangs_or_is_not_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prometheus, "ANSWER_S_MAX", 0.2)
    caplog.set_level(logging.WARNING, "shoal.console")

    async def call(served: Small, asked: Prometheus) -> None:
        served.answers.clear()
        async with asyncio.timeout(30):
            found = await asked.read_group("g", ["t"])
        assert found.why == f"Prometheus at {served.url} does not answer."

    run(call)

    async def nobody() -> None:
        asked = Prometheus(PrometheusSettings(f"http://127.0.0.1:{free_ports(1)[0]}"))
        assert "does not answer." in (await asked.read_group("g", ["t"])).why
        await asked.close()

    asyncio.run(nobody())
    assert caplog.text.count("does not answer.") == 2


def test_a_login_and_a_token_that_is_replaced(
    clock: dict[str, float], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = tmp_path / "token"

    async def call(served: Small, anonymous: Prometheus) -> None:
        served.authorization = encode_basic_auth("ann", "s3cret:x")
        refused = await anonymous.read_group("g", ["t"])
        assert "refuses the console: it answers 401" in refused.why
        asked = Prometheus(parse_prometheus(served.url, login="ann:s3cret:x\n"))
        assert (await asked.read_group("g", ["t"])).why == ""
        await asked.close()
        asked = Prometheus(parse_prometheus(served.url, token=token))
        for text, why in (
            ("", "must have one line, the token."),
            ("t0ken s3cret", "must have one line, the token."),
            ("t0ken\n", ""),
            ("t0ken2", ""),
        ):
            token.write_text(text)
            served.authorization = f"Bearer {text.strip()}"
            clock["time"] += STEP_S
            clock["monotonic"] += prometheus.PAUSE_S
            found = (await asked.read_group("g", ["t"])).why
            assert found.endswith(why) if why else not found
            assert not any(secret in found for secret in SECRETS)
        token.unlink()
        clock["time"] += STEP_S
        assert (
            f"{token} of `--prometheus-token` cannot be" in (await asked.read_group("g", ["t"])).why
        )
        await asked.close()

    run(call)
    assert not any(secret in caplog.text for secret in SECRETS)


def test_a_certificate_of_its_own_authority(tmp_path: Path) -> None:
    authority = Authority("Monitoring")
    (tmp_path / "server.pem").write_text(authority.issue("prometheus").pem)
    (tmp_path / "ca.pem").write_text(authority.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")

    async def whole() -> None:
        async with small(context) as served:
            for ca, why in ((str(tmp_path / "ca.pem"), ""), ("", "does not answer.")):
                asked = Prometheus(parse_prometheus(served.url, ca=ca))
                assert (await asked.read_group("g", ["t"])).why.endswith(why)
                assert bool((await asked.read_group("g", ["t"])).hours) is not bool(why)
                await asked.close()

    asyncio.run(whole())
    (tmp_path / "empty.pem").write_text("")
    for file in ("none.pem", "empty.pem"):
        with pytest.raises(InvalidAccess, match=f"{file} of --prometheus-ca: .* PEM file"):
            parse_prometheus("https://p", ca=str(tmp_path / file))


def test_a_certificate_that_newer_pythons_refuse(tmp_path: Path) -> None:
    authority = Authority("Monitoring")
    (tmp_path / "server.pem").write_text(authority.issue("prometheus", identified=False).pem)
    (tmp_path / "ca.pem").write_text(authority.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")

    async def whole() -> None:
        async with small(context) as served:
            settings = parse_prometheus(served.url, ca=str(tmp_path / "ca.pem"))
            assert settings.context is not None
            settings.context.verify_flags |= ssl.VERIFY_X509_STRICT  # As Python 3.13 does.
            asked = Prometheus(settings)
            why = (await asked.read_group("g", ["t"])).why
            assert why.endswith(
                "without an Authority Key Identifier: issue it again with that extension."
            )
            await asked.close()

    asyncio.run(whole())


def test_queries_quote_names() -> None:
    found = make_queries('a="b"', 'x"\\\n\x01ä', ["orders.v1", "b"])
    assert r'{group="x\"\\\n\u0001ä",a="b"}' in found["depth"]
    assert '{topic=~"orders[.]v1|b",a="b"}[30s]' in found["rate_in"]


def test_settings() -> None:
    found = parse_prometheus("https://p.example/prom/", ' a="b" , c!~"d\\"{}" ')
    assert (found.url, found.labels) == ("https://p.example/prom", 'a="b" , c!~"d\\"{}"')
    for url in ("p:9090", "ftp://p", "https://ann:s3cret@p", "https://p?t0ken", "http://p/#t0ken"):
        with pytest.raises(InvalidAccess, match="--prometheus-url must be") as raised:
            parse_prometheus(url)
        assert not any(secret in str(raised.value) for secret in SECRETS)
    for labels in ("a", 'a=b"', '{a="b"}', 'a="b"} or x{c="d"', 'a="b",', 'a="\\"', "a='b'"):
        with pytest.raises(InvalidAccess, match="--prometheus-labels must be matchers"):
            parse_prometheus("http://p", labels)
    with pytest.raises(InvalidAccess, match="must have a line USER:PASSWORD"):
        parse_prometheus("http://p", login="ann")


def test_options(tmp_path: Path) -> None:
    login, token = tmp_path / "login", tmp_path / "token"
    login.write_text("ann:s3cret\n")
    token.write_text("t0ken\n")
    assert _build_access("127.0.0.1:0", PageOptions()).prometheus is None
    given = PageOptions(prometheus_url="http://p:9090", prometheus_labels='a="b"')
    found = _build_access("127.0.0.1:0", given._replace(prometheus_login=login))
    assert found.prometheus is not None
    assert (found.prometheus.url, found.prometheus.labels) == ("http://p:9090", 'a="b"')
    assert (found.prometheus.user, found.prometheus.password.reveal()) == ("ann", "s3cret")
    assert "s3cret" not in repr(found)
    found = _build_access("127.0.0.1:0", given._replace(prometheus_token=token))
    assert found.prometheus is not None
    assert found.prometheus.token == token
    with pytest.raises(CommandError, match="are different logins"):
        _build_access("127.0.0.1:0", given._replace(prometheus_token=token, prometheus_login=login))
    with pytest.raises(CommandError, match=r"cannot read .*none"):
        _build_access("127.0.0.1:0", given._replace(prometheus_token=tmp_path / "none"))
    with pytest.raises(CommandError, match="--prometheus-labels needs --prometheus-url"):
        _build_access("127.0.0.1:0", PageOptions(prometheus_labels='a="b"'))
