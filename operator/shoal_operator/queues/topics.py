"""QueueTopics: create topics, add partitions, change replicas, set topic configs, delete topics."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.client.admin.topics import NewTopic
from shoal.protocol.errors import ErrorCode

from shoal_operator.brokers import config_changes, config_checks
from shoal_operator.brokers.batch_reconciler import BatchReconciler, ResourceOutcome
from shoal_operator.kube import drift
from shoal_operator.kube.conditions import Verdict
from shoal_operator.model import broker_config, external, pod_layout, tiered
from shoal_operator.model.resources.queue_topic import QueueTopic
from shoal_operator.queues import topic_replicas

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shoal.client.errors import KafkaError

    from shoal_operator.brokers.broker_states import TopicState
    from shoal_operator.model.resources.queue_topic import QueueTopicStatusPatch

#: Pauses until a broker is asked again that does not know the newest changes of topics.
VISIBLE_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4)


@dataclass(frozen=True, slots=True)
class TopicActions:
    """The changes to one topic. `config` maps a setting to its value, or to None to unset it."""

    create: bool = False
    partitions: int | None = None
    replicas: int | None = None
    config: Mapping[str, str | None] = field(default_factory=dict)
    refusal: Verdict | None = None

    def __bool__(self) -> bool:
        return self.create or self.partitions is not None or bool(self.config)


@dataclass(slots=True)
class TopicErrors:
    """What the brokers refused of one topic: the topic itself, its partitions, its replicas, or
    some of its configs."""

    topic: KafkaError | None = None
    configs: Mapping[str, KafkaError] = field(default_factory=dict)
    #: The names of all topic configs, if one that was refused is none of them.
    known_configs: Collection[str] = ()

    def __bool__(self) -> bool:
        return self.topic is not None or bool(self.configs)


def get_topic_name(resource: QueueTopic) -> str:
    """Return the topic's name in the brokers."""
    return resource["spec"].get("topicName") or str(resource["metadata"]["name"])


def make_new_topic(resource: QueueTopic) -> NewTopic:
    """Return the topic to create for a QueueTopic."""
    spec = resource["spec"]
    return NewTopic(
        get_topic_name(resource),
        spec["partitions"],
        spec.get("replicas") or -1,
        tiered.build_topic_config(spec),
    )


def decide(
    resource: QueueTopic, have: TopicState | None, under_way: Collection[str] = ()
) -> TopicActions:
    """Return what brings the topic to its spec; `have` is None if it does not exist. Pure.

    `under_way` are the topics with partitions that are being reassigned.
    """
    spec, status = resource["spec"], resource.get("status", {})
    config = tiered.build_topic_config(spec)
    if not spec.get("managed", True):
        if have is not None:
            return TopicActions()
        text = "The topic does not exist, and spec.managed is false."
        return TopicActions(refusal=Verdict.make_waiting("TopicNotFound", text))
    if text := broker_config.find_malformed(config):
        return TopicActions(refusal=Verdict.make_refused("ConfigNotAllowed", text))
    if have is None:
        return TopicActions(create=True, config=config)
    refused = None
    if spec["partitions"] < have.partitions:
        text = (
            f"The topic has {have.partitions} partitions and spec.partitions is "
            f"{spec['partitions']}. Set spec.partitions to {have.partitions} or more."
        )
        refused = Verdict.make_refused("PartitionsNeverShrink", text)
    changed: dict[str, str | None] = {k: v for k, v in config.items() if have.config.get(k) != v}
    removed = [k for k in status.get("appliedConfig", []) if k not in config and k in have.config]
    changed |= dict.fromkeys(removed)
    more = spec["partitions"] if spec["partitions"] > have.partitions else None
    resized = spec.get("replicas") or None
    # A partition that is being reassigned shows its coming replicas already.
    if resized and have.has_replicas(resized) and get_topic_name(resource) not in under_way:
        resized = None
    return TopicActions(partitions=more, replicas=resized, config=changed, refusal=refused)


def lacks_partitions(resource: QueueTopic, have: TopicState | None) -> bool:
    """Return whether a topic does not have all partitions of its spec, or does not exist."""
    return have is None or have.partitions < resource["spec"]["partitions"]


def _has_code(errors: TopicErrors, code: ErrorCode) -> bool:
    return errors.topic is not None and errors.topic.code == code


