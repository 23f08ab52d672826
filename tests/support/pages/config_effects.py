"""The test that observes the effect of each config that `docs/configs.md` calls applied.

`unit/tools/test_config_effects.py` compares the tables with this registry. A row of `PROOFS` is a
config and the test that sets it and observes its effect. A third field is the word by which the
test names the config, if that is neither its name nor its name with `_` for `.`. Broker configs in
`INHERITED` and `BOUNDS` need no row: `test_config_defaults` checks that topics and groups get their
values, and the config of the topic or group has its own proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.metadata.client_metrics import SUBSCRIPTION
from shoal.metadata.config_keys import ConfigEffect, ConfigKey, ConfigType, OneOf, Range
from shoal.metadata.configs import BROKER, GROUP, TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping

TABLES: dict[str, Mapping[str, ConfigKey]] = {
    "broker": BROKER,
    "topic": TOPIC,
    "group": GROUP,
    "client-metrics": SUBSCRIPTION,
}


def _inherited() -> dict[str, tuple[str, str, int]]:
    """Return the broker configs that are defaults: kind and name of the config that inherits the
    value, and the factor."""
    return {
        synonym.name: (kind, key.name, synonym.factor)
        for kind, table in (("topic", TOPIC), ("group", GROUP))
        for key in table.values()
        for synonym in key.synonyms
        if key.effect is ConfigEffect.APPLIED
    }


def _bounds() -> dict[str, tuple[str, bool]]:
    """Return the broker configs that bound a group config: its name, and whether it is a lower
    bound."""
    return {
        name: (key.name, at == 0)
        for key in GROUP.values()
        for at, name in enumerate(key.bounds)
        if name and key.effect is ConfigEffect.APPLIED
    }


INHERITED = _inherited()
BOUNDS = _bounds()


def another(key: ConfigKey) -> Any:
    """Return a valid value of the config other than its default."""
    if key.type is ConfigType.BOOLEAN:
        return not key.default
    if isinstance(key.check, OneOf):
        values = [v for v in key.check.values if v != key.default]
        if key.type is ConfigType.LIST:
            return next((v,) for v in values if (v,) != key.default)
        return values[0]
    if key.type in (ConfigType.STRING, ConfigType.CLASS):
        return "other"
    if key.type is ConfigType.LIST:
        return ("0:1",)
    low = key.check.low if isinstance(key.check, Range) else 1
    high = key.check.high if isinstance(key.check, Range) else None
    default = 0 if key.default is None else key.default
    if key.type is ConfigType.DOUBLE:
        return low + 0.25 if low + 0.25 != default else low + 0.5
    value = int(low) + 3 if default != int(low) + 3 else int(low) + 4
    return value if high is None or value <= high else int(high) - 1


class Proof(NamedTuple):
    """A test, as path and name, and the words by which it may name the config."""

    path: str
    test: str
    words: tuple[str, ...]


def _proofs(text: str) -> dict[str, list[Proof]]:
    """Parse rows `test config…` below a line with the path of their file. A row may continue on the
    next line. A config may have `=word`."""
    found: dict[str, list[Proof]] = {}
    path = test = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.endswith(".py"):
            path = line
            continue
        first, *names = line.split()
        if first.lower().startswith("test"):
            test = first
        else:
            names.insert(0, first)
        for name in names:
            config, _, word = name.partition("=")
            words = (config, config.replace(".", "_"), *([word] if word else []))
            found.setdefault(config, []).append(Proof(path, test, words))
    return found


PROOFS = {
    "broker": _proofs("""
unit/server/network/test_receive_memory.py
test_a_client_holds_no_more_than_is_free shoal.request.memory.bytes=MEMORY

unit/tiered/test_sealed_objects.py
test_keys_rotate_while_old_objects_stay_readable shoal.remote.compression.type=COMPRESSION
    shoal.remote.encryption.key.id=KEY_ID
test_objects_in_the_clear_that_only_the_bucket_knows_need_consent
    shoal.remote.encryption.clear.segments.enable=CLEAR_SEGMENTS
