"""ShareGroups: group configs kept as declared, positions, and lag and members in the status.

`reconcile` brings resources to their specs; `watch` looks at lag, often for groups that somebody
scales by and seldom for the others. A group that two ShareGroups claim belongs to the older one.

A share partition has no position before its first member comes, and so no lag, and a workload at
zero would never start. The positions in `spec.topics` are therefore set as soon as the topics are
there: a ShareGroup begins when it is applied, at the place that `spec.startOffset` names.
"""

from __future__ import annotations

import asyncio
import datetime
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shoal.client.errors import ClientError, KafkaError
from shoal.protocol.errors import ErrorCode

from shoal_operator import clock, metrics
from shoal_operator.broker_states import EARLIEST, LATEST, GroupState, Partition, StartSpec
from shoal_operator.brokers import Brokers
from shoal_operator.conditions import Verdict, is_seen
from shoal_operator.group_metrics import ENABLE, ORDERING, dead_letter_topic
from shoal_operator.kube import Kube, now
from shoal_operator.model import groups as model
from shoal_operator.model import names
from shoal_operator.model.names import Manifest
from shoal_operator.quantities import duration_ms
from shoal_operator.redelivery_rates import RedeliveryRates
from shoal_operator.statuses import Statuses
from shoal_operator.store import Store, is_older

KIND = "ShareGroup"
WRITES_MAX = 16
#: How often `watch` is called for groups that ShareConsumers scale by ...
WATCH_SECONDS = 2.0
#: ... and each how many of these calls it looks at all others as well: more seldom, the more.
WATCH_ALL_EVERY = 2
WATCH_GROUPS = 100
#: A lag that moves is written to a status that often.
STATUS_SECONDS = 5.0
PARTITIONS_IN_STATUS_MAX = 100
#: A lag that is older counts as not known; it is looked at every few seconds.
KNOWN_MS_MAX = 20_000
#: After this time a group's metrics go. Groups without a ShareConsumer are looked at less often.
FORGET_MS = 300_000

Outcome = tuple[Manifest, Verdict, dict[str, Any]]


def claims(resources: Iterable[Manifest]) -> dict[str, Manifest]:
    """Which resource a group belongs to: the oldest that names it and is not being deleted."""
    winners: dict[str, Manifest] = {}
    for resource in resources:
        if resource["metadata"].get("deletionTimestamp"):
            continue
        held = winners.get(model.group_id(resource))
        if held is None or is_older(resource, held):
            winners[model.group_id(resource)] = resource
    return winners


def decide_config(resource: Manifest, have: Mapping[str, str]) -> dict[str, str | None]:
    """The group configs to set, or to unset with None, so that the group is as declared."""
    want = model.config(resource["spec"])
    changed: dict[str, str | None] = {k: v for k, v in want.items() if have.get(k) != v}
    applied = resource.get("status", {}).get("appliedConfig", [])
    return changed | {k: None for k in applied if k not in want and k in have}


def reset_due(resource: Manifest) -> Mapping[str, Any] | None:
    """The reset that the spec asks for, unless it has been applied."""
    reset: Mapping[str, Any] | None = resource["spec"].get("reset")
    last = resource.get("status", {}).get("lastReset", {})
    return None if reset is None or last.get("id") == reset["id"] else reset


def resume(
    resource: Manifest, reset: Mapping[str, Any], positions: Mapping[Partition, int]
) -> list[dict[str, Any]] | None:
    """The moves of a reset that was begun and may not have been made: none if one was seen, since
    the group may have gone on from there; None for a reset that was not begun."""
    pending = resource.get("status", {}).get("pendingReset") or {}
    if pending.get("id") != reset["id"]:
        return None
    rows: list[dict[str, Any]] = pending.get("offsets", [])
    untouched = all(positions.get((r["topic"], r["partition"]), -1) == r["from"] for r in rows)
    return rows if untouched else []


def first_positions(
    spec: Mapping[str, Any], state: GroupState, topics: Mapping[str, int], now_ms: int
) -> dict[Partition, StartSpec]:
    """Where share partitions without a position shall begin.

    `topics` are numbers of partitions. Partitions that a known topic has grown begin at their
    first record, since all that is in them came after the group.
    """
    if state.members or state.type not in ("", "share"):
        return {}
    start = {"Latest": LATEST, "Earliest": EARLIEST}.get(spec["startOffset"])
    if start is None:
        start = StartSpec(now_ms - duration_ms(spec["startOffsetDuration"]))
    have = {(p.topic, p.partition) for p in state.partitions if p.start_offset >= 0}
    known = {topic for topic, _ in have}
    wanted = [(topic, index) for topic, count in sorted(topics.items()) for index in range(count)]
    return {p: EARLIEST if p[0] in known else start for p in wanted if p not in have}


