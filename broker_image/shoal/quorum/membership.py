"""Changing the voters, one at a time (KIP-853).

The leader takes a change when it has committed a record of its own epoch, and the change before is
committed: otherwise two sets without a common majority could be in force at once. A new voter has
to have caught up first, so that it does not hold commits back. A set whose majority does not fetch
now could not commit itself: the change is refused. The answer waits for the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ErrorCode
from shoal.quorum import leading
from shoal.quorum.messages import (
    AddRaftVoterRequest,
    Message,
    RaftVoterResponse,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
)
from shoal.quorum.progress import Book, PendingVoters
from shoal.quorum.voters import VoterSet

if TYPE_CHECKING:
    from shoal.quorum.raft import Raft


class _Refused(Exception):
    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


def on_add(raft: Raft, message: Message, request: AddRaftVoterRequest) -> None:
    try:
        book = _open_book(raft)
        voter, voters = request.voter, raft.voters.latest
        id = voter.key.id
        if id in voters.voters:
            text = f"Node {id} is a voter already; remove it first if its directory has changed."
            raise _Refused(ErrorCode.duplicate_voter, text)
        progress = book.replicas.get(id)
        since_ms = raft.now_ms - raft.settings.caught_up_max_ms
        if (
            progress is None
            or progress.key != voter.key
            or progress.caught_up_ms is None
            or progress.caught_up_ms < since_ms
        ):
            text = f"Node {id} has not caught up with the leader yet; let it run as an observer."
            raise _Refused(ErrorCode.request_timed_out, text)
        _change(raft, book, message, voters.added(voter))
    except _Refused as refused:
        _answer(raft, message, refused.error, refused.message)


def on_remove(raft: Raft, message: Message, request: RemoveRaftVoterRequest) -> None:
    try:
        book = _open_book(raft)
        voters, key = raft.voters.latest, request.voter
        found = voters.voters.get(key.id)
        if found is None or found.key.directory_id not in (None, key.directory_id):
            text = f"Node {key.id} with directory {key.directory_id} is no voter."
            raise _Refused(ErrorCode.voter_not_found, text)
        if len(voters) == 1:
            text = f"Node {key.id} is the only voter: add another one first."
            raise _Refused(ErrorCode.invalid_request, text)
        _change(raft, book, message, voters.removed(key))
    except _Refused as refused:
        _answer(raft, message, refused.error, refused.message)


def on_update(raft: Raft, message: Message, request: UpdateRaftVoterRequest) -> None:
    """A voter's endpoints, or its directory id where the set knew none."""
    try:
        book = _open_book(raft)
        if request.current_leader_epoch != raft.epoch:
            text = f"Epoch {request.current_leader_epoch} is not the leader's, {raft.epoch}."
            raise _Refused(ErrorCode.fenced_leader_epoch, text)
        voters, voter = raft.voters.latest, request.voter
        found = voters.voters.get(voter.key.id)
        if found is None or not found.is_of(voter.key):
            text = f"Node {voter.key.id} with directory {voter.key.directory_id} is no voter."
            raise _Refused(ErrorCode.voter_not_found, text)
        if found == voter:
            _answer(raft, message, ErrorCode.none, None)
        else:
            _change(raft, book, message, voters.updated(voter))
    except _Refused as refused:
        _answer(raft, message, refused.error, refused.message)


def _open_book(raft: Raft) -> Book:
    """The leader's book if the voters may change now. Raises `_Refused`."""
    book = raft.book
    if book is None:
        raise _Refused(ErrorCode.not_leader_or_follower, "This node does not lead the quorum.")
    if raft.high_watermark <= book.start_offset:
        text = "The leader has not committed a record in its epoch yet; try again."
        raise _Refused(ErrorCode.request_timed_out, text)
    if raft.voters.latest_offset >= raft.high_watermark:
        text = "Another change of the voters is not committed yet; try again."
        raise _Refused(ErrorCode.request_timed_out, text)
    return book


def _change(raft: Raft, book: Book, message: Message, voters: VoterSet) -> None:
    """Put `voters` in force. Raises `_Refused`."""
    since_ms = raft.now_ms - raft.settings.check_quorum_ms
    if book.fetching(voters, raft.local, since_ms) < voters.majority:
        text = (
            f"Of the voters {', '.join(map(str, voters.ids))} fewer than {voters.majority} fetch"
            " now, so the quorum would stop: start the others first."
        )
        raise _Refused(ErrorCode.request_timed_out, text)
    offset = leading.append_voters(raft, book, voters)
    book.pending_voters = PendingVoters(offset, message.source, message.correlation)
    leading.advance(raft, book)


def committed(raft: Raft, book: Book) -> None:
    """The high watermark has moved: answer, and make way when this replica is out."""
    pending = book.pending_voters
    if pending is not None and pending.offset < raft.high_watermark:
        book.pending_voters = None
        response = RaftVoterResponse(raft.epoch, raft.known_leader)
        raft.reply(pending.source, pending.correlation, response)
    if raft.voters.latest_offset < raft.high_watermark and not raft.is_voter:
        raft.resign()


def _answer(raft: Raft, message: Message, error: ErrorCode, text: str | None) -> None:
    response = RaftVoterResponse(raft.epoch, raft.known_leader, error, text)
    raft.reply(message.source, message.correlation, response)