compat/tiered/test_sealing.py
test_keys_rotate_on_a_running_broker shoal.remote.encryption.key.directory
compat/tiered/test_compaction.py
test_compacted_topics_are_tiered_behind_a_switch shoal.remote.compacted.topics.enable=ENABLED
unit/tiered/test_object_store.py
test_uploads_are_signed_or_have_a_checksum shoal.remote.store.payload.signing
test_requests_go_to_the_endpoint_in_the_region shoal.remote.store.endpoint
    shoal.remote.store.region

compat/tiered/test_storage.py
test_records_are_read_from_the_store remote.log.storage.system.enable=Tiered
    shoal.remote.store.url=objects()
test_configs_of_copying_and_of_the_metadata_topic shoal.remote.copy.interval.ms
    shoal.remote.chunk.cache.bytes remote.log.manager.task.interval.ms
    rlmm.config.remote.log.metadata.topic.num.partitions
    rlmm.config.remote.log.metadata.topic.replication.factor
test_a_store_that_hangs shoal.remote.store.request.timeout.ms remote.fetch.max.wait.ms
    remote.list.offsets.request.timeout.ms

compat/tiered/test_rebuild.py
test_orphans_are_swept_after_the_grace_period shoal.remote.orphan.check.interval.ms=tiered

unit/tiered/test_quotas.py
test_copies_wait_for_the_quota remote.log.manager.copy.max.bytes.per.second=COPY
test_downloads_wait_for_the_quota_and_their_readers_are_woken
    remote.log.manager.fetch.max.bytes.per.second=FETCH
test_the_rate_is_measured_over_the_windows remote.log.manager.copy.quota.window.num
    remote.log.manager.copy.quota.window.size.seconds remote.log.manager.fetch.quota.window.num
    remote.log.manager.fetch.quota.window.size.seconds

wire/test_lost_files.py
test_strays_are_removed_after_the_configured_time shoal.log.stray.retention.ms

wire/test_disk_trouble.py
test_logs_at_their_limit_take_no_more_records_until_there_is_room shoal.log.dir.max.bytes

unit/tiered/test_manifest.py
test_orphans_are_deleted_after_the_grace_period shoal.remote.orphan.grace.ms=GRACE_MS

compat/oracles/test_security_admin.py
test_a_listener_without_a_secret_key delegation.token.secret.key

compat/oracles/test_delegation_tokens.py
test_creations delegation.token.max.lifetime.ms delegation.token.expiry.time.ms

compat/clients/test_removed_users.py
test_connections_stay_open_as_in_kafka shoal.sasl.scram.disconnect.removed.users
test_revoked_subjects shoal.ssl.revoked.subjects

wire/test_delegation_tokens.py
test_expired_tokens_are_removed_at_an_interval delegation.token.expiry.check.interval.ms

wire/test_config_effects.py
test_identity_of_a_broker broker.rack advertised.listeners
test_new_topics num.partitions default.replication.factor
test_internal_topics offsets.topic.num.partitions offsets.topic.segment.bytes
test_internal_topics transaction.state.log.num.partitions transaction.state.log.segment.bytes
test_internal_topics share.coordinator.state.topic.num.partitions
test_internal_topics share.coordinator.state.topic.segment.bytes
test_session_timeouts_of_classic_members group.min.session.timeout.ms group.max.session.timeout.ms
test_classic_groups_have_a_size group.max.size
test_consumer_groups group.consumer.max.size
test_metadata_of_offsets offset.metadata.max.bytes
test_partitions_in_a_description max.request.partition.size.limit
test_fetches fetch.max.bytes max.incremental.fetch.session.cache.slots
test_recovery_points_are_written log.flush.offset.checkpoint.interval.ms
test_metadata_snapshots_are_written metadata.log.max.snapshot.interval.ms
test_producers_are_forgotten producer.id.expiration.ms producer.id.expiration.check.interval.ms
test_transactional_ids transaction.max.timeout.ms transactional.id.expiration.ms
test_transactional_ids transaction.remove.expired.transaction.cleanup.interval.ms
test_pushed_metrics telemetry.max.bytes
test_the_backlog socket.listen.backlog.size
test_samples_of_the_controllers_quota controller.quota.window.num
test_samples_of_the_controllers_quota controller.quota.window.size.seconds
test_a_broker_alone_is_cordoned cordoned.log.dirs
test_share_state_is_compressed share.coordinator.state.topic.compression.codec
test_transactions_without_verification transaction.partition.verification.enable

