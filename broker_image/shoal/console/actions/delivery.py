"""Actions on the delivery of a share group: pause, resume, skip held keys, set a limit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from shoal.client import lag
from shoal.client.configs import ConfigChange
from shoal.client.errors import expect
from shoal.client.held_keys import HeldKey, held_keys
from shoal.console import payloads
from shoal.console.actions import groups
from shoal.console.actions.contract import (
    Field,
    Given,
    Mistake,
    Plan,
    Result,
    Scene,
    Table,
    hidden,
)
from shoal.console.figures import plural
from shoal.record.offset_set import OffsetSet

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.client.cluster import TopicPartition
    from shoal.client.configs import ConfigEntry
    from shoal.console.runs import Run

PAUSED = "share.delivery.paused"
#: Configs that stop delivery when they are reached, and what they limit.
LIMITS = {
    "share.partition.max.record.locks": "records in flight in one partition",
    "share.ordering.key.lookahead": "records that wait for their keys in one partition",
    "share.delay.max.records": "records that wait for their delay in one partition",
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

    async def form(self, _scene: Scene, given: Given) -> list[Field]:
        return hidden(given, "group")

    async def plan(self, scene: Scene, given: Given) -> Plan:
        group = await groups.share_group(scene.client, given)
        name, consumers = group.group_id, plural(len(group.members), "consumer")
        entry = await groups.config(scene.client, groups.resource(name), PAUSED)
        if (entry.value == "true") is self.paused:
            already = "paused already" if self.paused else "not paused"
            raise Mistake(f"Delivery to group {name} is {already}. Nothing is to do.")
        depth = lag.total(await groups.positions(scene.client, name))
        return Plan(
            self.title,
            self.sentences(name, consumers, None if depth is None else plural(depth, "record")),
            self.title,
            {"group": name},
            groups.back_to(name),
            entry.value,
            lambda client, _run: _set_paused(client, name, paused=self.paused),
        )

    @abstractmethod
    def sentences(self, group: str, consumers: str, waiting: str | None) -> tuple[str, ...]:
        """Return what will happen. `waiting` is the number of records that wait, if known."""


class Pause(_SetPaused):
    """Stop delivery to a group."""

    name, title, paused = "pause", "Pause delivery", True

    def sentences(self, group: str, consumers: str, waiting: str | None) -> tuple[str, ...]:
        return (
            f"Delivery to {consumers} of group {group} stops. They may still settle and renew the"
            " records that they hold.",
            f"{waiting or 'Its records'} that are not settled now, and all that arrive, wait until"
            " delivery is resumed. Locks still expire.",
        )


class Resume(_SetPaused):
    """Resume delivery to a group."""

    name, title, paused = "resume", "Resume delivery", False

    def sentences(self, group: str, consumers: str, waiting: str | None) -> tuple[str, ...]:
        return (
            f"{waiting or 'The records'} of group {group} may be delivered to {consumers} again.",
        )


async def _set_paused(client: Client, group: str, *, paused: bool) -> Result:
    change = ConfigChange(PAUSED, str(paused).lower())
    await groups.change(client, groups.resource(group), [change])
    return Result(f"{'Paused' if paused else 'Resumed'} delivery to group {group}.")


class Skip:
    """Release keys that dead-lettered records hold, as `shoal share skip` does."""

    name, title = "skip", "Skip dead letters that hold their keys"

    async def form(self, _scene: Scene, given: Given) -> list[Field]:
        return hidden(given, "group", "topic", "partition", "offset")

    async def plan(self, scene: Scene, given: Given) -> Plan:
        group = (await groups.share_group(scene.client, given)).group_id
        found = await groups.positions(scene.client, group)
        held = [one for one in await held_keys(scene.client, found) if _is_chosen(one, given)]
        if not held:
            raise Mistake(
                f"No such record of group {group} holds its key now. It was skipped or sent back."
            )
        ranges: dict[TopicPartition, OffsetSet] = {}
        for one in held:
            ranges.setdefault(one.where, OffsetSet()).add(one.offset)
        keys = [await _key(scene, one) for one in held[:SHOWN_MAX]]
        records = plural(len(held), "dead-lettered record")
        is_one = len(held) == 1
        return Plan(
            self.title,
            (
                f"The {'key' if is_one else 'keys'} of {records} of group {group}"
                f" {'is' if is_one else 'are'} released. Later records of"
                f" {'this key' if is_one else 'these keys'} are then delivered, without"
                f" {'this record' if is_one else 'these records'}.",
                "The letters stay in their dead-letter topic.",
            ),
            f"Skip {plural(len(held), 'record')}",
            {"group": group, **{str(w): str(some) for w, some in ranges.items()}},
            groups.back_to(group),
            tuple(sorted((one.where, one.offset) for one in held)),
            lambda client, _run: _free(client, group, ranges, len(held)),
            Table(
                "Records that are skipped",
                ("Topic", "Partition", "Offset", "Key"),
                tuple(
                    (one.where.topic, one.where.partition, one.offset, key)
                    for one, key in zip(held, keys, strict=False)
                ),
                max(0, len(held) - SHOWN_MAX),
            ),
        )


def _is_chosen(one: HeldKey, given: Given) -> bool:
    """Whether a form selects a record: all, those of a topic, or one by its place."""
    topic, partition, offset = (given.one(name) for name in ("topic", "partition", "offset"))
    return (
        topic in ("", one.where.topic)
        and partition in ("", str(one.where.partition))
        and offset in ("", str(one.offset))
    )


async def _key(scene: Scene, one: HeldKey) -> str:
    key = await scene.view.key(one.where.topic, one.key)
    return "–" if key is None else payloads.preview(key, 40)


async def _free(
    client: Client, group: str, chosen: dict[TopicPartition, OffsetSet], count: int
) -> Result:
    ranges = {where: [*found.ranges()] for where, found in chosen.items()}
    expect(await client.admin.share_groups.free(group, ranges))
    return Result(f"Skipped {plural(count, 'record')} of group {group}.")


class SetLimit:
    """Change a limit of a group."""

    name, title = "limit", "Change a limit"

    async def form(self, scene: Scene, given: Given) -> list[Field]:
        group = (await groups.share_group(scene.client, given)).group_id
        names = [given.one("config")] if given.one("config") in LIMITS else list(LIMITS)
        options, current = [], ""
        for name in names:
            entry = await groups.config(scene.client, groups.resource(group), name)
            current = current or entry.value or ""
            options.append((name, f"{name}: {entry.value}, {LIMITS[name]}"))
        chosen = Field("config", "Limit", "select", names[0], options=tuple(options))
        return [
            *hidden(given, "group"),
            chosen,
            Field(
                "value",
                "New value",
                "number",
                given.one("value", current),
                "Higher limits need more memory in the brokers.",
                is_required=True,
            ),
        ]

    async def plan(self, scene: Scene, given: Given) -> Plan:
        group = await groups.share_group(scene.client, given)
        name = given.required("config", "The limit")
        if name not in LIMITS:
            raise Mistake(f"{name!r:.100} is not among the limits: {', '.join(LIMITS)}.")
        value = str(given.number("value", "The new value", most=2**31 - 1))
        resource = groups.resource(group.group_id)
        entry = await groups.config(scene.client, resource, name)
        if entry.value == value:
            raise Mistake(f"{name} of group {group.group_id} is {value} already.")
        change = ConfigChange(name, value)
        await groups.check_change(scene.client, resource, [change])
        return _limit_plan(group.group_id, entry, value)


def _limit_plan(group: str, entry: ConfigEntry, value: str) -> Plan:
    async def run(client: Client, _run: Run) -> Result:
        await groups.change(client, groups.resource(group), [ConfigChange(entry.name, value)])
        return Result(f"{entry.name} of group {group} is now {value}. It was {entry.value}.")

    source = "the default" if entry.is_default else "set for the group"
    return Plan(
        SetLimit.title,
        (
            f"{entry.name} of group {group} changes from {entry.value} ({source}) to {value}.",
            f"It limits {LIMITS[entry.name]}. It takes effect at once.",
        ),
        f"Change it to {value}",
        {"group": group, "config": entry.name, "from": entry.value or "", "to": value},
        groups.back_to(group),
        entry.value,
        run,
    )
