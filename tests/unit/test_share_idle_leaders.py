"""Which share partitions a broker forgets when a group has no members."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from shoal.server.share.leader import Phase
from shoal.server.share.service import ShareService


def leader(*, idle: bool = True, key_holders: int = 0, backing_off: int = 0) -> Any:
    dropped: list[object] = []
    share = SimpleNamespace(key_holders=key_holders, backing_off=backing_off)
    return SimpleNamespace(
        phase=Phase.ACTIVE, is_idle=idle, share=share, dropped=dropped, drop=dropped.append
    )


def test_a_leader_is_kept_while_it_is_at_work_or_knows_what_waits_behind_a_held_key() -> None:
    idle, busy, holding, lively = leader(), leader(idle=False), leader(key_holders=1), leader()
    # Only a leader knows which records are due later, and when.
    waiting, delayed = leader(backing_off=1), leader()
    service: Any = SimpleNamespace(
        leaders={
            "left": {0: idle, 1: busy, 2: holding, 3: waiting},
            "joined": {0: lively},
            "later": {0: delayed},
        },
        delay_scanner={"later"},
        sessions=SimpleNamespace(members_of=lambda group: ["m"] if group == "joined" else []),
    )
    ShareService._drop_idle(service)
    dropped = [bool(x.dropped) for x in (idle, busy, holding, lively, waiting, delayed)]
    assert dropped == [True, False, False, False, False, False]