wire/test_authorization.py
test_super_users_may_do_everything authorizer.class.name super.users
test_resources_without_an_entry allow.everyone.if.no.acl.found

wire/test_settings.py
test_the_time_for_opening_a_connection_grows socket.connection.setup.timeout.ms
test_the_time_for_opening_a_connection_grows socket.connection.setup.timeout.max.ms
test_metadata_snapshots_are_deleted_when_they_are_old metadata.max.retention.ms
test_metadata_snapshots_are_deleted_when_they_are_old metadata.max.retention.bytes
test_metadata_snapshots_are_deleted_when_they_are_old
    metadata.log.max.record.bytes.between.snapshots
test_socket_buffers socket.receive.buffer.bytes socket.send.buffer.bytes
test_a_broker_that_is_not_let_in_gives_up initial.broker.registration.timeout.ms
test_the_id_of_a_broker node.id broker.id
test_metadata_requests_create_topics auto.create.topics.enable
test_assignors_of_consumer_groups group.consumer.assignors

compat/oracles/test_settings.py
test_large_requests_wait_for_room_over_all_connections queued.max.request.bytes
test_batches_of_offsets_are_compressed offsets.topic.compression.codec
test_compaction_keeps_to_its_rate log.cleaner.io.max.bytes.per.second

compat/tiered/test_restore.py
test_a_cluster_comes_back_from_its_bucket shoal.remote.backup.interval.ms
test_a_bucket_belongs_to_one_cluster shoal.remote.lease.interval.ms
    shoal.remote.store.incarnation=INCARNATION

sim/test_tiered_scenes.py
test_a_broker_that_lost_its_disk_copies_the_tail follower.fetch.last.tiered.offset.enable

sim/test_settings_scenes.py
test_produces_that_wait_for_a_coordinator_are_bounded queued.max.requests
test_partitions_are_spread_over_fetch_loops_and_move_between_them num.replica.fetchers
test_how_a_follower_fetches replica.fetch.max.bytes replica.fetch.response.max.bytes
test_how_a_follower_fetches replica.fetch.min.bytes replica.fetch.wait.max.ms
test_a_follower_gives_up_a_leader_that_is_silent replica.socket.timeout.ms
test_a_follower_that_is_refused_waits replica.fetch.backoff.ms
test_how_a_controller_fetches_metadata controller.quorum.fetch.max.bytes
test_how_a_controller_fetches_metadata controller.quorum.fetch.snapshot.max.bytes
test_leaders_go_back_to_preferred_replicas auto.leader.rebalance.enable
test_leaders_go_back_to_preferred_replicas leader.imbalance.check.interval.seconds
test_a_broker_that_stops_hands_over controlled.shutdown.enable
test_a_follower_that_lags_leaves_the_isr replica.lag.time.max.ms
test_unclean_elections_are_looked_for unclean.leader.election.interval.ms
test_brokers_send_heartbeats broker.heartbeat.interval.ms
test_logs_are_compacted log.cleaner.enable
test_pauses_of_compaction log.cleaner.backoff.ms
test_memory_for_compaction log.cleaner.dedupe.buffer.size
test_the_first_rebalance_waits_for_more_members group.initial.rebalance.delay.ms
test_writes_of_coordinators_are_given_up offsets.commit.timeout.ms
test_writes_of_coordinators_are_given_up share.coordinator.write.timeout.ms
test_a_produce_waits_for_the_end_of_the_last_transaction
    add.partitions.to.txn.retry.backoff.max.ms
test_requests_to_the_controller_are_given_up request.timeout.ms

sim/test_scenes.py
test_a_leader_that_is_cut_off_refuses_when_its_session_is_over broker.session.timeout.ms

wire/test_metrics_listener.py
test_metrics_over_tls shoal.metrics.security.protocol
test_metrics_need_a_token shoal.metrics.token.file

