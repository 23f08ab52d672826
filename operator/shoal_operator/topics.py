"""QueueTopics: observe a batch of topics, decide for each, apply in as few requests as there are
kinds of action, and say so in each status.

A topic that two QueueTopics claim belongs to the older one; the newer says so and does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.client.errors import ClientError, KafkaError
from shoal.protocol.errors import ErrorCode

from shoal_operator.broker_states import TopicState
from shoal_operator.brokers import Brokers
from shoal_operator.conditions import Verdict
from shoal_operator.kube import Kube
from shoal_operator.model import names, pod_layout
from shoal_operator.model.names import Manifest
from shoal_operator.statuses import Statuses
from shoal_operator.store import Store, is_older

KIND = "QueueTopic"
#: Status writes under way at once.
WRITES_MAX = 16


@dataclass(frozen=True, slots=True)
class Actions:
    """What has to be done to one topic. `config` maps a setting to its value, or None to unset."""

    create: bool = False
    partitions: int | None = None
    config: Mapping[str, str | None] = field(default_factory=dict)
    refusal: Verdict | None = None

    def __bool__(self) -> bool:
        return self.create or self.partitions is not None or bool(self.config)


def topic_name(resource: Mapping[str, Any]) -> str:
    return resource["spec"].get("topicName") or resource["metadata"]["name"]


def decide(resource: Manifest, have: TopicState | None) -> Actions:
    """What brings the topic to its spec. `have` is None for a topic that does not exist."""
    spec, status = resource["spec"], resource.get("status", {})
    config = spec.get("config", {})
    if not spec.get("managed", True):
        if have is None:
            return Actions(
                refusal=Verdict.waiting(
                    "TopicNotFound", "The topic does not exist, and managed is false."
                )
            )
        return Actions()
    if have is None:
        return Actions(create=True, config=config)
    if spec["partitions"] < have.partitions:
        return Actions(
            refusal=Verdict.refused(
                "PartitionsNeverShrink",
                f"The topic has {have.partitions} partitions and spec.partitions asks for "
                f"{spec['partitions']}; set it to {have.partitions} or more.",
            )
        )
    if spec.get("replicas") and spec["replicas"] != have.replicas:
        return Actions(
            refusal=Verdict.refused(
                "ReplicasNotChanged",
                f"The topic has {have.replicas} replicas and spec.replicas asks for "
                f"{spec['replicas']}; replicas of an existing topic are not changed.",
            )
        )
    changed: dict[str, str | None] = {k: v for k, v in config.items() if have.config.get(k) != v}
    gone = [k for k in status.get("appliedConfig", []) if k not in config and k in have.config]
    changed |= dict.fromkeys(gone)
    more = spec["partitions"] if spec["partitions"] > have.partitions else None
    return Actions(partitions=more, config=changed)


def claims(resources: Iterable[Manifest]) -> dict[str, Manifest]:
    """Which resource a topic belongs to: the oldest that names it and is not being deleted."""
    winners: dict[str, Manifest] = {}
    for resource in resources:
        if resource["metadata"].get("deletionTimestamp"):
            continue
        held = winners.get(topic_name(resource))
        if held is None or is_older(resource, held):
            winners[topic_name(resource)] = resource
    return winners


class Topics:
    """The reconciler of all QueueTopics of one cluster."""

    def __init__(
        self, kube: Kube, store: Store, brokers: Brokers, namespace: str, cluster: str
    ) -> None:
        self._kube, self._store, self._brokers = kube, store, brokers
        self._namespace, self._cluster = namespace, cluster
        self._statuses = Statuses(kube, store)

    def list_names(self) -> list[str]:
        found = self._store.of_cluster(KIND, self._namespace, self._cluster)
        return [o["metadata"]["name"] for o in found]

    async def reconcile(self, wanted: list[str]) -> float | None:
        """Bring these resources to their specs; seconds until the next look, if one is needed."""
        everyone = self._store.of_cluster(KIND, self._namespace, self._cluster)
        mine = [o for o in everyone if o["metadata"]["name"] in set(wanted)]
        cluster = self._store.get("QueueCluster", self._namespace, self._cluster)
        leaving = [o for o in mine if o["metadata"].get("deletionTimestamp")]
        staying = [o for o in mine if not o["metadata"].get("deletionTimestamp")]
        winners = claims(everyone)
        if cluster is None or cluster["metadata"].get("deletionTimestamp"):
            await self._release(leaving)
            missing = Verdict.waiting(
                "ClusterNotFound",
                f"There is no QueueCluster {self._cluster!r} in this namespace (yet).",
            )
            await self._write([(o, missing, {}) for o in staying])
            return 30.0 if staying else None
        try:
            stuck = await self._delete(leaving, winners)
            outcomes = await self._bring(staying, winners)
        except ClientError as error:
            down = Verdict.waiting("BrokersUnreachable", f"No broker could be asked: {error}")
            await self._write([(o, down, {}) for o in staying])
            raise
        await self._write(outcomes)
        settled = all(v.ready or v.degraded for _, v, _ in outcomes)
        return None if settled and not stuck else 5.0

    async def _bring(
        self, resources: list[Manifest], winners: dict[str, Manifest]
    ) -> list[tuple[Manifest, Verdict, dict[str, Any]]]:
        owned = [o for o in resources if winners[topic_name(o)] is o]
        have = await self._brokers.describe_topics([topic_name(o) for o in owned])
        plan = {topic_name(o): (o, decide(o, have.get(topic_name(o)))) for o in owned}
        failures = await self._apply(plan)
        if any(actions for _, actions in plan.values()):
            have |= await self._brokers.describe_topics(
                [name for name, (_, actions) in plan.items() if actions]
            )
        outcomes = [(o, *self._outcome(o, plan, have, failures)) for o in owned]
        for resource in resources:
            winner = winners[topic_name(resource)]
            if winner is not resource:
                said = Verdict.refused(
                    "TopicClaimed",
                    f"The topic {topic_name(resource)!r} belongs to the older QueueTopic "
                    f"{winner['metadata']['name']!r}; delete one of the two.",
                )
                outcomes.append((resource, said, {"topicName": topic_name(resource)}))
        return outcomes

    async def _apply(self, plan: Mapping[str, tuple[Manifest, Actions]]) -> dict[str, KafkaError]:
        """Do all actions, a request for each kind of them; what was refused, by topic."""
        failures: dict[str, KafkaError] = {}
        create = {n: o["spec"] for n, (o, a) in plan.items() if a.create}
        if create:
            failures |= await self._brokers.create_topics(create)
        grow = {n: a.partitions for n, (_, a) in plan.items() if a.partitions}
        if grow:
            failures |= await self._brokers.create_partitions(grow)
        config = {n: a.config for n, (_, a) in plan.items() if a.config and not a.create}
        if config:
            failures |= await self._brokers.alter_topic_configs(config)
        return failures

    def _outcome(
        self,
        resource: Manifest,
        plan: Mapping[str, tuple[Manifest, Actions]],
        have: Mapping[str, TopicState],
        failures: Mapping[str, KafkaError],
    ) -> tuple[Verdict, dict[str, Any]]:
        name = topic_name(resource)
        fields: dict[str, Any] = {"topicName": name}
        state = have.get(name)
        if state:
            fields |= {
                "topicId": state.topic_id,
                "partitions": state.partitions,
                "replicas": state.replicas,
            }
        error = failures.get(name)
        if error:
            again = error.retriable or self._too_early(resource, error)
            where = "Retrying." if again else "Change the spec."
            verdict = Verdict(
                False,
                _camel(error),
                f"The brokers refused the topic: {error}. {where}",
                progressing=again,
                degraded=not again,
            )
            return verdict, fields
        refusal = plan[name][1].refusal
        if refusal:
            return refusal, fields
        if state is None:
            return Verdict.waiting("Creating", "The topic is being created."), fields
        if not resource["spec"].get("managed", True):
            unmanaged = Verdict(True, "NotManaged", "The topic exists; managed is false.")
            return unmanaged, fields
        fields["appliedConfig"] = sorted(resource["spec"].get("config", {}))
        return Verdict.fine("The topic is as its spec asks."), fields

    def _too_early(self, resource: Manifest, error: KafkaError) -> bool:
        """Whether there will be brokers enough once all of the cluster's have joined."""
        cluster = self._store.get("QueueCluster", self._namespace, self._cluster)
        brokers = len(pod_layout.brokers(cluster)) if cluster else 1
        enough = int(resource["spec"].get("replicas") or 1) <= brokers
        return enough and error.code == ErrorCode.invalid_replication_factor

    async def _write(self, outcomes: list[tuple[Manifest, Verdict, dict[str, Any]]]) -> None:
        gate = asyncio.Semaphore(WRITES_MAX)

        async def one(resource: Manifest, verdict: Verdict, fields: dict[str, Any]) -> None:
            async with gate:
                await self._finalizer(resource)
                await self._statuses.write(resource, verdict, fields)

        await asyncio.gather(*(one(*outcome) for outcome in outcomes))

    async def _finalizer(self, resource: Manifest) -> None:
        """Hold the resource's deletion only where its policy asks for work in the brokers."""
        spec, meta = resource["spec"], resource["metadata"]
        wants = spec.get("deletionPolicy") == "Delete" and spec.get("managed", True)
        finalizers = meta.get("finalizers", [])
        if wants == (names.FINALIZER in finalizers):
            return
        kept = [f for f in finalizers if f != names.FINALIZER]
        kept += [names.FINALIZER] if wants else []
        await self._kube.merge(resource, {"metadata": {"finalizers": kept}})

    async def _delete(self, leaving: list[Manifest], winners: dict[str, Manifest]) -> bool:
        """Delete the topics of those that ask for it; whether some have to wait."""
        held = [o for o in leaving if names.FINALIZER in o["metadata"].get("finalizers", [])]
        doomed = sorted({t for o in held if (t := topic_name(o)) not in winners})
        failures = await self._brokers.delete_topics(doomed) if doomed else {}
        stuck = [o for o in held if topic_name(o) in failures]
        for resource in stuck:
            text = f"The topic is deleted once it can be: {failures[topic_name(resource)]}."
            await self._statuses.write(resource, Verdict.waiting("DeletionWaits", text))
        await self._release([o for o in held if o not in stuck])
        return bool(stuck)

    async def _release(self, leaving: list[Manifest]) -> None:
        for resource in leaving:
            kept = [f for f in resource["metadata"].get("finalizers", []) if f != names.FINALIZER]
            if len(kept) != len(resource["metadata"].get("finalizers", [])):
                await self._kube.merge(resource, {"metadata": {"finalizers": kept}})


def _camel(error: KafkaError) -> str:
    return "".join(part.capitalize() for part in error.code.name.split("_"))
