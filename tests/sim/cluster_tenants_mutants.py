"""Groups that are fair between tenants with one rule broken, each by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.coordinator.share import selection
from shoal.coordinator.share.fair_queue import FairQueue, Tenant
from shoal.coordinator.share.tenant_limits import TenantLedger, TenantUse
from shoal.server.share.group_settings import ShareGroupSettings

if TYPE_CHECKING:
    import pytest
    from shoal.coordinator.share.records import ShareKey


def grants_limits_by_partition(patch: pytest.MonkeyPatch) -> None:
    """Each share partition of a broker counts for itself what its tenants hold."""
    real = ShareGroupSettings.get_tenant_ledger
    ledgers: dict[tuple[ShareGroupSettings, int], Any] = {}

    def get(self: ShareGroupSettings, key: ShareKey, settings: Any) -> TenantLedger:
        kept, self._ledgers = self._ledgers, ledgers.setdefault((self, key.partition), {})
        try:
            return real(self, key, settings)
        finally:
            self._ledgers = kept

    patch.setattr(ShareGroupSettings, "get_tenant_ledger", get)


def grants_limits_by_broker(patch: pytest.MonkeyPatch) -> None:
    """Each broker grants the whole limit."""
    real = TenantLedger.configure
    patch.setattr(
        TenantLedger,
        "configure",
        lambda self, policy, led, partitions, now_ms: real(self, policy, 1, 1, now_ms),
    )


def exceeds_a_tenants_limit_by_one(patch: pytest.MonkeyPatch) -> None:
    """A tenant at its limit gets one record more."""
    real = TenantUse.configure

    def configure(self: TenantUse, *arguments: Any) -> None:
        real(self, *arguments)
        self.limit, self.part = self.limit + 1, self.part + 1
        self._apply_loans()

    patch.setattr(TenantUse, "configure", configure)


def fills_buckets_twice_as_fast(patch: pytest.MonkeyPatch) -> None:
    """A tenant gets two times its rate."""
    real = TenantUse.configure

    def configure(self: TenantUse, *arguments: Any) -> None:
        real(self, *arguments)
        self.part_per_ms *= 2
        self._apply_loans()

    patch.setattr(TenantUse, "configure", configure)


def forgets_who_waits_for_a_limit(patch: pytest.MonkeyPatch) -> None:
    """A tenant at its limit does not go on when it gives a record back."""

    def give_back(self: TenantUse) -> None:
        self.in_flight -= 1

    patch.setattr(TenantUse, "give_back", give_back)


def serves_tenants_by_the_log(patch: pytest.MonkeyPatch) -> None:
    """The next record is the first of the log, of whatever tenant."""

    class LogOrder(FairQueue):
        __slots__ = ()

        def _find_turn(self) -> Tenant | None:
            waiting = [
                tenant
                for tenant in self.tenants.values()
                if tenant.entries and self.may_take(tenant.entries[0])
            ]
            return min(waiting, key=lambda tenant: tenant.entries[0], default=None)

    patch.setattr(selection, "make_fair_queue", LogOrder)


TENANTS_MUTANTS = (
    grants_limits_by_partition,
    grants_limits_by_broker,
    exceeds_a_tenants_limit_by_one,
    fills_buckets_twice_as_fast,
    forgets_who_waits_for_a_limit,
    serves_tenants_by_the_log,
)
