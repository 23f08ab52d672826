"""Foreign text with escapes in all that commands print at a terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.cli.terminal import make_visible
from shoal.client.admin.topics import NewTopic
from shoal.client.client import SyncClient
from shoal.client.errors import expect
from shoal.client.net.cluster import TopicPartition
from shoal.record.records import build_batch
from support.brokers.commands import Shoal
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

TOPIC = "escapes"
#: Sets the title, rings, colours, reverses the direction, and clears the screen (8-bit CSI).
HOSTILE = "ann\x1b]0;pwned\x07\x1b[31m\u202e\x9b2Jend"
#: The same without characters that make a payload bytes, which are printed as `0x…`.
PAYLOAD = "ann\u202e\x9b2Jend"
#: None of these is in what the commands write themselves; Rich's own escapes begin with `\x1b[`.
CONTROLS = ("\x1b]", "\x07", "\x1b[31m", "\u202e", "\x9b")


@pytest.fixture(scope="module")
def shoal(shared_broker: ShoalProcess) -> Shoal:
    """A topic and a group whose names and payloads are hostile as far as names may be."""
    text = PAYLOAD.encode()
    headers = [(PAYLOAD, text)]
    letter = [("__dlq.errors.topic", text), ("__dlq.errors.group", HOSTILE.encode())]
    letter += [(f"__dlq.errors.{name}", b"0") for name in ("partition", "offset")]
    with SyncClient(shared_broker.bootstrap) as client:
        expect(client.run(client.admin.topics.create([NewTopic(TOPIC, 1)])))
        where = {TopicPartition(TOPIC, 0): 0}
        expect(client.run(client.admin.groups.alter_offsets(HOSTILE, where)))
    with WireClient(shared_broker.bootstrap) as wire:
        batch = build_batch([(1, text, text, headers), (2, text, text, letter)])
        assert not wire.produce(TOPIC, records=bytes(batch)).error_code
    return Shoal(shared_broker.bootstrap)


CONSUME = ("consume", TOPIC, "--from-beginning", "--exit-at-end")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("groups", "list"), 0),
        (("groups", "list", "-o", "json"), 0),
        (("groups", "describe", HOSTILE), 0),
        (("groups", "describe", f"none {HOSTILE}"), 1),
        (CONSUME, 0),
        ((*CONSUME, "-f", "json"), 0),
        ((*CONSUME, "-f", "{key} {value} {headers}"), 0),
        (("dlq", "peek", TOPIC), 0),
        (("dlq", "peek", TOPIC, "-o", "json"), 0),
        (("top", "--once"), 0),
    ],
    ids=lambda given: (
        " ".join(given).encode("unicode_escape")[:40].decode() if isinstance(given, tuple) else ""
    ),
)
def test_escapes_never_reach_a_terminal(shoal: Shoal, words: tuple[str, ...], status: int) -> None:
    """Each case starts a process at a terminal, which takes half a second."""
    terminal = shoal.at_a_terminal(*words, columns=200)
    assert terminal.ended() == status, terminal.text
    assert "ann" in terminal.text
    assert [one for one in CONTROLS if one in terminal.text] == []


def test_a_pipe_gets_the_text_as_it_is(shoal: Shoal) -> None:
    assert f"{PAYLOAD}={PAYLOAD}" in shoal.says(*CONSUME, "-f", "{headers}")


@given(st.text())
def test_what_is_visible_controls_nothing_and_json_stays_the_same(text: str) -> None:
    found = make_visible(text)
    assert all(one.isprintable() or one in "\n\t\xa0\u202f\u3000" for one in found)
    assert make_visible(found) == found
    assert json.loads(make_visible(json.dumps(text, ensure_ascii=False))) == text
