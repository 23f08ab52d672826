"""The catalogue of attackers of a broker. A new fault from outside becomes a new function here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.attacks import (
    attackers,
    commit_attackers,
    login_attackers,
    queue_attackers,
    streams_attackers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

CATALOGUE: tuple[Callable[[attackers.Target], None], ...] = (
    attackers.send_names_that_nobody_may_use,
    attackers.send_ids_of_one_hash,
    attackers.expand_batches,
    attackers.search_by_timestamp,
    attackers.write_to_the_ledger,
    attackers.compact_bombs,
    attackers.cancel_records,
    attackers.have_many_tenants,
    attackers.give_reasons,
    attackers.produce_bombs,
    attackers.produce_many_ids,
    attackers.have_much_compressed,
    attackers.leave_in_the_middle,
    attackers.read_nothing,
    attackers.write_slowly,
    attackers.hold_large_requests,
    attackers.connect_and_leave,
    attackers.create_and_delete_many_partitions,
    attackers.write_to_many_partitions,
    attackers.share_many_partitions,
    attackers.delete_a_topic_of_many_offsets,
    attackers.ask_for_much_in_short,
    attackers.search_by_pattern,
    attackers.ask_for_health,
    commit_attackers.finish_offsets,
    queue_attackers.reject_bombs,
    queue_attackers.make_up_tenants,
    queue_attackers.send_long_ids,
    streams_attackers.describe_topologies,
    streams_attackers.create_internal_topics,
    login_attackers.make_up_tokens,
    login_attackers.hold_logins,
    login_attackers.shake_hands,
)