wire/test_tls_listeners.py
test_formats_of_stores ssl.keystore.location ssl.keystore.type ssl.keystore.password
test_formats_of_stores ssl.keystore.key ssl.keystore.certificate.chain ssl.key.password
test_formats_of_stores ssl.truststore.location ssl.truststore.type ssl.truststore.password
test_formats_of_stores ssl.truststore.certificates
test_certificates_of_clients ssl.client.auth
test_users_are_named_by_rules ssl.principal.mapping.rules
test_versions_of_tls ssl.enabled.protocols
test_cipher_suites ssl.cipher.suites
test_names_in_the_certificates_of_other_nodes ssl.endpoint.identification.algorithm
test_another_subject_or_name_needs_permission ssl.allow.dn.changes ssl.allow.san.changes
test_revoked_certificates_are_refused shoal.ssl.crl.location
test_a_handshake_has_a_deadline shoal.ssl.handshake.timeout.ms
test_files_are_read_again shoal.ssl.reload.interval.ms

unit/server/test_broker_settings.py
test_security_between_brokers security.inter.broker.protocol
test_listeners_without_encryption_stay_on_this_host shoal.insecure.listeners.enable

unit/metadata/test_config_defaults.py
test_samples_of_throttled_replication replication.quota.window.num
test_samples_of_throttled_replication replication.quota.window.size.seconds
test_samples_of_throttled_replication follower.replication.throttled.rate
test_an_initialization_without_an_answer_is_asked_for_again
    group.share.initialize.retry.interval.ms
test_expiry_of_offsets_is_looked_for offsets.retention.check.interval.ms
test_when_a_quorum_acts controller.quorum.election.timeout.ms
test_when_a_quorum_acts controller.quorum.election.backoff.max.ms
test_when_a_quorum_acts controller.quorum.fetch.timeout.ms
test_when_a_quorum_acts controller.quorum.request.timeout.ms
test_when_a_quorum_acts controller.quorum.retry.backoff.ms

unit/coordinator/group/test_offsets.py
test_retention_counts_from_the_last_commit offsets.retention.minutes

unit/metadata/test_internal_topics.py
test_leaders_and_replicas_spread_over_brokers_and_racks offsets.topic.replication.factor
test_leaders_and_replicas_spread_over_brokers_and_racks
    transaction.state.log.replication.factor share.coordinator.state.topic.replication.factor
test_how_many_have_to_be_in_sync_grows_too share.coordinator.state.topic.min.isr
test_how_many_have_to_be_in_sync_grows_too transaction.state.log.min.isr
test_how_many_have_to_be_in_sync_grows_too rlmm.config.remote.log.metadata.topic.min.isr

unit/coordinator/group/test_migration.py
test_a_policy_may_forbid_the_upgrade group.consumer.migration.policy

unit/coordinator/group/test_streams_membership.py
test_the_size_of_a_group_is_limited group.streams.max.size
test_a_member_without_a_connection_is_fenced shoal.group.streams.connection.lost.grace.ms

unit/coordinator/group/test_share_membership.py
test_a_group_takes_no_more_members_than_it_may group.share.max.size
test_members_have_few_leaders group.share.assignors
test_a_lost_connection_ends_a_membership_after_the_grace
    shoal.group.share.connection.lost.grace.ms
test_the_takeover_interval_can_be_switched_off shoal.group.share.takeover.heartbeat.interval.ms

sim/test_settings_scenes.py
test_cold_share_partitions_get_snapshots
    share.coordinator.cold.partition.snapshot.interval.ms

wire/test_individual_commit.py
test_the_switch shoal.group.consumer.individual.commit.enable
test_a_partition_at_its_limit_accepts_only_what_closes_gaps
    shoal.group.consumer.individual.commit.max.ranges

wire/test_key_range_groups.py
test_the_switch shoal.group.consumer.key.ranges.enable
test_a_lost_connection_ends_a_membership_after_the_grace
    shoal.group.consumer.connection.lost.grace.ms
test_the_boundary_follows_the_load shoal.group.consumer.key.ranges.balance.interval.ms
test_members_with_key_ranges_heartbeat_often shoal.group.consumer.takeover.heartbeat.interval.ms

