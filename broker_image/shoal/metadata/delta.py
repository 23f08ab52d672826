"""From one image to the next: replay records and report what they changed.

`ImageDraft` copies a part of the image when a record first changes it. Its `replay` is the only
code that changes metadata, at start from the log and at run time after a decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from shoal.metadata.image import (
    UNASSIGNED,
    BrokerEndpoint,
    BrokerImage,
    ConfigResourceType,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from shoal.security.acls import Acl, Operation, PatternType, Permission
from shoal.security.acls import ResourceType as AclType
from shoal.security.delegation_tokens import DelegationToken
from shoal.security.scram import ScramCredential

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shoal.metadata.records import MetadataRecord

_ZERO = UUID(int=0)


@dataclass(frozen=True, slots=True)
class MetadataDelta:
    """The differences between two images, ordered by name.

    A topic that was deleted and created again is in `deleted` and in `created`.
    """

    created: tuple[TopicImage, ...] = ()
    deleted: tuple[TopicImage, ...] = ()
    #: Topics with new or changed partitions: (before, after).
    changed: tuple[tuple[TopicImage, TopicImage], ...] = ()
    #: Resources (type, name) whose configs changed.
    configs: tuple[tuple[int, str], ...] = ()
    #: Brokers that were added, removed or changed.
    brokers: tuple[int, ...] = ()
    features: tuple[str, ...] = ()
    #: Entities whose client quotas changed.
    client_quotas: tuple[tuple[tuple[str, str | None], ...], ...] = ()
    #: Access control entries, ordered by their ids.
    acls_added: tuple[Acl, ...] = ()
    acls_removed: tuple[Acl, ...] = ()
    #: (user name, mechanism) of SCRAM credentials that were added, changed or removed.
    scram_credentials: tuple[tuple[str, int], ...] = ()
    #: Ids of delegation tokens that were added, changed or removed.
    delegation_tokens: tuple[str, ...] = ()

    @property
    def broker_config_changed(self) -> bool:
        return any(kind == ConfigResourceType.BROKER for kind, _ in self.configs)


def apply(
    image: MetadataImage, records: Iterable[MetadataRecord], *, offset: int, epoch: int
) -> tuple[MetadataImage, MetadataDelta]:
    """Return the image after `records`, the last of which is at `offset`, and the changes."""
    draft = ImageDraft(image)
    for record in records:
        draft.replay(record)
    return draft.finish(offset=offset, epoch=epoch)


def diff_images(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    """Return the differences between two images without the records between them."""
    changed = []
    for topic_id, topic in after.topics_by_id.items():
        old = before.topics_by_id.get(topic_id)
        if old is not None and old != topic:
            changed.append((old, topic))
    acls_added, acls_removed = _split_acl_changes(
        before.acls, {id: after.acls.get(id) for id in {*before.acls, *after.acls}}
    )
    return MetadataDelta(
        created=tuple(
            sorted(t for id, t in after.topics_by_id.items() if id not in before.topics_by_id)
        ),
        deleted=tuple(
            sorted(t for id, t in before.topics_by_id.items() if id not in after.topics_by_id)
        ),
        changed=tuple(sorted(changed, key=lambda pair: pair[1].name)),
        configs=tuple(sorted(_find_differing_keys(before.configs, after.configs))),
        brokers=tuple(sorted(_find_differing_keys(before.brokers, after.brokers))),
        features=tuple(sorted(_find_differing_keys(before.features, after.features))),
        # An entity's name may be None, which cannot be compared with a string.
        client_quotas=tuple(
            sorted(_find_differing_keys(before.client_quotas, after.client_quotas), key=str)
        ),
        acls_added=acls_added,
        acls_removed=acls_removed,
        scram_credentials=tuple(
            sorted(_find_differing_keys(before.scram_credentials, after.scram_credentials))
        ),
        delegation_tokens=tuple(
            sorted(_find_differing_keys(before.delegation_tokens, after.delegation_tokens))
        ),
    )


def combine(deltas: Iterable[MetadataDelta], image: MetadataImage) -> MetadataDelta:
    """Return one delta that names what `deltas` changed, as it is in `image`, the newest one.

    It is for a listener that could not apply those deltas, or only a part of each. Access control
    entries are not in it: they are counted, and counting in memory cannot fail.
    """
    topics, all_deltas = image.topics_by_id, list(deltas)
    created = {t.topic_id for delta in all_deltas for t in delta.created} & topics.keys()
    before = {old.topic_id: old for delta in reversed(all_deltas) for old, _ in delta.changed}
    changed = [
        (old, topics[id]) for id, old in before.items() if id in topics and id not in created
    ]
    return MetadataDelta(
        created=tuple(sorted(topics[id] for id in created)),
        deleted=tuple(topic for delta in all_deltas for topic in delta.deleted),
        changed=tuple(sorted(changed, key=lambda pair: pair[1].name)),
        configs=_unite(delta.configs for delta in all_deltas),
        brokers=_unite(delta.brokers for delta in all_deltas),
        features=_unite(delta.features for delta in all_deltas),
        client_quotas=_unite(delta.client_quotas for delta in all_deltas),
        scram_credentials=_unite(delta.scram_credentials for delta in all_deltas),
        delegation_tokens=_unite(delta.delegation_tokens for delta in all_deltas),
    )


def _unite(parts: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(sorted({item for part in parts for item in part}, key=str))


def _split_acl_changes(
    before: Mapping[UUID, Acl], changes: Mapping[UUID, Acl | None]
) -> tuple[tuple[Acl, ...], tuple[Acl, ...]]:
    """Return the entries that `changes` adds and removes."""
    added, removed = [], []
    for id, after in sorted(changes.items()):
        old = before.get(id)
        if old == after:
            continue
        if old is not None:
            removed.append(old)
        if after is not None:
            added.append(after)
    return tuple(added), tuple(removed)


def _find_differing_keys(before: Any, after: Any) -> set[Any]:
    return {key for key in {*before, *after} if before.get(key) != after.get(key)}


class ImageDraft:
    """The next image during the replay. Copies what changes; the base stays unchanged."""

    def __init__(self, base: MetadataImage) -> None:
        self._base = base
        self._topics: dict[UUID, TopicImage | None] = {}
        self._brokers: dict[int, BrokerImage | None] = {}
        self._features: dict[str, int] = {}
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._next_producer_id = base.next_producer_id
        self._quotas: dict[Any, dict[str, float]] = {}
        self._acls: dict[UUID, Acl | None] = {}
        self._scram: dict[tuple[str, int], ScramCredential | None] = {}
        self._tokens: dict[str, DelegationToken | None] = {}
        # Partitions of the topic of the current records, open for appending.
        self._open: tuple[UUID, list[PartitionImage]] | None = None

    def replay(self, record: MetadataRecord) -> None:
        """Apply one record to the draft."""
        self._REPLAY[record.kind](self, record.fields)

    def finish(self, *, offset: int, epoch: int) -> tuple[MetadataImage, MetadataDelta]:
        """Return the image after the records, the last of which is at `offset`, and the delta."""
        self._close()
        base = self._base
        topics, by_id, delta = self._finish_topics()
        brokers = _merge(base.brokers, self._brokers)
        features = _merge(
            base.features, {name: level or None for name, level in self._features.items()}
        )
        config_texts = _merge(
            base.configs, {key: texts or None for key, texts in self._configs.items()}
        )
        keep = not any(kind == ConfigResourceType.BROKER for kind, _ in self._configs)
        changed_names = {name for _, name in self._configs}
        following = MetadataImage(
            scope=base.scope,
            offset=offset,
            epoch=epoch,
            topics=topics,
            topics_by_id=by_id,
            brokers=brokers,
            features=features,
            configs=config_texts,
            next_producer_id=self._next_producer_id,
            client_quotas=_merge(
                base.client_quotas, {entity: v or None for entity, v in self._quotas.items()}
            ),
            acls=_merge(base.acls, self._acls),
            scram_credentials=_merge(base.scram_credentials, self._scram),
            delegation_tokens=_merge(base.delegation_tokens, self._tokens),
            known_topic_configs=_copy_without(base.known_topic_configs, changed_names, keep),
            known_group_configs=_copy_without(base.known_group_configs, changed_names, keep),
        )
        if keep:
            for name in ("layers", "broker_config", "_topic_defaults", "_group_defaults"):
                if name in base.__dict__:
                    following.__dict__[name] = base.__dict__[name]
        acls_added, acls_removed = _split_acl_changes(base.acls, self._acls)
        return following, MetadataDelta(
            *delta,
            configs=tuple(sorted(self._configs)),
            brokers=tuple(sorted(self._brokers)),
            features=tuple(sorted(self._features)),
            client_quotas=tuple(self._quotas),
            acls_added=acls_added,
            acls_removed=acls_removed,
            scram_credentials=tuple(sorted(self._scram)),
            delegation_tokens=tuple(sorted(self._tokens)),
        )

    def _finish_topics(self) -> tuple[Any, Any, tuple[Any, Any, Any]]:
        base = self._base
        if not self._topics:
            return base.topics, base.topics_by_id, ((), (), ())
        topics, by_id = dict(base.topics), dict(base.topics_by_id)
        created, deleted, changed = [], [], []
        for topic_id in self._topics:
            before = by_id.pop(topic_id, None)
            if before is not None and self._topics[topic_id] is None:
                deleted.append(before)
                del topics[before.name]
        for topic_id, after in self._topics.items():
            before = base.topics_by_id.get(topic_id)
            if after is None:
                continue
            topics[after.name] = by_id[topic_id] = after
            if before is None:
                created.append(after)
            elif before != after:
                changed.append((before, after))
        return (
            topics,
            by_id,
            (
                tuple(sorted(created)),
                tuple(sorted(deleted)),
                tuple(sorted(changed, key=lambda pair: pair[1].name)),
            ),
        )

    # One method for each type of record

    def _add_topic(self, fields: dict[str, Any]) -> None:
        topic_id = fields["topic_id"]
        self._topics[topic_id] = TopicImage(fields["name"], topic_id, ())

    def _remove_topic(self, fields: dict[str, Any]) -> None:
        self._close()
        topic = self._get_topic(fields["topic_id"])
        self._topics[topic.topic_id] = None
        self._copy_texts(ConfigResourceType.TOPIC, topic.name).clear()

    def _add_partition(self, fields: dict[str, Any]) -> None:
        partition = PartitionImage(
            tuple(fields["replicas"]),
            tuple(fields["isr"]),
            fields["leader"],
            fields["leader_epoch"],
            fields["partition_epoch"],
            tuple(fields.get("adding_replicas") or ()),
            tuple(fields.get("removing_replicas") or ()),
            _to_directories(fields.get("directories") or ()),
            fields.get("leader_recovery_state", 0),
            tuple(fields.get("eligible_leader_replicas") or ()),
            tuple(fields.get("last_known_elr") or ()),
        )
        partitions = self._open_partitions(fields["topic_id"])
        assert fields["partition_id"] == len(partitions), "partitions are made in order"
        partitions.append(partition)

    def _change_partition(self, fields: dict[str, Any]) -> None:
        partitions = self._open_partitions(fields["topic_id"])
        index = fields["partition_id"]
        partitions[index] = apply_partition_change(partitions[index], fields)

    def _set_config(self, fields: dict[str, Any]) -> None:
        texts = self._copy_texts(fields["resource_type"], fields["resource_name"])
        if fields["value"] is None:
            texts.pop(fields["name"], None)
        else:
            texts[fields["name"]] = fields["value"]

    def _set_feature(self, fields: dict[str, Any]) -> None:
        self._features[fields["name"]] = fields["feature_level"]

    def _set_client_quota(self, fields: dict[str, Any]) -> None:
        pairs = [(e["entity_type"], e["entity_name"]) for e in fields["entity"]]
        entity = tuple(sorted(pairs, key=lambda pair: pair[0]))
        values = self._quotas.get(entity)
        if values is None:
            values = self._quotas[entity] = dict(self._base.client_quotas.get(entity, {}))
        if fields.get("remove"):
            values.pop(fields["key"], None)
        else:
            values[fields["key"]] = fields["value"]

    def _set_producer_ids(self, fields: dict[str, Any]) -> None:
        self._next_producer_id = fields["next_producer_id"]

    def _register(self, fields: dict[str, Any]) -> None:
        self._brokers[fields["broker_id"]] = BrokerImage(
            fields["broker_id"],
            fields["incarnation_id"],
            fields["broker_epoch"],
            tuple(
                BrokerEndpoint(e["name"], e["host"], e["port"], e["security_protocol"])
                for e in fields["end_points"]
            ),
            {
                f["name"]: (f["min_supported_version"], f["max_supported_version"])
                for f in fields["features"]
            },
            fields.get("rack"),
            fields.get("fenced", True),
            fields.get("in_controlled_shutdown", False),
            tuple(fields.get("log_dirs") or ()),
            tuple(fields.get("cordoned_log_dirs") or ()),
        )

    def _unregister(self, fields: dict[str, Any]) -> None:
        self._brokers[fields["broker_id"]] = None

    def _change_registration(self, fields: dict[str, Any]) -> None:
        broker_id = fields["broker_id"]
        broker = self._brokers.get(broker_id, self._base.brokers.get(broker_id))
        assert broker is not None, f"broker {broker_id} is not registered"
        fenced, stopping = fields.get("fenced", 0), fields.get("in_controlled_shutdown", 0)
        cordoned = fields.get("cordoned_log_dirs")
        self._brokers[broker_id] = broker._replace(
            fenced=fenced > 0 if fenced else broker.fenced,
            in_controlled_shutdown=stopping > 0 or broker.in_controlled_shutdown,
            log_dirs=tuple(fields.get("log_dirs") or broker.log_dirs),
            cordoned_log_dirs=broker.cordoned_log_dirs if cordoned is None else tuple(cordoned),
        )

    def _add_acl(self, fields: dict[str, Any]) -> None:
        self._acls[fields["id"] or _ZERO] = Acl(
            AclType(fields["resource_type"]),
            fields["resource_name"],
            PatternType(fields["pattern_type"]),
            fields["principal"],
            fields["host"],
            Operation(fields["operation"]),
            Permission(fields["permission_type"]),
        )

    def _remove_acl(self, fields: dict[str, Any]) -> None:
        self._acls[fields["id"] or _ZERO] = None

    def _set_scram_credential(self, fields: dict[str, Any]) -> None:
        self._scram[fields["name"], fields["mechanism"]] = ScramCredential(
            fields["salt"], fields["stored_key"], fields["server_key"], fields["iterations"]
        )

    def _remove_scram_credential(self, fields: dict[str, Any]) -> None:
        self._scram[fields["name"], fields["mechanism"]] = None

    def _set_delegation_token(self, fields: dict[str, Any]) -> None:
        self._tokens[fields["token_id"]] = DelegationToken(
            fields["token_id"],
            fields["owner"],
            fields["requester"],
            tuple(fields["renewers"]),
            fields["issue_timestamp"],
            fields["max_timestamp"],
            fields["expiration_timestamp"],
        )

    def _remove_delegation_token(self, fields: dict[str, Any]) -> None:
        self._tokens[fields["token_id"]] = None

    def _ignore(self, fields: dict[str, Any]) -> None:
        pass

    _REPLAY: ClassVar[dict[str, Callable[[ImageDraft, dict[str, Any]], None]]] = {
        "RegisterBrokerRecord": _register,
        "UnregisterBrokerRecord": _unregister,
        "TopicRecord": _add_topic,
        "PartitionRecord": _add_partition,
        "ConfigRecord": _set_config,
        "PartitionChangeRecord": _change_partition,
        "RemoveTopicRecord": _remove_topic,
        "FeatureLevelRecord": _set_feature,
        "ClientQuotaRecord": _set_client_quota,
        "ProducerIdsRecord": _set_producer_ids,
        "BrokerRegistrationChangeRecord": _change_registration,
        "AccessControlEntryRecord": _add_acl,
        "RemoveAccessControlEntryRecord": _remove_acl,
        "UserScramCredentialRecord": _set_scram_credential,
        "RemoveUserScramCredentialRecord": _remove_scram_credential,
        "DelegationTokenRecord": _set_delegation_token,
        "RemoveDelegationTokenRecord": _remove_delegation_token,
        "NoOpRecord": _ignore,
    }

    # Parts that records change

    def _get_topic(self, topic_id: UUID) -> TopicImage:
        if topic_id in self._topics:
            topic = self._topics[topic_id]
        else:
            topic = self._base.topics_by_id.get(topic_id)
        assert topic is not None, f"no topic has the id {topic_id}"
        return topic

    def _open_partitions(self, topic_id: UUID) -> list[PartitionImage]:
        """Return the partitions of a topic, changed in place until another topic is opened."""
        if self._open is None or self._open[0] != topic_id:
            self._close()
            self._open = topic_id, list(self._get_topic(topic_id).partitions)
        return self._open[1]

    def _close(self) -> None:
        if self._open is not None:
            topic_id, partitions = self._open
            topic = self._get_topic(topic_id)
            self._topics[topic_id] = topic._replace(partitions=tuple(partitions))
            self._open = None

    def _copy_texts(self, resource_type: int, name: str) -> dict[str, str]:
        key = resource_type, name
        texts = self._configs.get(key)
        if texts is None:
            texts = self._configs[key] = dict(self._base.configs.get(key, {}))
        return texts


def _to_directories(directories: Iterable[UUID | None]) -> tuple[UUID, ...]:
    """Return directory ids; None becomes the zero id, which means unassigned."""
    return tuple(directory or UNASSIGNED for directory in directories)


def apply_partition_change(partition: PartitionImage, fields: dict[str, Any]) -> PartitionImage:
    """Return the partition after a PartitionChangeRecord's fields."""
    updates: dict[str, Any] = {"partition_epoch": partition.partition_epoch + 1}
    for name in (
        "isr",
        "replicas",
        "removing_replicas",
        "adding_replicas",
        "eligible_leader_replicas",
        "last_known_elr",
    ):
        if fields.get(name) is not None:
            updates[name] = tuple(fields[name])
    if fields.get("directories") is not None:
        updates["directories"] = _to_directories(fields["directories"])
    leader = fields.get("leader", -2)
    if leader != -2:
        updates["leader"] = leader
        updates["leader_epoch"] = partition.leader_epoch + 1
    if fields.get("leader_recovery_state", -1) != -1:
        updates["leader_recovery_state"] = fields["leader_recovery_state"]
    return partition._replace(**updates)


def _merge(base: Any, changes: dict[Any, Any]) -> Any:
    """Return `base` with changes applied; None removes a key."""
    if not changes:
        return base
    merged = {**base, **changes}
    for key, value in changes.items():
        if value is None:
            del merged[key]
    return merged


def _copy_without(cache: dict[str, Any], names: Iterable[str], keep: bool) -> dict[str, Any]:
    """Return a copy of a cache without the changed names; an empty one unless `keep`."""
    if not keep:
        return {}
    remaining = dict(cache)
    for name in names:
        remaining.pop(name, None)
    return remaining
