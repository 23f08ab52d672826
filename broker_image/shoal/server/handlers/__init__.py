"""The table of all APIs. ApiVersions is answered from it, and `docs/compat.md` is generated from
it.

Rows are in the order of their API keys. Each row has the listeners that serve it, by default those
of brokers. `TABLES` has the rows of each kind of listener. A request with a version outside the
range, or for an API that the listener does not serve, closes the connection, as in Kafka. Only
ApiVersions is answered then (`dispatch`).
"""

from __future__ import annotations

from dataclasses import replace

from shoal.protocol import produce as produce_request
from shoal.protocol import share as share_messages
from shoal.protocol.api import ApiKey
from shoal.server.cluster_config import Listeners
from shoal.server.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    allocate_producer_ids,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    api_versions,
    broker_heartbeat,
    broker_registration,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_share_group_state,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_share_group_offsets,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    envelope,
    expire_delegation_token,
    fetch,
    find_coordinator,
    get_telemetry_subscriptions,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    initialize_share_group_state,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    push_telemetry,
    raft,
    read_share_group_state,
    read_share_group_state_summary,
    renew_delegation_token,
    sasl_handshake,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    share_group_state,
    streams_group_describe,
    streams_group_heartbeat,
    sync_group,
    token_requests,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_share_group_state,
    write_txn_markers,
)
from shoal.server.handlers.authorization import needs_of
from shoal.server.network.api import Api

#: Requests that only the active controller answers. Other nodes forward them to it.
BY_CONTROLLER = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.ALTER_PARTITION,
        ApiKey.UPDATE_FEATURES,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
    }
)
#: The APIs of a node that joins its cluster: the quorum and the controller, no data.
EARLY = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.FETCH,
        ApiKey.VOTE,
        ApiKey.BEGIN_QUORUM_EPOCH,
        ApiKey.END_QUORUM_EPOCH,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.UPDATE_RAFT_VOTER,
        ApiKey.ENVELOPE,
    }
)

#: The feature that enables an API: share groups, streams groups, and the consumer protocol
#: (KIP-848).
OF_FEATURES = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "group.version",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "group.version",
    ApiKey.SHARE_GROUP_HEARTBEAT: "share.version",
    ApiKey.SHARE_GROUP_DESCRIBE: "share.version",
    ApiKey.SHARE_FETCH: "share.version",
    ApiKey.SHARE_ACKNOWLEDGE: "share.version",
    ApiKey.STREAMS_GROUP_HEARTBEAT: "streams.version",
    ApiKey.STREAMS_GROUP_DESCRIBE: "streams.version",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "share.version",
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: "share.version",
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: "share.version",
}

BROKER, CONTROLLER, BOTH = Listeners.BROKER, Listeners.CONTROLLER, Listeners.BOTH

