"""Actions on the delivery of a share group: pause, resume, skip held keys, set a limit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from shoal.client.admin.configs import ConfigChange
from shoal.client.errors import expect
from shoal.client.queues import lag
from shoal.client.queues.held_keys import HeldKey, find_held_keys
from shoal.console.actions import groups
from shoal.console.actions.contract import (
    ActionContext,
    ActionError,
    ActionPlan,
    ActionResult,
    FormData,
    FormField,
    Table,
    make_hidden_fields,
)
from shoal.console.figures import format_plural
from shoal.console.reading import payloads
from shoal.record.offset_set import OffsetSet

if TYPE_CHECKING:
    from shoal.client.admin.configs import ConfigEntry
    from shoal.client.client import Client
    from shoal.client.net.cluster import TopicPartition
    from shoal.console.actions.run import ActionRun

PAUSED = "share.delivery.paused"
#: Configs that stop delivery when they are reached, and what they limit.
LIMITS = {
    "share.partition.max.record.locks": "records in flight in one partition",
    "share.ordering.key.lookahead": "records that wait for their keys in one partition",
    "share.delay.max.records": "records that wait for their delay in one partition",
    "share.fairness.lookahead.records": "records among which tenants are found in one partition",
    "share.ordering.key.dead.letter.max.held": "dead letters that hold their keys in one partition",
    "shoal.errors.deadletterqueue.flood.per.minute": "dead letters in a minute (0: no limit)",
}
#: Held keys that a plan lists.
SHOWN_MAX = 20


class _SetPaused(ABC):
    """Set or clear `share.delivery.paused` of a group."""

    name: str
    title: str
    paused: bool

    async def build_fields(self, _scene: ActionContext, form: FormData) -> list[FormField]:
        return make_hidden_fields(form, "group")

    async def plan(self, context: ActionContext, form: FormData) -> ActionPlan:
        group = await groups.find_share_group(context.client, form)
        name, consumers = group.group_id, format_plural(len(group.members), "consumer")
        entry = await groups.find_config(context.client, groups.make_resource(name), PAUSED)
        if (entry.value == "true") is self.paused:
            already = "paused already" if self.paused else "not paused"
            raise ActionError(f"Delivery to group {name} is {already}. Nothing is to do.")
        depth = lag.sum_lags(await groups.find_positions(context.client, name))
        return ActionPlan(
            self.title,
            self.make_sentences(
                name, consumers, None if depth is None else format_plural(depth, "record")
            ),
            self.title,
            {"group": name},
            groups.make_back_link(name),
            entry.value,
            lambda client, _run: _set_paused(client, name, paused=self.paused),
        )

    @abstractmethod
    def make_sentences(self, group: str, consumers: str, waiting: str | None) -> tuple[str, ...]:
        """Return what will happen. `waiting` is the number of records that wait, if known."""


class Pause(_SetPaused):
    """Stop delivery to a group."""

    name, title, paused = "pause", "Pause delivery", True

    def make_sentences(self, group: str, consumers: str, waiting: str | None) -> tuple[str, ...]:
        return (
            f"Delivery to {consumers} of group {group} stops. They may still settle and renew the"
            " records that they hold.",
            f"{waiting or 'Its records'} that are not settled now, and all that arrive, wait until"
            " delivery is resumed. Locks still expire.",
        )


class Resume(_SetPaused):
    """Resume delivery to a group."""

    name, title, paused = "resume", "Resume delivery", False

    def make_sentences(self, group: str, consumers: str, waiting: str | None) -> tuple[str, ...]:
        return (
            f"{waiting or 'The records'} of group {group} may be delivered to {consumers} again.",
        )


async def _set_paused(client: Client, group: str, *, paused: bool) -> ActionResult:
    change = ConfigChange(PAUSED, str(paused).lower())
    await groups.change(client, groups.make_resource(group), [change])
    return ActionResult(f"{'Paused' if paused else 'Resumed'} delivery to group {group}.")


class Skip:
    """Release keys that dead-lettered records hold, as `shoal share skip` does."""

    name, title = "skip", "Skip dead letters that hold their keys"

    async def build_fields(self, _scene: ActionContext, form: FormData) -> list[FormField]:
        return make_hidden_fields(form, "group", "topic", "partition", "offset")

    async def plan(self, context: ActionContext, form: FormData) -> ActionPlan:
        group = (await groups.find_share_group(context.client, form)).group_id
        group_positions = await groups.find_positions(context.client, group)
        selected = [
            held_key
            for held_key in await find_held_keys(context.client, group_positions)
            if _is_chosen(held_key, form)
        ]
        if not selected:
            raise ActionError(
                f"No such record of group {group} holds its key now. It was skipped or sent back."
            )
        ranges: dict[TopicPartition, OffsetSet] = {}
        for held_key in selected:
            ranges.setdefault(held_key.partition, OffsetSet()).add(held_key.offset)
        keys = [await _preview_key(context, held_key) for held_key in selected[:SHOWN_MAX]]
        records = format_plural(len(selected), "dead-lettered record")
        is_one = len(selected) == 1
        return ActionPlan(
            self.title,
            (
                f"The {'key' if is_one else 'keys'} of {records} of group {group}"
                f" {'is' if is_one else 'are'} released. Later records of"
                f" {'this key' if is_one else 'these keys'} are then delivered, without"
                f" {'this record' if is_one else 'these records'}.",
                "The letters stay in their dead-letter topic.",
            ),
            f"Skip {format_plural(len(selected), 'record')}",
            {"group": group, **{str(w): str(offsets) for w, offsets in ranges.items()}},
            groups.make_back_link(group),
            tuple(sorted((held_key.partition, held_key.offset) for held_key in selected)),
            lambda client, _run: _free(client, group, ranges, len(selected)),
            Table(
                "Records that are skipped",
                ("Topic", "Partition", "Offset", "Key"),
                tuple(
                    (held_key.partition.topic, held_key.partition.partition, held_key.offset, key)
                    for held_key, key in zip(selected, keys, strict=False)
                ),
                max(0, len(selected) - SHOWN_MAX),
            ),
        )


def _is_chosen(held_key: HeldKey, form: FormData) -> bool:
    """Whether a form selects a record: all, those of a topic, or one by its place."""
    topic, partition, offset = (form.get(name) for name in ("topic", "partition", "offset"))
    return (
        topic in ("", held_key.partition.topic)
        and partition in ("", str(held_key.partition.partition))
        and offset in ("", str(held_key.offset))
    )


async def _preview_key(context: ActionContext, held_key: HeldKey) -> str:
    key = await context.view.prepare_key(held_key.partition.topic, held_key.key)
    return "–" if key is None else payloads.preview(key, 40)


async def _free(
    client: Client, group: str, chosen: dict[TopicPartition, OffsetSet], count: int
) -> ActionResult:
    ranges = {partition: [*offsets.iter_ranges()] for partition, offsets in chosen.items()}
    expect(await client.admin.share_groups.free(group, ranges))
    return ActionResult(f"Skipped {format_plural(count, 'record')} of group {group}.")


class SetLimit:
    """Change a limit of a group."""

    name, title = "limit", "Change a limit"

    async def build_fields(self, context: ActionContext, form: FormData) -> list[FormField]:
        group = (await groups.find_share_group(context.client, form)).group_id
        names = [form.get("config")] if form.get("config") in LIMITS else list(LIMITS)
        options, current = [], ""
        for name in names:
            entry = await groups.find_config(context.client, groups.make_resource(group), name)
            current = current or entry.value or ""
            options.append((name, f"{name}: {entry.value}, {LIMITS[name]}"))
        chosen = FormField("config", "Limit", "select", names[0], options=tuple(options))
        return [
            *make_hidden_fields(form, "group"),
            chosen,
            FormField(
                "value",
                "New value",
                "number",
                form.get("value", current),
                "Higher limits need more memory in the brokers.",
                is_required=True,
            ),
        ]

    async def plan(self, context: ActionContext, form: FormData) -> ActionPlan:
        group = await groups.find_share_group(context.client, form)
        name = form.require("config", "The limit")
        if name not in LIMITS:
            raise ActionError(f"{name!r:.100} is not among the limits: {', '.join(LIMITS)}.")
        value = str(form.get_number("value", "The new value", most=2**31 - 1))
        resource = groups.make_resource(group.group_id)
        entry = await groups.find_config(context.client, resource, name)
        if entry.value == value:
            raise ActionError(f"{name} of group {group.group_id} is {value} already.")
        change = ConfigChange(name, value)
        await groups.check_change(context.client, resource, [change])
        return _make_limit_plan(group.group_id, entry, value)


def _make_limit_plan(group: str, entry: ConfigEntry, value: str) -> ActionPlan:
    async def run(client: Client, _run: ActionRun) -> ActionResult:
        await groups.change(client, groups.make_resource(group), [ConfigChange(entry.name, value)])
        return ActionResult(f"{entry.name} of group {group} is now {value}. It was {entry.value}.")

    source = "the default" if entry.is_default else "set for the group"
    return ActionPlan(
        SetLimit.title,
        (
            f"{entry.name} of group {group} changes from {entry.value} ({source}) to {value}.",
            f"It limits {LIMITS[entry.name]}. It takes effect at once.",
        ),
        f"Change it to {value}",
        {"group": group, "config": entry.name, "from": entry.value or "", "to": value},
        groups.make_back_link(group),
        entry.value,
        run,
    )
