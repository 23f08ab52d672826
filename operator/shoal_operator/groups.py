"""ShareGroups: group configs, dead-letter topics, start offsets and resets, deletion."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from shoal.client.errors import KafkaError
from shoal.protocol.errors import ErrorCode

from shoal_operator import clock, config_changes, drift, failures
from shoal_operator.batch_reconciler import WRITES_MAX, BatchReconciler, Outcome, live_cluster
from shoal_operator.conditions import Verdict
from shoal_operator.group_offsets import first_offsets, pending_reset, reset_target, resume
from shoal_operator.kube import now
from shoal_operator.model import external
from shoal_operator.model import groups as model

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shoal_operator.broker_states import GroupState
    from shoal_operator.brokers import Brokers
    from shoal_operator.config_changes import Refused
    from shoal_operator.group_monitor import GroupMonitor
    from shoal_operator.kube import Kube
    from shoal_operator.model.names import Manifest
    from shoal_operator.store import Store

KIND = "ShareGroup"


def decide_config(
    resource: Manifest, have: Mapping[str, str], known: Collection[str] | None = None
) -> dict[str, str | None]:
    """Return the group configs to set, or to unset with None. Pure.

    `known` are the configs that the brokers of an external cluster have.
    """
    want = model.config(resource["spec"])
    if known is not None:
        want, _ = model.supported(resource["spec"], known)
    changed: dict[str, str | None] = {k: v for k, v in want.items() if have.get(k) != v}
    applied = resource.get("status", {}).get("appliedConfig", [])
    return changed | {k: None for k in applied if k not in want and k in have}


def unsupported(resource: Manifest, known: Collection[str]) -> Verdict | None:
    """Return the verdict on a ShareGroup whose fields the brokers do not support, else None."""
    _, lacking = model.supported(resource["spec"], known)
    if not lacking:
        return None
    fields = ", ".join(f"spec.{field}" for field in lacking)
    configs = ", ".join(name for of_field in lacking.values() for name in of_field)
    return Verdict.refused(
        "FieldNotSupported",
        f"{fields}: the brokers of the external cluster do not have the group config {configs}. "
        "Remove the field, or use a cluster of Shoal's brokers.",
    )


async def alter_configs(
    brokers: Brokers, changes: Mapping[str, Mapping[str, str | None]]
) -> tuple[Refused, dict[str, tuple[str, str]]]:
    """Set group configs; return the errors by group and config, and the warnings by group. Raises
    `ClientError`.

    Brokers of a version without `share.ordering` get all other configs, with a warning.
    """
    refused = await config_changes.send(brokers.alter_group_configs, changes)
    unordered = [
        group
        for group, errors in refused.items()
        if changes[group].get(model.ORDERING) is not None
        and model.ORDERING in str(errors.get(model.ORDERING, ""))
    ]
    text = (
        f"The brokers do not support {model.ORDERING}: records are delivered without order by key. "
        "Upgrade the brokers, or set ordering to none."
    )
    for group in unordered:
        del refused[group][model.ORDERING]
    refused = {group: errors for group, errors in refused.items() if errors}
    return refused, dict.fromkeys(unordered, ("OrderingUnsupported", text))


def refusal(errors: Mapping[str, KafkaError]) -> Verdict:
    """Return the verdict on a group of which the brokers refused these configs."""
    if any(error.retriable for error in errors.values()):
        text = f"The brokers refused the group's configs: {next(iter(errors.values()))}."
        return Verdict.waiting("ConfigRefused", text)
    by_field = {model.field_of(config): error for config, error in sorted(errors.items())}
    causes = "; ".join(f"spec.{field}: {error}" for field, error in by_field.items())
    text = f"The brokers refused {causes}. Change the spec. The other fields are in effect."
    return Verdict.refused("ConfigRefused", text)


class Groups(BatchReconciler):
    """The reconciler of all ShareGroups of one cluster; `monitor` reads their states."""

    kind, noun, retry_seconds = KIND, "group", 2.0

    def __init__(
        self,
        kube: Kube,
        store: Store,
        brokers: Brokers,
        namespace: str,
        cluster: str,
        *,
        monitor: GroupMonitor,
    ) -> None:
        super().__init__(kube, store, brokers, namespace, cluster)
        self._monitor = monitor

    def name_of(self, resource: Manifest) -> str:
        """Return the group id."""
        return model.group_id(resource)

    def deletes(self, resource: Manifest) -> bool:
        """Return whether the deletion policy asks for it."""
        return bool(resource["spec"].get("deletionPolicy") == "Delete")

    def conflict(self, resource: Manifest, owner: Manifest) -> Outcome:
        """Return the outcome for a ShareGroup whose group an older ShareGroup names."""
        group = model.group_id(resource)
        verdict = Verdict.refused(
            "GroupClaimed",
            f"Group {group!r} belongs to the older ShareGroup {owner['metadata']['name']!r}. "
            "Delete one of the two.",
        )
        return Outcome(resource, verdict, {"groupId": group})

    async def delete(self, wanted: Sequence[str]) -> Mapping[str, KafkaError]:
        """Delete empty groups; return the errors by group id."""
        return await self._brokers.delete_groups(wanted)

    async def apply(self, owned: Sequence[Manifest]) -> list[Outcome]:
        """Set configs and start offsets, create dead-letter topics. Raises `ClientError`."""
        every = {model.group_id(o): o for o in owned}
        known = await self._known_configs(every)
        refused = {
            group: verdict
            for group, resource in every.items()
            if known is not None and (verdict := unsupported(resource, known))
        }
        by_id = {group: resource for group, resource in every.items() if group not in refused}
        outcomes = [
            Outcome(every[group], verdict, {"groupId": group}) for group, verdict in refused.items()
        ]
        if not by_id:
            return outcomes
        have = await self._brokers.describe_group_configs(sorted(by_id))
        changes = {
            g: c for g, o in by_id.items() if (c := decide_config(o, have.get(g, {}), known))
        }
        refused_configs, warnings = await alter_configs(self._brokers, changes)
        for group, change in changes.items():
            errors = refused_configs.get(group, {})
            done = {key: value for key, value in change.items() if key not in errors}
            if text := drift.describe_reverted(by_id[group], done, have.get(group, {})):
                await self._kube.event(by_id[group], drift.REVERTED, text)
        warnings |= await self._create_dead_letter_topics(by_id)
        await self._monitor.read(sorted(by_id), of_any_type=True)
        waiting = await self._set_first_offsets(by_id)
        for group, resource in by_id.items():
            errors = refused_configs.get(group, {})
            verdict, fields = await self._outcome(resource, errors, waiting.get(group))
            if warning := warnings.get(group) or self._state(group).metrics.warning():
                verdict = verdict.warned(warning)
            outcomes.append(Outcome(resource, verdict, fields))
        return outcomes

    def reconciled(self, outcomes: Sequence[Outcome]) -> None:
        """Notify the ShareConsumers, whose statuses repeat errors of their group."""
        self._monitor.notify(outcome.resource for outcome in outcomes)

    async def _known_configs(self, groups: Collection[str]) -> frozenset[str] | None:
        """Return the group configs that an external cluster has; None for other clusters."""
        cluster = live_cluster(self._store, self._namespace, self._cluster)
        if not groups or cluster is None or not external.is_external(cluster):
            return None
        return await self._brokers.group_config_names(min(groups))

    def _state(self, group: str) -> GroupState:
        return self._monitor.states[group]

    async def _create_dead_letter_topics(
        self, owned: Mapping[str, Manifest]
    ) -> dict[str, tuple[str, str]]:
        """Create the dead-letter topics that specs ask for; return warnings by group."""
        wanted = {g: t for g, o in owned.items() if (t := model.dead_letter_topic(o["spec"]))}
        if not wanted:
            return {}
        have = await self._brokers.describe_topics(sorted({name for name, _ in wanted.values()}))
        absent = {name: spec for name, spec in wanted.values() if name not in have}
        errors = await self._brokers.create_topics(absent) if absent else {}
        setting, warnings = model.DEAD_LETTERS_ENABLED, {}
        for group, (name, _) in wanted.items():
            if name in errors:
                text = f"The brokers refused the dead-letter topic {name!r}: {errors[name]}."
                warnings[group] = ("DeadLetterTopicRefused", text)
            elif name in have and have[name].config.get(setting) != "true":
                text = (
                    f"Topic {name!r} does not allow dead letters. Set {setting}=true on it, or "
                    "name another topic."
                )
                warnings[group] = ("DeadLetterTopicForbidden", text)
        return warnings

    async def _set_first_offsets(self, owned: Mapping[str, Manifest]) -> dict[str, Verdict]:
        """Set start offsets where there are none; return by group what is missing."""
        topics = sorted({t for o in owned.values() for t in o["spec"].get("topics", [])})
        if not topics:
            return {}
        sizes = await self._brokers.partitions_of(topics)
        gate = asyncio.Semaphore(WRITES_MAX)

        async def start(resource: Manifest) -> Verdict | None:
            async with gate:
                return await self._start(resource, sizes)

        results = await asyncio.gather(*map(start, owned.values()), return_exceptions=True)
        waiting: dict[str, Verdict] = {}
        for (group, resource), result in zip(owned.items(), results, strict=True):
            if isinstance(result, Exception) and not failures.is_of_all(result):
                waiting[group] = failures.report(KIND, resource, result)
            elif isinstance(result, BaseException):
                raise result
            elif result is not None:
                waiting[group] = result
        if fresh := sorted(g for g in owned if not self._state(g).partitions):
            await self._monitor.read(fresh, of_any_type=True)
        return waiting

    async def _start(self, resource: Manifest, sizes: Mapping[str, int]) -> Verdict | None:
        """Set the start offsets of a group where there are none; return what is missing.

        `sizes` are the numbers of partitions by topic.
        """
        group, wanted, missing = model.group_id(resource), resource["spec"].get("topics", []), None
        if absent := [t for t in wanted if t not in sizes]:
            text = (
                f"Topic {', '.join(absent)} does not exist. Apply a QueueTopic of that name, "
                "or correct spec.topics."
            )
            missing = Verdict.waiting("TopicNotFound", text)
        present = {t: sizes[t] for t in wanted if t in sizes}
        starts = first_offsets(resource["spec"], self._state(group), present, clock.epoch_ms())
        if not starts:
            return missing
        try:
            offsets = await self._brokers.resolve_offsets(starts)
            await self._brokers.set_share_offsets(group, offsets)
        except KafkaError as error:
            # NON_EMPTY_GROUP: a member has joined, so the brokers set the start offsets.
            if error.code is not ErrorCode.non_empty_group:
                text = f"The brokers refused the start offsets: {error}."
                return Verdict.waiting("PositionsRefused", text)
        return missing

    async def _outcome(
        self, resource: Manifest, errors: Mapping[str, KafkaError], waiting: Verdict | None
    ) -> tuple[Verdict, dict[str, Any]]:
        """Return the verdict on a group whose configs were sent, with these errors, and its status.

        A reset is made although a config is refused, because each field stands for itself.
        """
        state = self._state(model.group_id(resource))
        fields = {"groupId": state.group, **self._monitor.status_fields(resource, state)}
        if state.type not in ("", "share"):
            text = f"{state.group!r} is a {state.type} group. Choose another groupId or delete it."
            return Verdict.refused("OtherGroupType", text), fields
        kept = set(resource.get("status", {}).get("appliedConfig", [])) & errors.keys()
        fields["appliedConfig"] = sorted(kept | (model.config(resource["spec"]).keys() - errors))
        if not errors:
            fields["configuredGeneration"] = resource["metadata"]["generation"]
        refused = refusal(errors) if errors else None
        reset = pending_reset(resource)
        if waiting or not reset:
            return refused or waiting or _matches(), fields
        verdict, done = await self._reset(resource, reset, state)
        return refused or verdict, fields | done

    async def _reset(
        self, resource: Manifest, reset: Mapping[str, Any], state: GroupState
    ) -> tuple[Verdict, dict[str, Any]]:
        """Apply a reset; return the verdict and the fields of the status that record it."""
        if state.members:
            text = f"Reset {reset['id']!r} waits until the group's {state.members} members leave."
            return Verdict(True, "ResetWaits", text, progressing=True), {}
        topics = reset.get("topics") or resource["spec"].get("topics", [])
        if not topics:
            text = "spec.reset.topics and spec.topics are both empty. Name topics in one of them."
            return Verdict.refused("ResetNeedsTopics", text), {}
        try:
            await self._move(resource, reset, topics, state)
        except KafkaError as error:
            verdict = Verdict(
                True,
                "ResetRefused",
                f"The brokers refused reset {reset['id']!r}: {error}.",
                progressing=True,
                warning=("ResetRefused", str(error)),
            )
            return verdict, {}
        text = f"Reset {reset['id']}: {reset['to']} of {', '.join(topics)}."
        await self._kube.event(resource, "OffsetsReset", text, once=reset["id"])
        done = {"lastReset": {"id": reset["id"], "time": now()}, "pendingReset": None}
        return _matches(), done

    async def _move(
        self, resource: Manifest, reset: Mapping[str, Any], topics: list[str], state: GroupState
    ) -> None:
        """Set the offsets of a reset, unless an earlier operator did. Raises `KafkaError`.

        The status has the moves before they are made, so that no restart repeats them.
        """
        before = {(p.topic, p.partition): p.start_offset for p in state.partitions}
        moves = resume(resource, reset, before)
        if moves is None:
            sizes = await self._brokers.partitions_of(topics)
            target = reset_target(reset)
            starts = {(t, i): target for t, count in sizes.items() for i in range(count)}
            moves = [
                {"topic": p[0], "partition": p[1], "from": before.get(p, -1), "to": to}
                for p, to in sorted((await self._brokers.resolve_offsets(starts)).items())
            ]
            pending = {"id": reset["id"], "offsets": moves}
            await self._statuses.merge(resource, {"pendingReset": pending})
        if moves:
            offsets = {(m["topic"], m["partition"]): m["to"] for m in moves}
            await self._brokers.set_share_offsets(state.group, offsets)


def _matches() -> Verdict:
    return Verdict.fine("The group matches its spec.")
