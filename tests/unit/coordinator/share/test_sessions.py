"""Share sessions (KIP-932): epochs, limits, and the requests that a member may send."""

import pytest
from shoal.coordinator.share.sessions import ShareSessions
from shoal.protocol.errors import ApiError, ErrorCode


def refused(call: object, *args: object) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        call(*args)  # type: ignore[operator]
    return caught.value.code


def test_epochs_follow_one_another_and_begin_again_at_one() -> None:
    sessions = ShareSessions(5)
    session = sessions.open("g", "m", "c", [])
    assert [sessions.advance("g", "m", epoch).epoch for epoch in (1, 2)] == [2, 3]
    assert refused(sessions.advance, "g", "m", 2) is ErrorCode.invalid_share_session_epoch
    session.epoch = (1 << 31) - 1
    assert sessions.advance("g", "m", (1 << 31) - 1).epoch == 1


def test_the_final_epoch_finds_the_session_whatever_its_epoch() -> None:
    sessions = ShareSessions(5)
    session = sessions.open("g", "m", "c", [])
    assert sessions.advance("g", "m", -1) is session
    assert sessions.close("g", "m") is session
    assert sessions.close("g", "m") is None
    assert refused(sessions.advance, "g", "m", -1) is ErrorCode.share_session_not_found


def test_opening_again_replaces_the_session_and_needs_no_room() -> None:
    sessions = ShareSessions(1)
    sessions.open("g", "m", "c", [])
    again = sessions.open("g", "m", "d", [])
    assert (sessions.get("g", "m"), len(sessions), sessions.count_members("g")) == (again, 1, 1)
    assert refused(sessions.open, "g", "n", "e", []) is ErrorCode.share_session_limit_reached
    sessions.close("g", "m")
    assert (len(sessions), sessions.count_members("g")) == (0, 0)
