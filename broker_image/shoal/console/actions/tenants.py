"""Actions on a tenant of a share group: pause, resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.admin.configs import AlterOperation, ConfigChange
from shoal.console.actions import groups
from shoal.console.actions.contract import (
    ActionContext,
    ActionError,
    ActionPlan,
    ActionResult,
    FormData,
    FormField,
    make_hidden_fields,
)
from shoal.console.sampling.tenants import FAIRNESS_BY, PAUSED, is_nameable, split_paused

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.console.actions.run import ActionRun


class _SetTenantPaused:
    """Add a tenant to `share.tenant.paused`, or remove it. The others stay as they are."""

    name: str
    title: str
    paused: bool
    #: What will happen to records of a tenant of a group.
    sentence: str

    async def build_fields(self, _context: ActionContext, form: FormData) -> list[FormField]:
        return make_hidden_fields(form, "group", "tenant")

    async def plan(self, context: ActionContext, form: FormData) -> ActionPlan:
        group = (await groups.find_share_group(context.client, form)).group_id
        tenant, resource = form.require("tenant", "The tenant"), groups.make_resource(group)
        if not is_nameable(tenant):
            raise ActionError(
                f"The config {PAUSED} cannot name tenant {tenant!r:.100}: a name in it has no comma"
                " and no blank at its ends."
            )
        by = (await groups.find_config(context.client, resource, FAIRNESS_BY)).value
        if self.paused and by == "none":
            raise ActionError(
                f"Group {group} does not tell tenants apart. Set {FAIRNESS_BY} to key or to"
                " header:NAME."
            )
        entry = await groups.find_config(context.client, resource, PAUSED)
        if (tenant in split_paused(entry.value or "")) is self.paused:
            already = "paused already" if self.paused else "not paused"
            raise ActionError(f"Tenant {tenant} of group {group} is {already}. Nothing is to do.")

        async def run(client: Client, _run: ActionRun) -> ActionResult:
            operation = AlterOperation.APPEND if self.paused else AlterOperation.SUBTRACT
            await groups.change(client, resource, [ConfigChange(PAUSED, tenant, operation)])
            done = "Paused" if self.paused else "Resumed"
            return ActionResult(f"{done} a tenant of group {group}.")

        return ActionPlan(
            self.title,
            (self.sentence.format(tenant=tenant, group=group),),
            self.title,
            # The config has the name, too, although it may be the key of records.
            {"group": group, "tenant": tenant},
            groups.make_back_link(group),
            (by, entry.value),
            run,
        )


class PauseTenant(_SetTenantPaused):
    """Stop delivery of a tenant's records."""

    name, title, paused = "pause-tenant", "Pause the tenant", True
    sentence = (
        "Records of tenant {tenant} are not delivered to group {group} until the tenant is resumed."
        " Consumers may still settle and renew those that they hold. Other tenants go on."
    )


class ResumeTenant(_SetTenantPaused):
    """Deliver a tenant's records again."""

    name, title, paused = "resume-tenant", "Resume the tenant", False
    sentence = "Records of tenant {tenant} may be delivered to group {group} again."