class QueueTopicReconciler(BatchReconciler[QueueTopic]):
    """The reconciler of all QueueTopics of one cluster."""

    kind, noun, retry_seconds = QueueTopic, "topic", 5.0

    def get_kafka_name(self, resource: QueueTopic) -> str:
        """Return the topic's name in the brokers."""
        return get_topic_name(resource)

    def needs_deletion(self, resource: QueueTopic) -> bool:
        """Return whether the deletion policy asks for it; an unmanaged topic is never deleted."""
        spec = resource["spec"]
        return spec.get("deletionPolicy") == "Delete" and spec.get("managed", True)

    def make_conflict_outcome(
        self, resource: QueueTopic, owner: QueueTopic
    ) -> ResourceOutcome[QueueTopic]:
        """Return the outcome for a QueueTopic whose topic an older QueueTopic names."""
        topic = get_topic_name(resource)
        verdict = Verdict.make_refused(
            "TopicClaimed",
            f"Topic {topic!r} belongs to the older QueueTopic {owner['metadata']['name']!r}. "
            "Delete one of the two.",
        )
        return ResourceOutcome(resource, verdict, {"topicName": topic})

    async def delete(self, kafka_names: Sequence[str]) -> Mapping[str, KafkaError]:
        """Delete topics; return the errors by name."""
        return await self._brokers.delete_topics(kafka_names)

    async def apply(self, owned: Sequence[QueueTopic]) -> list[ResourceOutcome[QueueTopic]]:
        """Create and change topics. Raises `ClientError`."""
        have = await self._brokers.describe_topics([get_topic_name(o) for o in owned])
        moving: frozenset[str] = frozenset()
        if any(o["spec"].get("replicas") for o in owned):
            moving = await self._brokers.list_reassignments()
        under_way = {partition.rpartition("-")[0] for partition in moving}
        plan = {
            get_topic_name(o): (o, decide(o, have.get(get_topic_name(o)), under_way)) for o in owned
        }
        errors = await self._change(plan)
        await self._record_drift(plan, have, errors)
        resizes = await self._resize(plan, moving, errors)
        if changed := [name for name, (_, actions) in plan.items() if actions]:
            have |= await self._describe_changed(plan, changed, errors)
        for resource in owned:
            await self._record_return(resource, have.get(get_topic_name(resource)))
        return [
            self._decide_outcome(
                o, actions, have.get(name), errors.get(name, TopicErrors()), resizes.get(name)
            )
            for name, (o, actions) in plan.items()
        ]

    async def _describe_changed(
        self,
        plan: Mapping[str, tuple[QueueTopic, TopicActions]],
        changed: Sequence[str],
        errors: dict[str, TopicErrors],
    ) -> dict[str, TopicState]:
        """Describe topics after their changes, and drop the errors of partitions that they have.

        The broker that answers may not know yet what the controller has committed, before this pass
        or in it: ask again, but not for long.
        """
        had = {n for n, e in errors.items() if _has_code(e, ErrorCode.invalid_partitions)}
        refused = errors.keys() - had
        for pause in (*VISIBLE_PAUSES_SECONDS, None):
            have = await self._brokers.describe_topics(changed)
            complete = {n for n in changed if not lacks_partitions(plan[n][0], have.get(n))}
            if pause is None or complete | refused >= set(changed):
                break
            await asyncio.sleep(pause)
        for name in complete & had:
            errors[name].topic = None
        return have

    async def _record_drift(
        self,
        plan: Mapping[str, tuple[QueueTopic, TopicActions]],
        have: Mapping[str, TopicState],
        errors: Mapping[str, TopicErrors],
    ) -> None:
        """Record an event for each topic of which somebody else had changed a config."""
        for name, (resource, actions) in plan.items():
            refused = errors.get(name, TopicErrors()).configs
            applied = {key: v for key, v in actions.config.items() if key not in refused}
            if actions.create or not applied:
                continue
            if text := drift.describe_reverted(resource, applied, have[name].config):
                await self._kube.record_event(resource, drift.REVERTED, text)

    async def _record_return(self, resource: QueueTopic, state: TopicState | None) -> None:
        """Record an event for a topic that somebody else had deleted, before its status has the
        new id."""
        before = resource.get("status", {}).get("topicId", "")
        if state is None or before in ("", state.topic_id):
            return
        text = (
            f"Topic {get_topic_name(resource)!r} had been deleted by somebody else, and exists "
            f"again without its records: its id was {before}, and is {state.topic_id}."
        )
        await self._kube.record_event(
            resource, "TopicRecreated", text, warning=True, once=state.topic_id
        )

    async def _change(
        self, plan: Mapping[str, tuple[QueueTopic, TopicActions]]
    ) -> dict[str, TopicErrors]:
        """Send one request for each kind of change; return the errors by topic.

        A topic of which a config is refused is not created: producers would use it as it is.
        """
        failures: dict[str, KafkaError] = {}
        if create := [make_new_topic(o) for o, a in plan.values() if a.create]:
            failures |= await self._brokers.create_topics(create)
        if grow := {n: a.partitions for n, (_, a) in plan.items() if a.partitions}:
            failures |= await self._brokers.create_partitions(grow)
        config = {n: a.config for n, (_, a) in plan.items() if a.config and not a.create}
        refused = await config_changes.send(self._brokers.alter_topic_configs, config)
        all_errors = [
            *failures.values(),
            *(e for topic_errors in refused.values() for e in topic_errors.values()),
        ]
        unknown = any(config_checks.parse_unknown_name(str(error)) for error in all_errors)
        known_configs = await self._brokers.list_topic_config_names() if unknown else ()
        return {
            n: TopicErrors(failures.get(n), refused.get(n, {}), known_configs)
            for n in {*failures, *refused}
        }

    async def _resize(
        self,
        plan: Mapping[str, tuple[QueueTopic, TopicActions]],
        moving: Collection[str],
        errors: dict[str, TopicErrors],
    ) -> dict[str, topic_replicas.TopicResize]:
        """Reassign partitions of topics whose number of replicas is not the wanted one.

        Adds the errors by topic to `errors`; returns how far each of the other topics is.
        """
        replica_counts = {n: a.replicas for n, (_, a) in plan.items() if a.replicas}
        cluster = self._store.get_cluster(self._namespace, self._cluster)
        if not replica_counts or cluster is None:
            return {}
        racks = await self._brokers.describe_racks()
        brokers = (
            sorted(racks) if external.is_external(cluster) else pod_layout.list_brokers(cluster)
        )
        resizes = topic_replicas.plan_resizes(
            replica_counts, await self._brokers.describe_partitions(), moving, brokers, racks
        )
        moves = {p: replicas for resize in resizes.values() for p, replicas in resize.moves.items()}
        results = await self._brokers.reassign(moves) if moves else {}
        refused = {p.rpartition("-")[0]: e for p, e in results.items() if e}
        for name, error in refused.items():
            errors.setdefault(name, TopicErrors()).topic = error
        return {name: resize for name, resize in resizes.items() if name not in refused}

    def _decide_outcome(
        self,
        resource: QueueTopic,
        actions: TopicActions,
        state: TopicState | None,
        errors: TopicErrors,
        resize: topic_replicas.TopicResize | None,
    ) -> ResourceOutcome[QueueTopic]:
        fields: QueueTopicStatusPatch = {"topicName": get_topic_name(resource)}
        if state:
            fields |= {
                "topicId": state.topic_id,
                "partitions": state.partitions,
                "reassignment": resize.progress if resize else None,
            }
            if resize is None:
                fields["replicas"] = state.replicas
        managed = resource["spec"].get("managed", True)
        if managed and not errors and not actions.refusal and lacks_partitions(resource, state):
            what = "The topic is" if state is None else "Partitions are"
            creating = Verdict.make_waiting("Creating", f"{what} being created.")
            return ResourceOutcome(resource, creating, fields)
        if state is not None and not managed:
            text = "The topic exists, and spec.managed is false."
            return ResourceOutcome(resource, Verdict(True, "NotManaged", text), fields)
        if state is not None:
            before = set(resource.get("status", {}).get("appliedConfig", []))
            wanted_configs = tiered.build_topic_config(resource["spec"]).keys()
            still_refused = before & errors.configs.keys()
            fields["appliedConfig"] = sorted(
                still_refused | (wanted_configs - errors.configs.keys())
            )
        if errors:
            return ResourceOutcome(resource, self._make_refusal(resource, errors), fields)
        if actions.refusal:
            return ResourceOutcome(resource, actions.refusal, fields)
        if resize:
            return ResourceOutcome(resource, resize.verdict, fields)
        return ResourceOutcome(
            resource, Verdict.make_reconciled("The topic matches its spec."), fields
        )

    def _make_refusal(self, resource: QueueTopic, errors: TopicErrors) -> Verdict:
        """Return the verdict on a topic of which the brokers refused something."""
        error = errors.topic
        subject = (
            f"the topic: {config_checks.add_hint(str(error), errors.known_configs)}"
            if error
            else ""
        )
        if not error:
            error = next(iter(errors.configs.values()))
            reasons = [
                f"{name}: {config_checks.add_hint(str(config_error), errors.known_configs)}"
                for name, config_error in sorted(errors.configs.items())
            ]
            subject = "; ".join(reasons)
        transient = error.retriable or self._is_waiting_for_brokers(resource, error)
        remedy = "The operator retries." if transient else "Change the spec."
        if not errors.topic and not transient:
            remedy += " The other fields are in effect."
        return Verdict(
            False,
            "".join(part.capitalize() for part in error.code.name.split("_")),
            f"The brokers refused {subject}{'' if subject.endswith('?') else '.'} {remedy}",
            progressing=transient,
            degraded=not transient,
            alarm=not transient,
        )

    def _is_waiting_for_brokers(self, resource: QueueTopic, error: KafkaError) -> bool:
        """Return whether the topic has enough brokers once all brokers of the cluster run."""
        cluster = self._store.get_cluster(self._namespace, self._cluster)
        if cluster is not None and external.is_external(cluster):
            return False
        brokers = len(pod_layout.list_brokers(cluster)) if cluster else 1
        enough = int(resource["spec"].get("replicas") or 1) <= brokers
        return enough and error.code == ErrorCode.invalid_replication_factor
