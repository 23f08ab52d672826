"""QueueTopics: create topics, add partitions, change replicas, set topic configs, delete topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.protocol.errors import ErrorCode

from shoal_operator import config_changes, config_checks, drift, topic_replicas
from shoal_operator.batch_reconciler import BatchReconciler, Outcome
from shoal_operator.conditions import Verdict
from shoal_operator.model import broker_config, external, pod_layout, tiered

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shoal.client.errors import KafkaError

    from shoal_operator.broker_states import TopicState
    from shoal_operator.model.names import Manifest

KIND = "QueueTopic"


@dataclass(frozen=True, slots=True)
class Actions:
    """The changes to one topic. `config` maps a setting to its value, or to None to unset it."""

    create: bool = False
    partitions: int | None = None
    replicas: int | None = None
    config: Mapping[str, str | None] = field(default_factory=dict)
    refusal: Verdict | None = None

    def __bool__(self) -> bool:
        return self.create or self.partitions is not None or bool(self.config)


@dataclass(slots=True)
class Errors:
    """What the brokers refused of one topic: the topic itself, its partitions, its replicas, or
    some of its configs."""

    topic: KafkaError | None = None
    configs: Mapping[str, KafkaError] = field(default_factory=dict)
    #: The names of all topic configs, if one that was refused is none of them.
    known: Collection[str] = ()

    def __bool__(self) -> bool:
        return self.topic is not None or bool(self.configs)


def topic_name(resource: Mapping[str, Any]) -> str:
    """Return the topic's name in the brokers."""
    return str(resource["spec"].get("topicName") or resource["metadata"]["name"])


def decide(resource: Manifest, have: TopicState | None, under_way: Collection[str] = ()) -> Actions:
    """Return what brings the topic to its spec; `have` is None if it does not exist. Pure.

    `under_way` are the topics with partitions that are being reassigned.
    """
    spec, status = resource["spec"], resource.get("status", {})
    config = tiered.topic_config(spec)
    if not spec.get("managed", True):
        if have is not None:
            return Actions()
        text = "The topic does not exist, and spec.managed is false."
        return Actions(refusal=Verdict.waiting("TopicNotFound", text))
    if text := broker_config.find_malformed(config):
        return Actions(refusal=Verdict.refused("ConfigNotAllowed", text))
    if have is None:
        return Actions(create=True, config=config)
    refused = None
    if spec["partitions"] < have.partitions:
        text = (
            f"The topic has {have.partitions} partitions and spec.partitions is "
            f"{spec['partitions']}. Set spec.partitions to {have.partitions} or more."
        )
        refused = Verdict.refused("PartitionsNeverShrink", text)
    changed: dict[str, str | None] = {k: v for k, v in config.items() if have.config.get(k) != v}
    removed = [k for k in status.get("appliedConfig", []) if k not in config and k in have.config]
    changed |= dict.fromkeys(removed)
    more = spec["partitions"] if spec["partitions"] > have.partitions else None
    resized = spec.get("replicas") or None
    # A partition that is being reassigned shows its coming replicas already.
    if resized and have.has_replicas(resized) and topic_name(resource) not in under_way:
        resized = None
    return Actions(partitions=more, replicas=resized, config=changed, refusal=refused)