wire/test_key_ranges.py
test_the_switches_of_the_broker shoal.fetch.key.ranges.enable
    shoal.fetch.key.ranges.cache.bytes

wire/test_client_quotas.py
test_connections_of_an_address quota.window.num quota.window.size.seconds
test_connections_wait_for_their_turn max.connection.creation.rate
test_connections_at_a_time max.connections.per.ip max.connections.per.ip.overrides

wire/test_frames.py
test_the_largest_request_that_a_broker_reads socket.request.max.bytes

wire/test_hostile_requests.py
test_connections_that_trickle connections.max.idle.ms

compat/own_client/test_background_work.py
test_limits_on_connections max.connections
test_retention_by_size_and_time log.retention.check.interval.ms

compat/clients/python/test_admin_confluent.py
test_deletion_can_be_forbidden delete.topic.enable

compat/cli/test_server_command.py
test_health_and_metrics shoal.metrics.listener=metrics_url
test_the_directory_of_logs log.dir log.dirs

compat/oracles/test_share_protocol.py
test_the_number_of_sessions_is_limited group.share.max.share.sessions
test_the_state_log_is_cut_and_state_is_rebuilt_from_what_is_left
    share.coordinator.snapshot.update.records.per.snapshot
test_the_state_log_is_cut_and_state_is_rebuilt_from_what_is_left
    share.coordinator.state.topic.prune.interval.ms

compat/clients/test_queue_semantics.py
test_a_dead_letter_topic_is_created_where_the_broker_allows_it
    errors.deadletterqueue.auto.create.topics.enable=auto.create.topics.enable
test_dead_letter_topics_have_the_prefix_of_the_broker
    errors.deadletterqueue.topic.name.prefix=topic.name.prefix

compat/oracles/test_sasl_states.py
test_sequences sasl.enabled.mechanisms=sasl.enabled.mechanisms
test_sequences sasl.jaas.config=plain.sasl.jaas.config
test_errors_are_delayed connection.failed.authentication.delay.ms
test_a_session_ends connections.max.reauth.ms=connections.max.reauth.ms
test_the_size_of_requests_before_the_login
    sasl.server.max.receive.size=sasl.server.max.receive.size

compat/oracles/test_bearer_tokens.py
test_signed_tokens sasl.server.callback.handler.class=sasl.server.callback.handler.class
test_signed_tokens sasl.oauthbearer.jwks.endpoint.url=jwks.endpoint.url
test_signed_tokens sasl.oauthbearer.clock.skew.seconds=clock.skew.seconds
test_signed_tokens sasl.oauthbearer.expected.audience=expected.audience
test_signed_tokens sasl.oauthbearer.allow.unverified.audience=allow.unverified
test_signed_tokens sasl.oauthbearer.expected.issuer=expected.issuer
test_signed_tokens sasl.oauthbearer.scope.claim.name=scope.claim.name
test_signed_tokens sasl.oauthbearer.sub.claim.name=sub.claim.name

unit/server/network/test_key_sets.py
test_configs_of_a_key_set sasl.oauthbearer.jwks.endpoint.refresh.ms
test_configs_of_a_key_set sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
test_configs_of_a_key_set sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms

unit/server/network/test_authentication.py
test_configs_that_cannot_work shoal.oauthbearer.allowed.urls

cluster/test_replica_selector.py
test_a_consumer_reads_in_its_rack replica.selector.class

cluster/test_throttles.py
test_a_reassignment_takes_its_time_and_writes_do_not
    leader.replication.throttled.rate=_replication_throttled_rate

cluster/test_voters.py
test_a_controller_joins_automatically controller.quorum.auto.join.enable

cluster/test_broker_listeners.py
test_clients_and_brokers_have_listeners_of_their_own listeners=--listener
test_clients_and_brokers_have_listeners_of_their_own inter.broker.listener.name
test_clients_and_brokers_have_listeners_of_their_own controller.listener.names
test_clients_and_brokers_have_listeners_of_their_own controller.quorum.bootstrap.servers
test_a_listener_needs_a_security_protocol listener.security.protocol.map