class Groups:
    """The reconciler of all ShareGroups of one cluster; `states` is what the brokers said last.

    `scaled` tells which groups, by the resource's name, somebody scales by; `moved` is called
    with the names of those whose state is new.
    """

    def __init__(
        self,
        kube: Kube,
        store: Store,
        brokers: Brokers,
        namespace: str,
        cluster: str,
        *,
        scaled: Callable[[], set[str]],
        moved: Callable[[list[str]], None],
    ) -> None:
        self._kube, self._store, self._brokers = kube, store, brokers
        self._namespace, self._cluster = namespace, cluster
        self._scaled, self._moved = scaled, moved
        self._statuses = Statuses(kube, store)
        self._watched = 0
        self._redelivery_rates = RedeliveryRates()
        self.states: dict[str, GroupState] = {}
        self._known_ms: dict[str, int] = {}

    def list_names(self) -> list[str]:
        return [o["metadata"]["name"] for o in self._everyone()]

    def _everyone(self) -> list[Manifest]:
        return self._store.of_cluster(KIND, self._namespace, self._cluster)

    async def reconcile(self, wanted: list[str]) -> float | None:
        """Bring these resources to their specs; seconds until the next look, if one is needed."""
        everyone = self._everyone()
        mine = [o for o in everyone if o["metadata"]["name"] in set(wanted)]
        leaving = [o for o in mine if o["metadata"].get("deletionTimestamp")]
        staying = [o for o in mine if not o["metadata"].get("deletionTimestamp")]
        winners = claims(everyone)
        cluster = self._store.get("QueueCluster", self._namespace, self._cluster)
        if cluster is None or cluster["metadata"].get("deletionTimestamp"):
            await self._release(leaving)
            missing = Verdict.waiting(
                "ClusterNotFound",
                f"There is no QueueCluster {self._cluster!r} in this namespace (yet).",
            )
            await self._write([(o, missing, {}) for o in staying])
            return None
        try:
            stuck = await self._delete(leaving, winners)
            outcomes = await self._bring(staying, winners)
        except ClientError as error:
            down = Verdict.waiting("BrokersUnreachable", f"No broker could be asked: {error}")
            await self._write([(o, down, {}) for o in staying])
            raise
        await self._write(outcomes)
        # Consumers repeat what keeps their group from working.
        self._moved([resource["metadata"]["name"] for resource, _, _ in outcomes])
        settled = all(not v.progressing for _, v, _ in outcomes)
        return None if settled and not stuck else 2.0

    async def watch(self, _: list[str]) -> float | None:
        """Look at lag and members, and tell those who scale by it."""
        winners = claims(self._everyone())
        all_of_them = self._watched % (WATCH_ALL_EVERY + len(winners) // WATCH_GROUPS) == 0
        self._watched += 1
        scaled = self._scaled()
        chosen = {
            g: o for g, o in winners.items() if all_of_them or o["metadata"]["name"] in scaled
        }
        cluster = self._store.get("QueueCluster", self._namespace, self._cluster)
        if not chosen or cluster is None or cluster["spec"].get("paused"):
            self._forget_unknown(winners)
            return None
        try:
            await self._look(sorted(chosen))
        finally:
            self._forget_unknown(winners)
            # Also after a failure: what is not known any more is not scaled by.
            self._moved([o["metadata"]["name"] for o in chosen.values()])
        for group, resource in chosen.items():
            if is_seen(resource):
                await self._statuses.update_measurements(
                    resource, self._fields(resource, self.states[group]), STATUS_SECONDS
                )
        return None

    async def _look(self, groups: list[str], *, of_any_type: bool = False) -> None:
        now_ms = clock.now_ms()
        states = await self._brokers.share_groups(groups, of_any_type=of_any_type)
        for group, state in states.items():
            self._redelivery_rates.seen(group, state.redelivered, now_ms)
            if state.known or group not in self.states:
                self.states[group] = state
            if state.known:
                self._known_ms[group] = now_ms

    def _forget_unknown(self, groups: Mapping[str, Manifest]) -> None:
        """Drop the metrics of groups whose lag is too old for an alert."""
        for group, resource in groups.items():
            if self._age_ms(group) >= FORGET_MS:
                meta = resource["metadata"]
                metrics.forget_group(meta["namespace"], meta["name"])

    def known(self, group: str) -> GroupState | None:
        """Return a group's state if its lag is at most `KNOWN_MS_MAX` old, else None."""
        return self.states.get(group) if self._age_ms(group) < KNOWN_MS_MAX else None

    def _age_ms(self, group: str) -> float:
        """Return the age of the group's lag in milliseconds."""
        return clock.now_ms() - self._known_ms.get(group, -math.inf)

    async def _bring(
        self, resources: list[Manifest], winners: dict[str, Manifest]
    ) -> list[Outcome]:
        owned = {model.group_id(o): o for o in resources if winners[model.group_id(o)] is o}
        have = await self._brokers.describe_group_configs(sorted(owned))
        changes = {g: c for g, o in owned.items() if (c := decide_config(o, have.get(g, {})))}
        failures, warnings = await self._alter(changes)
        warnings |= await self._create_dead_letter_topics(owned)
        await self._look(sorted(owned), of_any_type=True)
        waiting = await self._begin(owned)
        outcomes = []
        for resource in resources:
            group = model.group_id(resource)
            if winners[group] is not resource:
                said = Verdict.refused(
                    "GroupClaimed",
                    f"The group {group!r} belongs to the older ShareGroup "
                    f"{winners[group]['metadata']['name']!r}; delete one of the two.",
                )
                outcomes.append((resource, said, {"groupId": group}))
                continue
            _, verdict, fields = await self._outcome(
                resource, failures.get(group), waiting.get(group)
            )
            if warning := warnings.get(group) or self.states[group].numbers.warning():
                verdict = verdict.warned(warning)
            outcomes.append((resource, verdict, fields))
        return outcomes

    async def _alter(
        self, changes: Mapping[str, Mapping[str, str | None]]
    ) -> tuple[dict[str, KafkaError], dict[str, tuple[str, str]]]:
        """Set group configs. A broker that knows no order by key gets all others; the warnings
        tell. Without them, the refusals, by group."""
        failures = await self._brokers.alter_group_configs(changes) if changes else {}
        without = {
            group: {k: v for k, v in changes[group].items() if k != ORDERING}
            for group, error in failures.items()
            if changes[group].get(ORDERING) is not None and ORDERING in str(error)
        }
        warnings = dict.fromkeys(
            without,
            (
                "OrderingUnsupported",
                f"The brokers do not know {ORDERING}: records are delivered without order by key."
                " Use a newer version of the brokers, or set ordering: none.",
            ),
        )
        rest = {group: change for group, change in without.items() if change}
        left = await self._brokers.alter_group_configs(rest) if rest else {}
        return {g: e for g, e in failures.items() if g not in without} | left, warnings

    async def _create_dead_letter_topics(
        self, owned: Mapping[str, Manifest]
    ) -> dict[str, tuple[str, str]]:
        """Create the dead-letter topics that are asked for; warnings by group."""
        asked = {g: t for g, o in owned.items() if (t := dead_letter_topic(o["spec"]))}
        if not asked:
            return {}
        have = await self._brokers.describe_topics(sorted({name for name, _ in asked.values()}))
        absent = {name: spec for name, spec in asked.values() if name not in have}
        failures = await self._brokers.create_topics(absent) if absent else {}
        warnings = {}
        for group, (name, _) in asked.items():
            if name in failures:
                text = f"The dead-letter topic {name!r} was not created: {failures[name]}."
                warnings[group] = ("DeadLetterTopicRefused", text)
            elif name in have and have[name].config.get(ENABLE) != "true":
                text = (
                    f"The topic {name!r} takes no dead letters: set {ENABLE}=true on it, or name"
                    " another one."
                )
                warnings[group] = ("DeadLetterTopicForbidden", text)
        return warnings

    async def _begin(self, owned: Mapping[str, Manifest]) -> dict[str, Verdict]:
        """Set positions where there are none; what groups still wait for, by group."""
        topics = sorted({t for o in owned.values() for t in o["spec"].get("topics", [])})
        if not topics:
            return {}
        sizes = await self._brokers.partitions_of(topics)
        gate = asyncio.Semaphore(WRITES_MAX)
        waiting: dict[str, Verdict] = {}

        async def one(group: str, resource: Manifest) -> None:
            mine = resource["spec"].get("topics", [])
            absent = [t for t in mine if t not in sizes]
            if absent:
                waiting[group] = Verdict.waiting(
                    "TopicNotFound",
                    f"There is no topic {', '.join(absent)} (yet): apply a QueueTopic of that name,"
                    " or correct spec.topics.",
                )
            there = {t: sizes[t] for t in mine if t in sizes}
            state = self.states[group]
            starts = first_positions(resource["spec"], state, there, clock.epoch_ms())
            if not starts:
                return
            async with gate:
                try:
                    if not state.type:
                        await self._brokers.create_share_group(group, sorted(there))
                    offsets = await self._brokers.resolve_offsets(starts)
                    await self._brokers.set_share_offsets(group, offsets)
                except KafkaError as error:
                    # Somebody joined in between: the members begin by themselves.
                    if error.code is not ErrorCode.non_empty_group:
                        waiting[group] = Verdict.waiting(
                            "PositionsRefused", f"The brokers refused the first positions: {error}."
                        )

        await asyncio.gather(*(one(g, o) for g, o in owned.items()))
        if any(o["spec"].get("topics") for o in owned.values()):
            fresh = [g for g in owned if not self.states[g].partitions]
            if fresh:
                await self._look(sorted(fresh), of_any_type=True)
        return waiting

    async def _outcome(
        self, resource: Manifest, error: KafkaError | None, waiting: Verdict | None
    ) -> Outcome:
        state = self.states[model.group_id(resource)]
        fields = {"groupId": state.group, **self._fields(resource, state)}
        if error:
            verdict = Verdict(
                False,
                "ConfigRefused",
                f"The brokers refused the group's settings: {error}.",
                progressing=error.retriable,
                degraded=not error.retriable,
            )
            return resource, verdict, fields
        if state.type not in ("", "share"):
            wrong = Verdict.refused(
                "OtherGroupType",
                f"{state.group!r} is a {state.type} group; choose another groupId or delete it.",
            )
            return resource, wrong, fields
        fields["appliedConfig"] = sorted(model.config(resource["spec"]))
        verdict = waiting or Verdict.fine("The group's settings are as the spec asks.")
        reset = reset_due(resource)
        if reset and not waiting:
            verdict, done = await self._reset(resource, reset, state)
            fields |= done
        return resource, verdict, fields

    async def _reset(
        self, resource: Manifest, reset: Mapping[str, Any], state: GroupState
    ) -> tuple[Verdict, dict[str, Any]]:
        if state.members:
            waiting = Verdict(
                True,
                "ResetWaits",
                f"The reset {reset['id']!r} waits until the group's {state.members} members left.",
                progressing=True,
            )
            return waiting, {}
        topics = reset.get("topics") or resource["spec"].get("topics", [])
        if not topics:
            return Verdict.refused(
                "ResetNeedsTopics", "spec.reset.topics and spec.topics are both empty; name topics."
            ), {}
        try:
            await self._move(resource, reset, topics, state)
        except KafkaError as error:
            verdict = Verdict(
                True,
                "ResetRefused",
                f"The reset {reset['id']!r} was refused: {error}.",
                progressing=True,
                warning=("ResetRefused", str(error)),
            )
            return verdict, {}
        await self._kube.event(
            resource,
            "OffsetsReset",
            f"Reset {reset['id']}: {reset['to']} of {', '.join(topics)}.",
            once=reset["id"],
        )
        done = {"lastReset": {"id": reset["id"], "time": now()}, "pendingReset": None}
        return Verdict.fine("The group's settings are as the spec asks."), done

    async def _move(
        self, resource: Manifest, reset: Mapping[str, Any], topics: list[str], state: GroupState
    ) -> None:
        """Move the positions, unless that has been done before an interruption.

        Where they go is in the status before they go there. Raises `KafkaError`.
        """
        before = {(p.topic, p.partition): p.start_offset for p in state.partitions}
        rows = resume(resource, reset, before)
        if rows is None:
            sizes = await self._brokers.partitions_of(topics)
            starts = {(t, i): _place(reset) for t, count in sizes.items() for i in range(count)}
            rows = [
                {"topic": p[0], "partition": p[1], "from": before.get(p, -1), "to": to}
                for p, to in sorted((await self._brokers.resolve_offsets(starts)).items())
            ]
            pending = {"id": reset["id"], "offsets": rows}
            await self._statuses.merge(resource, {"pendingReset": pending})
        if not rows:
            return
        if not state.type:
            await self._brokers.create_share_group(state.group, topics)
        offsets = {(r["topic"], r["partition"]): r["to"] for r in rows}
        await self._brokers.set_share_offsets(state.group, offsets)

    def _fields(self, resource: Manifest, state: GroupState) -> dict[str, Any]:
        meta = resource["metadata"]
        of_group = (meta["namespace"], meta["name"])
        metrics.LAG.labels(*of_group).set(state.lag)
        metrics.AVAILABLE.labels(*of_group).set(state.available)
        metrics.IN_FLIGHT.labels(*of_group).set(max(0, state.in_flight))
        fields: dict[str, Any] = {
            "state": state.state,
            "members": state.members,
            "lag": state.lag,
            "partitions": [
                {
                    "topic": p.topic,
                    "partition": p.partition,
                    "startOffset": p.start_offset,
                    "lag": max(0, p.lag),
                }
                for p in state.partitions[:PARTITIONS_IN_STATUS_MAX]
            ],
        }
        if state.in_flight >= 0:
            fields["inFlight"] = state.in_flight
            fields["available"] = state.available
            fields |= state.numbers.status()
            fields["nextDueTime"] = due_time(state)
        rate = self._redelivery_rates.per_minute(state.group, state.redelivered, clock.now_ms())
        if rate is not None:
            fields["redeliveriesPerMinute"] = rate
        return fields

    async def _write(self, outcomes: list[Outcome]) -> None:
        gate = asyncio.Semaphore(WRITES_MAX)

        async def one(resource: Manifest, verdict: Verdict, fields: dict[str, Any]) -> None:
            async with gate:
                await self._finalizer(resource)
                await self._statuses.write(resource, verdict, fields)

        await asyncio.gather(*(one(*outcome) for outcome in outcomes))

    async def _finalizer(self, resource: Manifest) -> None:
        wants = resource["spec"].get("deletionPolicy") == "Delete"
        finalizers = resource["metadata"].get("finalizers", [])
        if wants == (names.FINALIZER in finalizers):
            return
        kept = [f for f in finalizers if f != names.FINALIZER]
        kept += [names.FINALIZER] if wants else []
        await self._kube.merge(resource, {"metadata": {"finalizers": kept}})

    async def _delete(self, leaving: list[Manifest], winners: dict[str, Manifest]) -> bool:
        """Delete the groups of those that ask for it; whether some have to wait."""
        held = [o for o in leaving if names.FINALIZER in o["metadata"].get("finalizers", [])]
        doomed = sorted({g for o in held if (g := model.group_id(o)) not in winners})
        failures = await self._brokers.delete_groups(doomed) if doomed else {}
        stuck = [o for o in held if model.group_id(o) in failures]
        for resource in stuck:
            text = f"The group is deleted once it can be: {failures[model.group_id(resource)]}."
            await self._statuses.write(resource, Verdict.waiting("DeletionWaits", text))
        await self._release([o for o in held if o not in stuck])
        return bool(stuck)

    async def _release(self, leaving: list[Manifest]) -> None:
        for resource in leaving:
            finalizers = resource["metadata"].get("finalizers", [])
            kept = [f for f in finalizers if f != names.FINALIZER]
            if len(kept) != len(finalizers):
                await self._kube.merge(resource, {"metadata": {"finalizers": kept}})


def due_time(state: GroupState) -> str | None:
    """Return when the next record that is held back by time is due (RFC 3339), None without."""
    due_s = state.numbers.next_due_s
    if not due_s:
        return None
    when = datetime.datetime.fromtimestamp(math.ceil(due_s), datetime.UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def _place(reset: Mapping[str, Any]) -> int | StartSpec:
    """Where a reset goes to."""
    if reset["to"] == "Offset":
        return int(reset["offset"])
    if reset["to"] == "Time":
        return StartSpec(int(datetime.datetime.fromisoformat(reset["time"]).timestamp() * 1000))
    return EARLIEST if reset["to"] == "Earliest" else LATEST
