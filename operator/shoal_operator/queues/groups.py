"""ShareGroups: group configs, dead-letter topics, start offsets and resets, deletion."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from shoal.client.errors import KafkaError
from shoal.protocol.errors import ErrorCode

from shoal_operator import clock
from shoal_operator.brokers import config_changes
from shoal_operator.brokers.batch_reconciler import (
    WRITES_MAX,
    BatchReconciler,
    ResourceOutcome,
    find_live_cluster,
)
from shoal_operator.kube import drift, failures
from shoal_operator.kube.conditions import Verdict
from shoal_operator.kube.kube import format_now
from shoal_operator.model import external
from shoal_operator.model import groups as model
from shoal_operator.model.resources.share_group import ShareGroup
from shoal_operator.queues import dead_letter_topics
from shoal_operator.queues.group_offsets import (
    choose_first_offsets,
    find_pending_reset,
    parse_reset_target,
    resume,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shoal_operator.brokers.broker_states import GroupState
    from shoal_operator.brokers.calls import Brokers
    from shoal_operator.brokers.config_changes import Refused
    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store
    from shoal_operator.model.resources.share_group import (
        ShareGroupSpecReset,
        ShareGroupStatusPatch,
    )
    from shoal_operator.queues.group_monitor import GroupMonitor

KIND = "ShareGroup"


def decide_config(
    resource: ShareGroup, have: Mapping[str, str], known_configs: Collection[str] | None = None
) -> dict[str, str | None]:
    """Return the group configs to set, or to unset with None. Pure.

    `known_configs` are the configs that the brokers of an external cluster have.
    """
    spec = resource["spec"]
    want = model.build_config(spec)
    if known_configs is not None:
        want, _ = model.split_supported(spec, known_configs)
    changed: dict[str, str | None] = {k: v for k, v in want.items() if have.get(k) != v}
    applied = resource.get("status", {}).get("appliedConfig", [])
    return changed | {k: None for k in applied if k not in want and k in have}


def find_unsupported(resource: ShareGroup, known_configs: Collection[str]) -> Verdict | None:
    """Return the verdict on a ShareGroup whose fields the brokers do not support, else None."""
    _, lacking = model.split_supported(resource["spec"], known_configs)
    if not lacking:
        return None
    fields = ", ".join(f"spec.{field}" for field in lacking)
    configs = ", ".join(name for of_field in lacking.values() for name in of_field)
    return Verdict.make_refused(
        "FieldNotSupported",
        f"{fields}: the brokers of the external cluster do not have the group config {configs}. "
        "Remove the field, or use a cluster of Shoal's brokers.",
    )


async def alter_configs(
    brokers: Brokers, changes: Mapping[str, Mapping[str, str | None]]
) -> tuple[Refused[str], dict[str, tuple[str, str]]]:
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


class ShareGroupReconciler(BatchReconciler[ShareGroup]):
    """The reconciler of all ShareGroups of one cluster; `monitor` reads their states."""

    kind, noun, retry_seconds = ShareGroup, "group", 2.0

    def __init__(
        self,
        kube: KubeClient,
        store: Store,
        brokers: Brokers,
        namespace: str,
        cluster: str,
        *,
        monitor: GroupMonitor,
    ) -> None:
        super().__init__(kube, store, brokers, namespace, cluster)
        self._monitor = monitor

    def get_kafka_name(self, resource: ShareGroup) -> str:
        """Return the group id."""
        return model.get_group_id(resource)

    def needs_deletion(self, resource: ShareGroup) -> bool:
        """Return whether the deletion policy asks for it."""
        return resource["spec"].get("deletionPolicy") == "Delete"

    def make_conflict_outcome(
        self, resource: ShareGroup, owner: ShareGroup
    ) -> ResourceOutcome[ShareGroup]:
        """Return the outcome for a ShareGroup whose group an older ShareGroup names."""
        group = model.get_group_id(resource)
        verdict = Verdict.make_refused(
            "GroupClaimed",
            f"Group {group!r} belongs to the older ShareGroup {owner['metadata']['name']!r}. "
            "Delete one of the two.",
        )
        return ResourceOutcome(resource, verdict, {"groupId": group})

    async def delete(self, kafka_names: Sequence[str]) -> Mapping[str, KafkaError]:
        """Delete empty groups; return the errors by group id."""
        return await self._brokers.delete_groups(kafka_names)

    async def apply(self, owned: Sequence[ShareGroup]) -> list[ResourceOutcome[ShareGroup]]:
        """Set configs and start offsets, create dead-letter topics. Raises `ClientError`."""
        resources = {model.get_group_id(o): o for o in owned}
        known_configs = await self._fetch_known_configs(resources)
        refused = {
            group: verdict
            for group, resource in resources.items()
            if known_configs is not None and (verdict := find_unsupported(resource, known_configs))
        }
        by_id = {group: resource for group, resource in resources.items() if group not in refused}
        outcomes = [
            ResourceOutcome(resources[group], verdict, {"groupId": group})
            for group, verdict in refused.items()
        ]
        if not by_id:
            return outcomes
        have = await self._brokers.describe_group_configs(sorted(by_id))
        changes = {
            g: c
            for g, o in by_id.items()
            if (c := decide_config(o, have.get(g, {}), known_configs))
        }
        refused_configs, warnings = await alter_configs(self._brokers, changes)
        for group, change in changes.items():
            errors = refused_configs.get(group, {})
            applied = {key: value for key, value in change.items() if key not in errors}
            if text := drift.describe_reverted(by_id[group], applied, have.get(group, {})):
                await self._kube.record_event(by_id[group], drift.REVERTED, text)
        cluster = find_live_cluster(self._store, self._namespace, self._cluster)
        warnings |= await dead_letter_topics.prepare(self._brokers, cluster, by_id)
        await self._monitor.read(sorted(by_id), of_any_type=True)
        waiting = await self._set_first_offsets(by_id)
        for group, resource in by_id.items():
            errors = refused_configs.get(group, {})
            verdict, fields = await self._decide_outcome(resource, errors, waiting.get(group))
            if warning := warnings.get(group) or self._get_state(group).metrics.find_warning():
                verdict = verdict.with_warning(warning)
            outcomes.append(ResourceOutcome(resource, verdict, fields))
        return outcomes

    def on_reconciled(self, outcomes: Sequence[ResourceOutcome[ShareGroup]]) -> None:
        """Notify the ShareConsumers, whose statuses repeat errors of their group."""
        self._monitor.notify(outcome.resource for outcome in outcomes)

    async def _fetch_known_configs(self, groups: Collection[str]) -> frozenset[str] | None:
        """Return the group configs that an external cluster has; None for other clusters."""
        cluster = find_live_cluster(self._store, self._namespace, self._cluster)
        if not groups or cluster is None or not external.is_external(cluster):
            return None
        return await self._brokers.list_group_config_names(min(groups))

    def _get_state(self, group: str) -> GroupState:
        return self._monitor.states[group]

    async def _set_first_offsets(self, owned: Mapping[str, ShareGroup]) -> dict[str, Verdict]:
        """Set start offsets where there are none; return by group what is missing."""
        topics = sorted({t for o in owned.values() for t in o["spec"].get("topics", [])})
        if not topics:
            return {}
        sizes = await self._brokers.count_partitions(topics)
        gate = asyncio.Semaphore(WRITES_MAX)

        async def start(resource: ShareGroup) -> Verdict | None:
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
        if fresh := sorted(g for g in owned if not self._get_state(g).partitions):
            await self._monitor.read(fresh, of_any_type=True)
        return waiting

    async def _start(self, resource: ShareGroup, sizes: Mapping[str, int]) -> Verdict | None:
        """Set the start offsets of a group where there are none; return what is missing.

        `sizes` are the numbers of partitions by topic.
        """
        group, spec, missing = model.get_group_id(resource), resource["spec"], None
        topics = spec.get("topics", [])
        if absent := [t for t in topics if t not in sizes]:
            text = (
                f"Topic {', '.join(absent)} does not exist. Apply a QueueTopic of that name, "
                "or correct spec.topics."
            )
            missing = Verdict.make_waiting("TopicNotFound", text)
        present = {t: sizes[t] for t in topics if t in sizes}
        starts = choose_first_offsets(spec, self._get_state(group), present, clock.epoch_ms())
        if not starts:
            return missing
        try:
            offsets = await self._brokers.resolve_offsets(starts)
            await self._brokers.set_share_offsets(group, offsets)
        except KafkaError as error:
            # NON_EMPTY_GROUP: a member has joined, so the brokers set the start offsets.
            if error.code is not ErrorCode.non_empty_group:
                text = f"The brokers refused the start offsets: {error}."
                return Verdict.make_waiting("PositionsRefused", text)
        return missing

    async def _decide_outcome(
        self, resource: ShareGroup, errors: Mapping[str, KafkaError], waiting: Verdict | None
    ) -> tuple[Verdict, ShareGroupStatusPatch]:
        """Return the verdict on a group whose configs were sent, with these errors, and its status.

        A reset is made although a config is refused, because each field stands for itself.
        """
        state = self._get_state(model.get_group_id(resource))
        fields = self._monitor.build_status_fields(resource, state)
        fields["groupId"] = state.group
        if state.type not in ("", "share"):
            text = f"{state.group!r} is a {state.type} group. Choose another groupId or delete it."
            return Verdict.make_refused("OtherGroupType", text), fields
        still_refused = set(resource.get("status", {}).get("appliedConfig", [])) & errors.keys()
        fields["appliedConfig"] = sorted(
            still_refused | (model.build_config(resource["spec"]).keys() - errors)
        )
        if not errors:
            fields["configuredGeneration"] = resource["metadata"]["generation"]
        refused = None
        if errors:
            by_field = {f"spec.{model.get_field(config)}": e for config, e in errors.items()}
            refused = config_changes.make_refusal(by_field)
        reset = find_pending_reset(resource)
        if waiting or not reset:
            return refused or waiting or _make_ready_verdict(), fields
        verdict, reset_fields = await self._reset(resource, reset, state)
        return refused or verdict, fields | reset_fields

    async def _reset(
        self, resource: ShareGroup, reset: ShareGroupSpecReset, state: GroupState
    ) -> tuple[Verdict, ShareGroupStatusPatch]:
        """Apply a reset; return the verdict and the fields of the status that record it."""
        if state.members:
            text = f"Reset {reset['id']!r} waits until the group's {state.members} members leave."
            return Verdict(True, "ResetWaits", text, progressing=True), {}
        topics = reset.get("topics") or resource["spec"].get("topics", [])
        if not topics:
            text = "spec.reset.topics and spec.topics are both empty. Name topics in one of them."
            return Verdict.make_refused("ResetNeedsTopics", text), {}
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
        await self._kube.record_event(resource, "OffsetsReset", text, once=reset["id"])
        fields: ShareGroupStatusPatch = {
            "lastReset": {"id": reset["id"], "time": format_now()},
            "pendingReset": None,
        }
        return _make_ready_verdict(), fields

    async def _move(
        self, resource: ShareGroup, reset: ShareGroupSpecReset, topics: list[str], state: GroupState
    ) -> None:
        """Set the offsets of a reset, unless an earlier operator did. Raises `KafkaError`.

        The status has the moves before they are made, so that no restart repeats them.
        """
        before = {(p.topic, p.partition): p.start_offset for p in state.partitions}
        moves = resume(resource, reset, before)
        if moves is None:
            sizes = await self._brokers.count_partitions(topics)
            target = parse_reset_target(reset)
            starts = {(t, i): target for t, count in sizes.items() for i in range(count)}
            moves = [
                {"topic": p[0], "partition": p[1], "from": before.get(p, -1), "to": to}
                for p, to in sorted((await self._brokers.resolve_offsets(starts)).items())
            ]
            begun: ShareGroupStatusPatch = {"pendingReset": {"id": reset["id"], "offsets": moves}}
            await self._statuses.merge(resource, begun)
        if moves:
            offsets = {(m["topic"], m["partition"]): m["to"] for m in moves}
            await self._brokers.set_share_offsets(state.group, offsets)


def _make_ready_verdict() -> Verdict:
    return Verdict.make_reconciled("The group matches its spec.")