class Topics(BatchReconciler):
    """The reconciler of all QueueTopics of one cluster."""

    kind, noun, retry_seconds = KIND, "topic", 5.0

    def name_of(self, resource: Manifest) -> str:
        """Return the topic's name in the brokers."""
        return topic_name(resource)

    def deletes(self, resource: Manifest) -> bool:
        """Return whether the deletion policy asks for it; an unmanaged topic is never deleted."""
        spec = resource["spec"]
        return spec.get("deletionPolicy") == "Delete" and bool(spec.get("managed", True))

    def conflict(self, resource: Manifest, owner: Manifest) -> Outcome:
        """Return the outcome for a QueueTopic whose topic an older QueueTopic names."""
        topic = topic_name(resource)
        verdict = Verdict.refused(
            "TopicClaimed",
            f"Topic {topic!r} belongs to the older QueueTopic {owner['metadata']['name']!r}. "
            "Delete one of the two.",
        )
        return Outcome(resource, verdict, {"topicName": topic})

    async def delete(self, wanted: Sequence[str]) -> Mapping[str, KafkaError]:
        """Delete topics; return the errors by name."""
        return await self._brokers.delete_topics(wanted)

    async def apply(self, owned: Sequence[Manifest]) -> list[Outcome]:
        """Create and change topics. Raises `ClientError`."""
        have = await self._brokers.describe_topics([topic_name(o) for o in owned])
        moving: frozenset[str] = frozenset()
        if any(o["spec"].get("replicas") for o in owned):
            moving = await self._brokers.reassignments()
        under_way = {partition.rpartition("-")[0] for partition in moving}
        plan = {topic_name(o): (o, decide(o, have.get(topic_name(o)), under_way)) for o in owned}
        errors = await self._change(plan)
        await self._tell_drift(plan, have, errors)
        resizes = await self._resize(plan, moving, errors)
        if changed := [name for name, (_, actions) in plan.items() if actions]:
            have |= await self._brokers.describe_topics(changed)
        for resource in owned:
            await self._tell_return(resource, have.get(topic_name(resource)))
        return [
            self._outcome(o, actions, have.get(name), errors.get(name, Errors()), resizes.get(name))
            for name, (o, actions) in plan.items()
        ]

    async def _tell_drift(
        self,
        plan: Mapping[str, tuple[Manifest, Actions]],
        have: Mapping[str, TopicState],
        errors: Mapping[str, Errors],
    ) -> None:
        """Record an event for each topic of which somebody else had changed a config."""
        for name, (resource, actions) in plan.items():
            refused = errors.get(name, Errors()).configs
            done = {key: v for key, v in actions.config.items() if key not in refused}
            if actions.create or not done:
                continue
            if text := drift.describe_reverted(resource, done, have[name].config):
                await self._kube.event(resource, drift.REVERTED, text)

    async def _tell_return(self, resource: Manifest, state: TopicState | None) -> None:
        """Record an event for a topic that somebody else had deleted, before its status has the
        new id."""
        before = resource.get("status", {}).get("topicId", "")
        if state is None or before in ("", state.topic_id):
            return
        text = (
            f"Topic {topic_name(resource)!r} had been deleted by somebody else, and exists again "
            f"without its records: its id was {before}, and is {state.topic_id}."
        )
        await self._kube.event(resource, "TopicRecreated", text, warning=True, once=state.topic_id)

    async def _change(self, plan: Mapping[str, tuple[Manifest, Actions]]) -> dict[str, Errors]:
        """Send one request for each kind of change; return the errors by topic.

        A topic of which a config is refused is not created: producers would use it as it is.
        """
        failures: dict[str, KafkaError] = {}
        if create := {
            n: {**o["spec"], "config": a.config} for n, (o, a) in plan.items() if a.create
        }:
            failures |= await self._brokers.create_topics(create)
        if grow := {n: a.partitions for n, (_, a) in plan.items() if a.partitions}:
            failures |= await self._brokers.create_partitions(grow)
        config = {n: a.config for n, (_, a) in plan.items() if a.config and not a.create}
        refused = await config_changes.send(self._brokers.alter_topic_configs, config)
        said = [*failures.values(), *(e for one in refused.values() for e in one.values())]
        unknown = any(config_checks.unknown_name(str(error)) for error in said)
        known = await self._brokers.topic_config_names() if unknown else ()
        return {
            n: Errors(failures.get(n), refused.get(n, {}), known) for n in {*failures, *refused}
        }

    async def _resize(
        self,
        plan: Mapping[str, tuple[Manifest, Actions]],
        moving: Collection[str],
        errors: dict[str, Errors],
    ) -> dict[str, topic_replicas.Resize]:
        """Reassign partitions of topics whose number of replicas is not the wanted one.

        Adds the errors by topic to `errors`; returns how far each of the other topics is.
        """
        wanted = {n: a.replicas for n, (_, a) in plan.items() if a.replicas}
        cluster = self._store.get("QueueCluster", self._namespace, self._cluster)
        if not wanted or cluster is None:
            return {}
        racks = await self._brokers.racks()
        brokers = sorted(racks) if external.is_external(cluster) else pod_layout.brokers(cluster)
        found = topic_replicas.plan(
            wanted, await self._brokers.partitions(), moving, brokers, racks
        )
        moves = {p: replicas for one in found.values() for p, replicas in one.moves.items()}
        done = await self._brokers.reassign(moves) if moves else {}
        refused = {p.rpartition("-")[0]: e for p, e in done.items() if e}
        for name, error in refused.items():
            errors.setdefault(name, Errors()).topic = error
        return {name: one for name, one in found.items() if name not in refused}

    def _outcome(
        self,
        resource: Manifest,
        actions: Actions,
        state: TopicState | None,
        errors: Errors,
        resize: topic_replicas.Resize | None,
    ) -> Outcome:
        fields: dict[str, Any] = {"topicName": topic_name(resource)}
        if state:
            fields |= {
                "topicId": state.topic_id,
                "partitions": state.partitions,
                "reassignment": resize.progress if resize else None,
            }
            if resize is None:
                fields["replicas"] = state.replicas
        if state is None and not errors and not actions.refusal:
            creating = Verdict.waiting("Creating", "The topic is being created.")
            return Outcome(resource, creating, fields)
        if state is not None and not resource["spec"].get("managed", True):
            text = "The topic exists, and spec.managed is false."
            return Outcome(resource, Verdict(True, "NotManaged", text), fields)
        if state is not None:
            before = set(resource.get("status", {}).get("appliedConfig", []))
            wanted = tiered.topic_config(resource["spec"]).keys()
            kept = before & errors.configs.keys()
            fields["appliedConfig"] = sorted(kept | (wanted - errors.configs.keys()))
        if errors:
            return Outcome(resource, self._refused(resource, errors), fields)
        if actions.refusal:
            return Outcome(resource, actions.refusal, fields)
        if resize:
            return Outcome(resource, resize.verdict, fields)
        return Outcome(resource, Verdict.fine("The topic matches its spec."), fields)

    def _refused(self, resource: Manifest, errors: Errors) -> Verdict:
        """Return the verdict on a topic of which the brokers refused something."""
        error = errors.topic
        what = f"the topic: {config_checks.with_hint(str(error), errors.known)}" if error else ""
        if not error:
            error = next(iter(errors.configs.values()))
            each = [
                f"{name}: {config_checks.with_hint(str(one), errors.known)}"
                for name, one in sorted(errors.configs.items())
            ]
            what = "; ".join(each)
        transient = error.retriable or self._lacks_brokers(resource, error)
        remedy = "The operator retries." if transient else "Change the spec."
        if not errors.topic and not transient:
            remedy += " The other fields are in effect."
        return Verdict(
            False,
            "".join(part.capitalize() for part in error.code.name.split("_")),
            f"The brokers refused {what}{'' if what.endswith('?') else '.'} {remedy}",
            progressing=transient,
            degraded=not transient,
            alarm=not transient,
        )

    def _lacks_brokers(self, resource: Manifest, error: KafkaError) -> bool:
        """Return whether the topic has enough brokers once all brokers of the cluster run."""
        cluster = self._store.get("QueueCluster", self._namespace, self._cluster)
        if cluster is not None and external.is_external(cluster):
            return False
        brokers = len(pod_layout.brokers(cluster)) if cluster else 1
        enough = int(resource["spec"].get("replicas") or 1) <= brokers
        return enough and error.code == ErrorCode.invalid_replication_factor
