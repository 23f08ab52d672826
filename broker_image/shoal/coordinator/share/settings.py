"""Group configs of share partitions (KIP-932, KIP-1240).

Settings are looked up at each use, so a changed config applies to the next request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shoal.coordinator.share.tenants import ALL_EQUAL, TenantPolicy

if TYPE_CHECKING:
    from shoal.coordinator.share.backoff import RedeliveryBackoff

#: A batch is delivered in ever smaller pieces only where the limit leaves attempts to do so.
_SPLITTING_LIMIT_MIN = 3


class SelectionPolicy(NamedTuple):
    """Key order, delay, priority and fairness of a group (`selection`). Each is off by default."""

    #: `share.ordering` is `key`
    key_order: bool = False
    #: `share.ordering.key.batch`: maximum records of one key in one fetch.
    key_batch: int = 1
    #: `share.ordering.key.dead.letter` is `hold`
    key_held_by_dead_letter: bool = False
    #: `share.ordering.key.dead.letter.max.held`: maximum records that hold their keys.
    dead_letters_held_max: int = 1000
    #: `share.ordering.key.lookahead`: maximum scanned records that are not delivered.
    lookahead: int = 100_000
    #: `share.delay.max.ms`; 0 without delays.
    delay_max_ms: int = 0
    #: `share.delay.max.records`: maximum delayed records at a time.
    delayed_max: int = 100_000
    #: `share.priority.header`; empty without priority.
    priority_header: str = ""
    #: `share.priority.lookahead`: available records among which the most urgent go first.
    priority_lookahead: int = 1000
    #: `share.priority.ageing.ms`: the wait that equals one step of priority.
    priority_ageing_ms: int = 60_000
    #: `share.fairness.by`: `key`, `header:NAME`, or empty for none.
    fairness_by: str = ""
    #: `share.fairness.lookahead.records`: available records among which tenants are found.
    fairness_lookahead: int = 100_000

    @property
    def tenant_header(self) -> str:
        """The header that names the tenant of a record; empty if none does."""
        return self.fairness_by.removeprefix("header:") if self.fairness_by != "key" else ""

    @property
    def dead_letters_hold_keys(self) -> bool:
        """Whether a record whose dead letter is written holds its key."""
        return self.key_order and self.key_held_by_dead_letter


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """Group configs that govern delivery, with Kafka 4.4.0's defaults."""

    #: `share.record.lock.duration.ms`
    lock_duration_ms: int = 30_000
    #: `share.delivery.count.limit`
    delivery_count_limit: int = 5
    #: `share.partition.max.record.locks`
    max_record_locks: int = 2000
    #: `share.isolation.level` is `read_committed`
    read_committed: bool = False
    #: `share.renew.acknowledge.enable`
    renew_enabled: bool = True
    #: `share.auto.offset.reset`: `latest`, `earliest` or `by_duration:PnDTnHnMn.nS`
    auto_offset_reset: str = "latest"
    #: `share.redelivery.backoff.*`; None without back-off.
    backoff: RedeliveryBackoff | None = None
    #: `share.delivery.paused`
    paused: bool = False
    #: `errors.deadletterqueue.topic.name` is set: failed records are ARCHIVING at first.
    dead_letters: bool = False
    #: `shoal.errors.deadletterqueue.flood.per.minute`; 0 for no limit.
    flood_per_minute: int = 0
    #: `share.redelivery.backoff.max.ms`: maximum delay of a release.
    release_delay_max_ms: int = 300_000
    #: `share.ordering`, `share.delay.*`, `share.priority.*` and `share.fairness.*`; None if none of
    #: them is set. Then records are acquired in the order of the log.
    selection: SelectionPolicy | None = None
    #: What each tenant may use, in groups with `share.fairness.by`.
    tenants: TenantPolicy = ALL_EQUAL

    @property
    def has_later_records(self) -> bool:
        """Whether only a scan of the log tells which records may be delivered now: some may be
        delayed, or wait behind a limit of their tenant."""
        policy = self.selection
        if policy is None:
            return False
        return policy.delay_max_ms > 0 or (bool(policy.fairness_by) and self.tenants.is_limited)

    @property
    def splitting_count(self) -> int:
        """From this delivery count on a record is delivered in smaller pieces (KAFKA-17541)."""
        return max(_SPLITTING_LIMIT_MIN - 1, math.ceil(self.delivery_count_limit / 2))