HANDLERS: dict[int, Api] = {
    api.key: replace(
        api,
        by_controller=api.key in BY_CONTROLLER,
        feature=OF_FEATURES.get(api.key, ""),
        needs=needs_of(api.key),
    )
    for api in (
        Api(ApiKey.PRODUCE, range(3, 14), produce.handle, produce.refuse, produce_request.read),
        Api(ApiKey.FETCH, range(4, 19), fetch.handle, on=BOTH, on_controllers=raft.fetch),
        Api(
            ApiKey.LIST_OFFSETS,
            range(1, 12),
            list_offsets.handle,
            check=list_offsets.refuse_duplicates,
        ),
        Api(ApiKey.METADATA, range(14), metadata.handle, metadata.refuse),
        Api(ApiKey.OFFSET_COMMIT, range(2, 11), offset_commit.handle, offset_commit.refuse),
        Api(ApiKey.OFFSET_FETCH, range(1, 11), offset_fetch.handle),
        Api(ApiKey.FIND_COORDINATOR, range(7), find_coordinator.handle, find_coordinator.refuse),
        Api(ApiKey.JOIN_GROUP, range(10), join_group.handle, join_group.refuse),
        Api(ApiKey.HEARTBEAT, range(5), heartbeat.handle, heartbeat.refuse),
        Api(ApiKey.LEAVE_GROUP, range(6), leave_group.handle),
        Api(ApiKey.SYNC_GROUP, range(6), sync_group.handle),
        Api(ApiKey.DESCRIBE_GROUPS, range(7), describe_groups.handle),
        Api(ApiKey.LIST_GROUPS, range(6), list_groups.handle),
        Api(ApiKey.SASL_HANDSHAKE, range(2), sasl_handshake.handle, on=BOTH),
        Api(ApiKey.API_VERSIONS, range(5), api_versions.handle, on=BOTH),
        Api(
            ApiKey.CREATE_TOPICS,
            range(2, 8),
            create_topics.handle,
            create_topics.refuse,
            admit=create_topics.admit,
            on=BOTH,
        ),
        Api(ApiKey.DELETE_TOPICS, range(1, 7), delete_topics.handle, delete_topics.refuse, on=BOTH),
        Api(ApiKey.DELETE_RECORDS, range(3), delete_records.handle),
        Api(ApiKey.INIT_PRODUCER_ID, range(6), init_producer_id.handle, init_producer_id.refuse),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, range(2, 5), offset_for_leader_epoch.handle),
        Api(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            range(6),
            add_partitions_to_txn.handle,
            add_partitions_to_txn.refuse,
        ),
        Api(
            ApiKey.ADD_OFFSETS_TO_TXN,
            range(5),
            add_offsets_to_txn.handle,
            add_offsets_to_txn.refuse,
        ),
        Api(ApiKey.END_TXN, range(6), end_txn.handle, end_txn.refuse),
        Api(
            ApiKey.WRITE_TXN_MARKERS,
            range(1, 3),
            write_txn_markers.handle,
            write_txn_markers.refuse,
        ),
        Api(
            ApiKey.TXN_OFFSET_COMMIT,
            range(6),
            txn_offset_commit.handle,
            txn_offset_commit.refuse,
        ),
        Api(ApiKey.DESCRIBE_ACLS, range(1, 4), describe_acls.handle, on=BOTH),
        Api(
            ApiKey.CREATE_ACLS,
            range(1, 4),
            create_acls.handle,
            create_acls.refuse,
            create_acls.read,
            on=BOTH,
        ),
        Api(
            ApiKey.DELETE_ACLS,
            range(1, 4),
            delete_acls.handle,
            delete_acls.refuse,
            delete_acls.read,
            on=BOTH,
        ),
        Api(
            ApiKey.DESCRIBE_CONFIGS,
            range(1, 5),
            describe_configs.handle,
            describe_configs.refuse,
            on=BOTH,
        ),
        Api(
            ApiKey.ALTER_CONFIGS,
            range(3),
            alter_configs.handle,
            alter_configs.refuse,
            check=alter_configs.check,
            on=BOTH,
        ),
        Api(
            ApiKey.DESCRIBE_LOG_DIRS,
            range(1, 6),
            describe_log_dirs.handle,
            describe_log_dirs.refuse,
        ),
        Api(ApiKey.SASL_AUTHENTICATE, range(3), sasl_handshake.authenticate, on=BOTH),
        Api(
            ApiKey.CREATE_PARTITIONS,
            range(4),
            create_partitions.handle,
            create_partitions.refuse,
            on=BOTH,
        ),
        Api(
            ApiKey.CREATE_DELEGATION_TOKEN,
            range(1, 4),
            create_delegation_token.handle,
            create_delegation_token.refuse,
            admit=create_delegation_token.admit,
            on=BOTH,
        ),
        Api(
            ApiKey.RENEW_DELEGATION_TOKEN,
            range(1, 3),
            renew_delegation_token.handle,
            token_requests.refuse,
            admit=token_requests.admit,
            on=BOTH,
        ),
        Api(
            ApiKey.EXPIRE_DELEGATION_TOKEN,
            range(1, 3),
            expire_delegation_token.handle,
            token_requests.refuse,
            admit=token_requests.admit,
            on=BOTH,
        ),
        Api(
            ApiKey.DESCRIBE_DELEGATION_TOKEN,
            range(1, 4),
            describe_delegation_token.handle,
            admit=token_requests.admit,
            on=BOTH,
        ),
        Api(ApiKey.DELETE_GROUPS, range(3), delete_groups.handle),
        Api(ApiKey.ELECT_LEADERS, range(3), elect_leaders.handle, elect_leaders.refuse, on=BOTH),
        Api(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            range(2),
            incremental_alter_configs.handle,
            alter_configs.refuse,
            check=incremental_alter_configs.check,
            on=BOTH,
        ),
        Api(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            range(2),
            alter_partition_reassignments.handle,
            alter_partition_reassignments.refuse,
            on=BOTH,
        ),
        Api(
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            range(1),
            list_partition_reassignments.handle,
            list_partition_reassignments.refuse,
            on=BOTH,
        ),
        Api(ApiKey.OFFSET_DELETE, range(1), offset_delete.handle),
        Api(ApiKey.VOTE, range(3), raft.handle, on=CONTROLLER),
        Api(ApiKey.BEGIN_QUORUM_EPOCH, range(2), raft.handle, on=CONTROLLER),
        Api(ApiKey.END_QUORUM_EPOCH, range(2), raft.handle, on=CONTROLLER),
        Api(
            ApiKey.DESCRIBE_CLIENT_QUOTAS,
            range(2),
            describe_client_quotas.handle,
            describe_client_quotas.refuse,
        ),
        Api(
            ApiKey.ALTER_CLIENT_QUOTAS,
            range(2),
            alter_client_quotas.handle,
            alter_client_quotas.refuse,
            on=BOTH,
        ),
        Api(
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
            range(1),
            describe_user_scram_credentials.handle,
            describe_user_scram_credentials.refuse,
            on=BOTH,
        ),
        Api(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            range(1),
            alter_user_scram_credentials.handle,
            alter_user_scram_credentials.refuse,
            on=BOTH,
        ),
        Api(ApiKey.DESCRIBE_QUORUM, range(3), describe_quorum.handle, on=BOTH),
        Api(ApiKey.ALTER_PARTITION, range(2, 4), alter_partition.handle, on=CONTROLLER),
        Api(ApiKey.UPDATE_FEATURES, range(3), update_features.handle, on=BOTH),
        Api(ApiKey.ENVELOPE, range(1), envelope.handle, on=CONTROLLER),
        Api(ApiKey.FETCH_SNAPSHOT, range(2), raft.handle, on=CONTROLLER),
        Api(ApiKey.DESCRIBE_CLUSTER, range(3), describe_cluster.handle, on=BOTH),
        Api(ApiKey.DESCRIBE_PRODUCERS, range(1), describe_producers.handle),
        Api(ApiKey.BROKER_REGISTRATION, range(5), broker_registration.handle, on=CONTROLLER),
        Api(ApiKey.BROKER_HEARTBEAT, range(2), broker_heartbeat.handle, on=CONTROLLER),
        Api(ApiKey.UNREGISTER_BROKER, range(1), unregister_broker.handle, on=BOTH),
        Api(ApiKey.DESCRIBE_TRANSACTIONS, range(1), describe_transactions.handle),
        Api(ApiKey.LIST_TRANSACTIONS, range(3), list_transactions.handle),
        Api(ApiKey.ALLOCATE_PRODUCER_IDS, range(1), allocate_producer_ids.handle, on=CONTROLLER),
        Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, range(2), consumer_group_heartbeat.handle),
        Api(
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            range(2),
            consumer_group_describe.handle,
            consumer_group_describe.refuse,
        ),
        Api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, range(1), get_telemetry_subscriptions.handle),
        Api(ApiKey.PUSH_TELEMETRY, range(1), push_telemetry.handle),
        Api(ApiKey.LIST_CONFIG_RESOURCES, range(2), list_config_resources.handle),
        Api(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            range(1),
            describe_topic_partitions.handle,
            describe_topic_partitions.refuse,
        ),
        Api(ApiKey.SHARE_GROUP_HEARTBEAT, range(1, 2), share_group_heartbeat.handle),
        Api(
            ApiKey.SHARE_GROUP_DESCRIBE,
            range(1, 2),
            share_group_describe.handle,
            consumer_group_describe.refuse,
        ),
        Api(
            ApiKey.SHARE_FETCH,
            range(1, 3),
            share_fetch.handle,
            share_fetch.refuse,
            share_messages.read_fetch,
        ),
        Api(
            ApiKey.SHARE_ACKNOWLEDGE,
            range(1, 3),
            share_acknowledge.handle,
            share_acknowledge.refuse,
            share_messages.read_acknowledge,
        ),
        Api(ApiKey.ADD_RAFT_VOTER, range(2), raft.handle, on=BOTH),
        Api(ApiKey.REMOVE_RAFT_VOTER, range(1), raft.handle, on=BOTH),
        Api(ApiKey.UPDATE_RAFT_VOTER, range(1), raft.handle, on=CONTROLLER),
        Api(
            ApiKey.INITIALIZE_SHARE_GROUP_STATE,
            range(1),
            initialize_share_group_state.handle,
            share_group_state.refuse,
        ),
        Api(
            ApiKey.READ_SHARE_GROUP_STATE,
            range(1),
            read_share_group_state.handle,
            share_group_state.refuse,
        ),
        Api(
            ApiKey.WRITE_SHARE_GROUP_STATE,
            range(2),
            write_share_group_state.handle,
            share_group_state.refuse,
        ),
        Api(
            ApiKey.DELETE_SHARE_GROUP_STATE,
            range(1),
            delete_share_group_state.handle,
            share_group_state.refuse,
        ),
        Api(
            ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
            range(2),
            read_share_group_state_summary.handle,
            share_group_state.refuse,
        ),
        Api(
            ApiKey.STREAMS_GROUP_HEARTBEAT,
            range(1),
            streams_group_heartbeat.handle,
            streams_group_heartbeat.refuse,
        ),
        Api(
            ApiKey.STREAMS_GROUP_DESCRIBE,
            range(1),
            streams_group_describe.handle,
            consumer_group_describe.refuse,
        ),
        Api(
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            range(2),
            describe_share_group_offsets.handle,
            describe_share_group_offsets.refuse,
        ),
        Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, range(1), alter_share_group_offsets.handle),
        Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, range(1), delete_share_group_offsets.handle),
    )
}


def _table(kind: Listeners) -> dict[int, Api]:
    """The rows of a kind of listener, each with the handler for it."""
    return {
        key: replace(api, handle=(CONTROLLER in kind and api.on_controllers) or api.handle)
        for key, api in HANDLERS.items()
        if api.on & kind
    }


#: The rows of each kind of listener.
TABLES = {kind: _table(kind) for kind in (BROKER, CONTROLLER, BOTH)}
