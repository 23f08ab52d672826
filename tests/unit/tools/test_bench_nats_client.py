"""Places of messages in a stream of NATS, by which a load counts each message once."""

from __future__ import annotations

import pytest
from nats_client import Message


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.bench-1.jobs.1.7.3.1700000000000000000.2",
        "$JS.ACK.domain.hash.bench-1.jobs.1.7.3.1700000000000000000.2.token",
    ],
)
def test_a_message_has_its_place_in_the_stream(reply: str) -> None:
    message = Message("bench.1", reply, b"", 0)
    assert (message.is_stored, message.partition(), message.offset()) == (True, 0, 6)


def test_an_answer_is_no_message_of_a_stream() -> None:
    assert not Message("_INBOX.1.2", "", b"", 408).is_stored
