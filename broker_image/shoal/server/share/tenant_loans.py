"""Carries requests for loans of tenants' limits between brokers (`coordinator.share.tenant_loans`).

They travel in a field of ours in ReadShareGroupStateSummary, which brokers alone may send. A broker
without the field answers that it lends nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from shoal.client.errors import ClientError
from shoal.coordinator.share.records import ShareKey
from shoal.coordinator.share.tenant_loans import (
    NO_LEADER,
    TENANTS_MAX,
    Leader,
    Loan,
    LoanRequest,
    Wish,
)
from shoal.coordinator.share.tenants import NAME_BYTES_MAX
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from uuid import UUID

    from shoal.coordinator.share.tenant_loans import TenantLoans
    from shoal.metadata.image import MetadataImage
    from shoal.protocol.responses import share as responses
    from shoal.server.coordinators.service import ReplicasPort
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node
    from shoal.server.replication.partitions import Partitions
    from shoal.server.share.group_settings import ShareGroupSettings
    from shoal.server.share.persister import PeersPort

#: How often a broker asks, and for how many groups and topics at once: some milliseconds of work.
INTERVAL_MS = 1000
GROUPS_MAX = 20


class LoanService:
    """Asks other brokers once a second for what tenants lack here, and answers them."""

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        partitions: Partitions,
        replicas: ReplicasPort,
        settings: ShareGroupSettings,
        peers: PeersPort,
    ) -> None:
        self._node = node
        self._cache = cache
        self._partitions = partitions
        self._replicas = replicas
        self._settings = settings
        self._peers = peers
        #: The groups and topics that were asked for last come last.
        self._order: list[tuple[str, UUID]] = []
        #: By topic, under an image: the other brokers, and the partitions that are led here.
        self._leaders: dict[UUID, tuple[dict[int, Leader], list[int]]] = {}
        self._image: MetadataImage | None = None
        self._sent: set[asyncio.Future[None]] = set()

    def start(self) -> None:
        """Begin to ask."""
        self._node.timers.call_every(INTERVAL_MS, self.ask)

    def count_records(self) -> dict[str, tuple[int, int]]:
        """Return by group the records that this broker has lent and borrowed, if there are any."""
        counts: dict[str, tuple[int, int]] = {}
        for (group_id, _), loans in self._settings.loans.items():
            lent, borrowed = loans.lending.count_records(), loans.borrowing.count_records()
            if lent or borrowed:
                before = counts.get(group_id, (0, 0))
                counts[group_id] = before[0] + lent, before[1] + borrowed
        return counts

    def ask(self) -> None:
        """Send the requests that are due."""
        loans = self._settings.loans
        active = [key for key, x in loans.items() if x.is_active]
        if not active or self._node.id not in self._cache.image.brokers:
            return
        places = {key: place for place, key in enumerate(self._order)}
        active.sort(key=lambda key: places.get(key, -1))
        self._order = active[GROUPS_MAX:] + active[:GROUPS_MAX]
        now_ms = self._node.clock.now_ms()
        for key in active[:GROUPS_MAX]:
            self._follow(key, now_ms)
            for request in loans[key].borrowing.build_requests(now_ms):
                sent = asyncio.ensure_future(self._carry_out(key, loans[key], request))
                self._sent.add(sent)
                sent.add_done_callback(self._sent.discard)

    def _follow(self, key: tuple[str, UUID], now_ms: int) -> None:
        """Apply the newest configs and metadata to a ledger and its loans, which exist after."""
        group_id, topic_id = key
        settings = self._settings.get(group_id)
        self._settings.get_tenant_ledger(ShareKey(group_id, topic_id, 0), settings)
        leaders, led = self._find_leaders(topic_id)
        self._settings.loans[key].follow(leaders, is_leader=bool(led), now_ms=now_ms)

    def _find_leaders(self, topic_id: UUID) -> tuple[dict[int, Leader], list[int]]:
        """Return the other brokers, with the partitions of a topic that each leads, and those that
        this broker leads."""
        image = self._cache.image
        if image is not self._image:
            self._image, self._leaders = image, {}
        leaders = self._leaders.get(topic_id)
        if leaders is None:
            topic = image.topics_by_id.get(topic_id)
            leader_ids = [p.leader for p in (() if topic is None else topic.partitions)]
            counts = Counter(leader_ids)
            others = {
                broker_id: Leader(broker.broker_epoch, counts[broker_id])
                for broker_id, broker in sorted(image.brokers.items())
                if broker_id != self._node.id
            }
            led = [index for index, leader in enumerate(leader_ids) if leader == self._node.id]
            leaders = self._leaders[topic_id] = others, led
        return leaders

    async def _carry_out(
        self, key: tuple[str, UUID], loans: TenantLoans, request: LoanRequest
    ) -> None:
        group_id, topic_id = key
        wishes = {
            "topic_id": topic_id,
            "broker_id": self._node.id,
            "broker_epoch": self._cache.image.brokers[self._node.id].broker_epoch,
            "sequence": request.sequence,
            "tenants": [
                {
                    "name": x.name,
                    "held": x.held,
                    "wanted": x.wanted,
                    "rate_wanted": x.is_rate_wanted,
                }
                for x in request.wishes
            ],
        }
        fields = {"group_id": group_id, "topics": [], "tenant_wishes": wishes}
        try:
            response = await self._peers.request(
                request.lender, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, fields
            )
        except ClientError:
            loans.borrowing.on_failure(request)
            return
        lent = getattr(response, "tenant_loans", ())
        answer = [Loan(bytes(x.name), x.lent, x.kept, x.per_second) for x in lent]
        loans.borrowing.on_answer(request, answer, self._node.clock.now_ms())

    def lend(self, body: Any) -> list[responses.ReadShareGroupStateSummaryTenantLoan]:
        """Return what another broker has after its request. Raises INVALID_REQUEST for more than
        `TENANTS_MAX` tenants, or a name that no tenant has."""
        asked = body.tenant_wishes
        if any(len(wish.name) > NAME_BYTES_MAX for wish in asked.tenants):
            raise ApiError(
                ErrorCode.invalid_request,
                f"A request for loans has a tenant's name of more than {NAME_BYTES_MAX} bytes.",
            )
        if len(asked.tenants) > TENANTS_MAX:
            raise ApiError(
                ErrorCode.invalid_request,
                f"A request for loans names {len(asked.tenants)} tenants, at most {TENANTS_MAX}.",
            )
        key, now_ms = (body.group_id, asked.topic_id), self._node.clock.now_ms()
        if asked.topic_id not in self._cache.image.topics_by_id:
            return []
        self._follow(key, now_ms)
        wishes = [Wish(bytes(x.name), x.held, x.wanted, x.rate_wanted) for x in asked.tenants]
        leaders, led = self._find_leaders(asked.topic_id)
        borrower = leaders.get(asked.broker_id, NO_LEADER)
        may_lend = borrower.led > 0 and self._has_part(asked.topic_id, led)
        loans = self._settings.loans[key].lending.lend(
            asked.broker_id, asked.broker_epoch, asked.sequence, wishes, now_ms, may_lend=may_lend
        )
        return [
            {"name": x.name, "lent": x.lent, "kept": x.kept, "per_second": x.per_second}
            for x in loans
        ]

    def _has_part(self, topic_id: UUID, led: list[int]) -> bool:
        """Whether this broker leads partitions of a topic, and can be sure of it."""
        partitions = [self._partitions.get(topic_id, index) for index in led]
        return bool(led) and not any(p is None or self._replicas.is_cut_off(p) for p in partitions)
