"""How the command line parses and prints times, templates, lines, patterns and metrics."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime

import pytest
from shoal.cli import records, timestamps
from shoal.cli.client_properties import parse_pairs
from shoal.cli.commands.produce import Input, InputRecord, _make_reader
from shoal.cli.commands.share_consume import _parse_pattern, merge
from shoal.cli.output import format_cell, format_timestamp, to_text_or_hex
from shoal.cli.session import CommandError
from shoal.client.consume.consumer import Record
from shoal.client.share.member import Acknowledgement, AcknowledgeType

RECORD = Record("tasks", 1, 7, 0, None, b'{"a": 1}', (("h", b"x"), ("n", None)))


def test_times() -> None:
    assert timestamps.parse_timestamp("1700000000000") == 1_700_000_000_000
    assert timestamps.parse_timestamp("1970-01-01T00:00:01Z") == 1_000
    assert timestamps.parse_timestamp("15m", now_ms=1_000_000) == 100_000
    assert timestamps.parse_timestamp("PT1H", now_ms=3_600_001) == 1
    local = datetime(2026, 1, 31, 12, 0).timestamp() * 1000
    assert timestamps.parse_timestamp("2026-01-31T12:00") == local
    assert timestamps.parse_duration_ms("1.5s") == 1_500
    assert timestamps.parse_duration_ms("P1DT2H") == 26 * 3_600_000
    assert timestamps.parse_duration_ms("soon") is None
    assert timestamps.parse_duration_ms("P") is None
    with pytest.raises(CommandError, match="'soon' is not a time"):
        timestamps.parse_timestamp("soon")


def test_record_formats() -> None:
    assert records.make_printer("text")(RECORD) == '{"a": 1}'
    template = r"{topic}-{partition}@{offset}\t{timestamp} {key} {value} {headers} {delivery_count}"
    assert records.make_printer(template)(RECORD) == (
        'tasks-1@7\t1970-01-01T00:00:00.000Z null {"a": 1} h=x,n=null 1'
    )
    assert records.make_printer("json")(RECORD) == (
        '{"topic": "tasks", "partition": 1, "offset": 7, "key": null, "value": "{\\"a\\": 1}", '
        '"headers": [["h", "x"], ["n", null]], "timestamp": 0}'
    )
    for wrong in ("table", "{nosuch}", "{value", "{value.__class__}", "{}"):
        with pytest.raises(CommandError, match="--format"):
            records.make_printer(wrong)


def test_cells() -> None:
    values: list[object] = [None, True, 1.25, {}, {"a": 1}, (1, 2), []]
    assert [format_cell(v) for v in values] == ["-", "yes", "1.2", "-", "a=1", "1,2", "-"]
    assert to_text_or_hex(b"\xff\x00") == "0xff00"
    assert to_text_or_hex(b"a\x00") == "0x6100"
    assert to_text_or_hex("zwölf\n".encode()) == "zwölf\n"
    assert to_text_or_hex(None) is None
    assert format_timestamp(-1) is None
    for far_ms in (10**18, 2**63 - 1):  # Nanoseconds, and for ever.
        assert format_timestamp(far_ms) == str(far_ms)


def test_lines_to_send() -> None:
    plain = InputRecord(None, b"fixed", (("h", b"1"),), 2)
    read = _make_reader(Input.TEXT, plain, None, None)
    assert read(b"a:b") == InputRecord(b"a:b", b"fixed", (("h", b"1"),), 2)
    read = _make_reader(Input.TEXT, InputRecord(None), ":", "NULL")
    assert read(b"k:a:b") == InputRecord(b"a:b", b"k")
    assert read(b":NULL") == InputRecord(None, b"")
    with pytest.raises(CommandError, match="'no key here' has no key: it does not contain ':'"):
        read(b"no key here")


def test_json_lines_to_send() -> None:
    read = _make_reader(Input.JSON, InputRecord(None, b"fixed", (("h", b"1"),)), None, None)
    assert read(b'{"value": "a"}') == InputRecord(b"a", b"fixed", (("h", b"1"),))
    assert read(
        b'{"value": {"x": [1]}, "key": null, "headers": [["a", "b"], ["a", null]], '
        b'"partition": 1, "timestamp": 5}'
    ) == InputRecord(b'{"x": [1]}', None, (("a", b"b"), ("a", None)), 1, 5)
    for line, said in (
        (b"{", "is not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"v": 1}', "unknown field 'v'"),
    ):
        with pytest.raises(CommandError, match=said):
            read(line)


def test_acknowledgement_patterns() -> None:
    kinds = AcknowledgeType
    assert _parse_pattern(None) is None
    assert _parse_pattern("accept,release,reject,renew") == [
        kinds.ACCEPT,
        kinds.RELEASE,
        kinds.REJECT,
        kinds.RENEW,
    ]
    with pytest.raises(CommandError, match="not 'maybe'"):
        _parse_pattern("accept,maybe")


def test_neighbouring_acknowledgements_become_one() -> None:
    release = AcknowledgeType.RELEASE
    given = [
        Acknowledgement("t", 0, 2, 2),
        Acknowledgement("t", 0, 0, 1),
        Acknowledgement("t", 0, 3, 3, release),
        Acknowledgement("t", 0, 5, 5, release),
        Acknowledgement("t", 1, 6, 6, release),
    ]
    assert merge(given) == [
        Acknowledgement("t", 0, 0, 2),
        Acknowledgement("t", 0, 3, 3, release),
        Acknowledgement("t", 0, 5, 5, release),
        Acknowledgement("t", 1, 6, 6, release),
    ]


def test_pairs() -> None:
    assert parse_pairs(["a=b=c", " d = e "], "--set") == {"a": "b=c", "d": "e"}
    for wrong in ("a", "=b"):
        with pytest.raises(ValueError, match="--set must be NAME=VALUE"):
            parse_pairs([wrong], "--set")


def test_help_needs_none_of_the_tools() -> None:
    """`shoal --help` is quick because it imports neither the codec nor rich nor a broker."""
    code = (
        "import sys\nfrom shoal.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('kio', 'rich', 'asyncio') "
        "or m.startswith(('shoal.client', 'shoal.server'))), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, timeout=30
    )
    assert done.stderr.strip() == "[]"
    for name in ("server", "topics", "share-consume", "top", "dump"):
        assert f"\n  {name} " in done.stdout


def test_a_plain_broker_imports_nothing_that_it_does_not_use() -> None:
    """Each takes 0.5 to 25 MB of memory as long as the broker runs, and delays the start."""
    code = (
        "import sys\nfrom shoal.cli import __main__\nfrom shoal.cli.commands import serve\n"
        "serve.read_flags(['--listener=127.0.0.1:0', '--node-id', '1'], {})\n"
        "import shoal.server.process\n"
        "unused = {'aiohttp', 'cramjam', 'cryptography', 'email', 'hypothesis', 'jinja2',"
        " 'pydantic', 'rich', 'shoal.console', 'shoal.server.tiered.service', 'typer',"
        " 'urllib.request', 'zipfile'}\n"
        "print(sorted(unused & {m for m, found in sys.modules.items() if found}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