cluster/test_growth.py
test_internal_topics_grow_and_outlive_the_broker_that_had_them_alone process.roles=ROLES

cluster/test_host.py
test_replicas_share_no_host_and_a_dead_broker_comes_back shoal.brokers.per.host=--brokers-per-host

cluster/test_bad_input.py
test_nodes_that_do_not_fit_a_running_cluster controller.quorum.voters=--quorum
test_a_node_that_was_given_another_clusters_id shoal.cluster.id=--cluster-id
"""),
    "topic": _proofs("""
compat/tiered/test_storage.py
test_records_are_read_from_the_store remote.storage.enable=create( local.retention.bytes=local_logs
test_configs_of_copying_and_of_the_metadata_topic local.retention.ms
test_copying_is_switched_off_and_on_again remote.log.copy.disable
test_a_topic_that_is_no_longer_tiered remote.log.delete.on.disable

compat/own_client/test_background_work.py
test_compaction_leaves_the_last_value_of_each_key cleanup.policy
test_retention_by_size_and_time retention.ms retention.bytes file.delete.delay.ms segment.bytes

compat/clients/test_librdkafka_produce_consume.py
test_a_record_too_large_is_refused max.message.bytes

compat/clients/test_queue_semantics.py
test_dead_letters_keep_the_record_and_the_reason errors.deadletterqueue.group.enable

unit/log/test_compaction.py
test_the_dirty_ratio_decides_and_the_largest_lag_overrules_it min.cleanable.dirty.ratio
test_the_dirty_ratio_decides_and_the_largest_lag_overrules_it max.compaction.lag.ms
test_min_compaction_lag_keeps_the_young min.compaction.lag.ms
test_a_tombstone_stays_for_its_delay_and_is_then_removed delete.retention.ms

unit/log/test_segments.py
test_a_segment_rolls_by_its_records_time segment.ms
test_jitter_rolls_earlier_and_the_same_in_every_run segment.jitter.ms
test_a_full_index_rolls segment.index.bytes index.interval.bytes
test_flush_messages_and_flush_ms flush.messages flush.ms

unit/tiered/test_copy_lag.py
test_remote_copy_lag_ms remote.copy.lag.ms
test_remote_copy_lag_bytes remote.copy.lag.bytes

unit/log/test_append.py
test_log_append_time message.timestamp.type
test_timestamps_too_far_ahead_and_behind message.timestamp.before.max.ms
test_timestamps_too_far_ahead_and_behind message.timestamp.after.max.ms
test_compression_type_of_the_topic compression.type

unit/metadata/test_config_defaults.py
test_levels_of_compression compression.gzip.level compression.lz4.level compression.zstd.level

wire/test_settings.py
test_new_segments_have_their_space_reserved preallocate

wire/test_deduplication.py
test_ids_are_known_after_a_restart_and_free_after_the_window shoal.deduplication.window.ms=window
test_more_ids_than_the_limit_are_refused shoal.deduplication.ids.max
test_ids_beyond_the_memory_are_in_files shoal.deduplication.memory.bytes

wire/test_group_commit.py
test_the_topic_decides_over_the_broker shoal.flush.group.commit

wire/test_key_ranges.py
test_the_switch_of_the_topic shoal.key.ranges.enable

cluster/test_replication.py
test_with_too_few_in_sync_acks_all_is_refused min.insync.replicas

cluster/test_throttles.py
test_a_reassignment_takes_its_time_and_writes_do_not
    leader.replication.throttled.replicas=_replication_throttled_replicas
test_a_reassignment_takes_its_time_and_writes_do_not
    follower.replication.throttled.replicas=_replication_throttled_replicas

sim/test_settings_scenes.py
test_unclean_elections_are_looked_for unclean.leader.election.enable
"""),
    "group": _proofs("""
unit/coordinator/group/test_streams_membership.py
test_a_silent_member_is_fenced_and_its_tasks_move streams.session.timeout.ms
test_the_heartbeat_interval_is_configured_and_shorter_while_a_member_waits
    streams.heartbeat.interval.ms
test_assignments_are_spaced streams.assignment.interval.ms
test_a_new_group_waits_for_members_and_then_assigns_without_a_heartbeat
    streams.initial.rebalance.delay.ms
test_standby_tasks_are_elsewhere streams.num.standby.replicas
test_the_interval_of_task_offsets_is_configured streams.task.offset.interval.ms

sim/test_settings_scenes.py
test_a_member_that_is_silent_is_out consumer.session.timeout.ms share.session.timeout.ms
test_assignments_are_spaced consumer.assignment.interval.ms share.assignment.interval.ms

wire/test_config_effects.py
test_consumer_groups consumer.heartbeat.interval.ms=group.consumer.heartbeat.interval.ms
test_share_groups share.heartbeat.interval.ms=group.share.heartbeat.interval.ms

compat/clients/test_share_consumer.py
test_a_group_starts_at_the_end_by_default share.auto.offset.reset
test_a_record_is_delivered_no_more_often_than_the_limit share.delivery.count.limit
test_no_more_records_are_in_flight_than_the_cap share.partition.max.record.locks

compat/clients/java/test_transactions_java.py
test_a_share_group_over_transactions share.isolation.level

compat/oracles/test_share_protocol.py
test_renewal_can_be_forbidden_and_fetches_nothing share.renew.acknowledge.enable
test_configs_hold_from_the_next_request_on share.record.lock.duration.ms

compat/clients/test_queue_semantics.py
test_a_paused_group_gets_nothing_until_it_is_resumed share.delivery.paused
test_dead_letters_keep_the_record_and_the_reason errors.deadletterqueue.topic.name=topic.name
    errors.deadletterqueue.copy.record.enable=copy.record.enable
test_a_group_may_drop_what_cannot_be_dead_lettered
    shoal.errors.deadletterqueue.drop.after.ms=drop.after.ms
test_a_flood_of_dead_letters_holds_delivery_until_the_limit_allows_it
    shoal.errors.deadletterqueue.flood.per.minute=flood.per.minute

compat/clients/test_key_order.py
test_a_released_record_holds_its_key_also_in_back_off share.redelivery.backoff.ms
test_up_to_a_batch_of_one_key_goes_to_a_member_at_once share.ordering.key.batch
test_delayed_records_hold_their_key_and_block_no_other share.delay.max.ms
test_a_hot_key_neither_blocks_others_nor_fills_the_window share.ordering
test_the_most_urgent_record_goes_first share.priority.header

compat/clients/test_held_keys.py
test_a_group_that_stops_holding_frees_its_keys share.ordering.key.dead.letter
test_the_limit_of_held_keys_stops_delivery_with_a_reason share.ordering.key.dead.letter.max.held

unit/coordinator/share/test_fair_groups.py
test_tenants_are_named_by_a_header_and_the_rest_share_one share.fairness.by
test_weights_share_the_workers share.fairness.weights
test_the_window_of_known_records_is_bounded_and_says_so share.fairness.lookahead.records
test_a_tenant_has_at_most_its_limit_in_flight share.tenant.max.in.flight
    share.tenant.max.in.flight.overrides
test_a_rate_holds_with_its_burst share.tenant.max.per.second share.tenant.max.per.second.overrides
    share.tenant.max.per.second.burst
test_a_paused_tenant_waits_until_it_is_resumed share.tenant.paused

unit/coordinator/share/test_backoff.py
test_waits_double_up_to_the_maximum share.redelivery.backoff.max.ms=Backoff
    share.redelivery.backoff.multiplier=Backoff
test_jitter_makes_waits_shorter_and_longer_but_never_longer_than_the_maximum
    share.redelivery.backoff.jitter=jitter

model/test_share_selection_model.py
TestShareSelection share.ordering.key.lookahead=lookahead
    share.priority.lookahead=priority_lookahead
TestShareSelection share.priority.ageing.ms=priority_ageing_ms share.delay.max.records=delayed_max
"""),
    "client-metrics": _proofs("""
wire/test_admin_requests.py
test_a_subscription_reaches_the_clients_that_match match metrics
test_a_subscription_has_an_interval interval.ms
"""),
}
