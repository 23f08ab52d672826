"""The table of all APIs: each fact of an API is in its row. ApiVersions is answered from it, and
`docs/compat.md` is generated from it.

Rows are in the order of their API keys: the versions, the permissions, the handler, and what
differs from other APIs. The listeners that serve an API are by default those of brokers. `TABLES`
has the rows of each kind of listener. A request with a version outside the range, or for an API
that the listener does not serve, closes the connection, as in Kafka. Only ApiVersions is answered
then (`dispatch`).
"""

from __future__ import annotations

from dataclasses import replace

from shoal.protocol import fetch as fetch_messages
from shoal.protocol import produce as produce_request
from shoal.protocol import share as share_messages
from shoal.protocol.api import ApiKey
from shoal.security.acls import Operation, ResourceType
from shoal.security.requirements import (
    ALTER_CLUSTER,
    ALTER_EACH_CONFIGS,
    DESCRIBE_CLUSTER,
    DESCRIBE_EACH_CONFIGS,
    DESCRIBE_GROUP,
    DESCRIBE_GROUPS,
    DESCRIBE_GROUPS_AND_MEMBERS,
    DESCRIBE_GROUPS_AND_TOPICS,
    DESCRIBE_TOPIC,
    DESCRIBE_TOPICS,
    INTER_BROKER,
    PUBLIC,
    READ_BY_GROUP_ID,
    READ_GROUP,
    READ_GROUP_AND_SUBSCRIBE,
    READ_GROUP_AND_TOPICS,
    READ_TOPIC,
    WRITE_BY_TRANSACTIONAL_ID,
    ApiPermissions,
    RequestPermission,
    ResourcePermission,
    require_on_cluster,
    require_on_each,
    require_on_group,
    require_on_resources,
)
from shoal.server.cluster_config import Listeners
from shoal.server.handlers.cluster import (
    alter_partition,
    api_versions,
    broker_heartbeat,
    broker_registration,
    describe_cluster,
    describe_quorum,
    envelope,
    raft,
    unregister_broker,
    unregister_controller,
    update_features,
)
from shoal.server.handlers.configs import (
    alter_client_quotas,
    alter_configs,
    describe_client_quotas,
    describe_configs,
    get_telemetry_subscriptions,
    incremental_alter_configs,
    list_config_resources,
    push_telemetry,
)
from shoal.server.handlers.groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    streams_group_describe,
    streams_group_heartbeat,
    streams_group_topology_description_update,
    sync_group,
)
from shoal.server.handlers.records import (
    delete_records,
    describe_producers,
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)
from shoal.server.handlers.security import (
    alter_user_scram_credentials,
    create_acls,
    create_delegation_token,
    delete_acls,
    describe_acls,
    describe_delegation_token,
    describe_user_scram_credentials,
    expire_delegation_token,
    renew_delegation_token,
    sasl_handshake,
    token_requests,
)
from shoal.server.handlers.share import (
    alter_share_group_offsets,
    delete_share_group_offsets,
    delete_share_group_state,
    describe_share_group_offsets,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    share_group_state,
    write_share_group_state,
)
from shoal.server.handlers.topics import (
    alter_partition_reassignments,
    create_partitions,
    create_topics,
    delete_topics,
    describe_log_dirs,
    describe_topic_partitions,
    elect_leaders,
    list_partition_reassignments,
    metadata,
)
from shoal.server.handlers.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    allocate_producer_ids,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
    write_txn_markers,
)
from shoal.server.network.api import Api

READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE, ALTER_CONFIGS = Operation.ALTER, Operation.DESCRIBE, Operation.ALTER_CONFIGS
CLUSTER_ACTION, DESCRIBE_CONFIGS = Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID
BROKER, CONTROLLER, BOTH = Listeners.BROKER, Listeners.CONTROLLER, Listeners.BOTH

_ROWS = (
    Api(
        ApiKey.PRODUCE,
        range(3, 14),
        require_on_resources(
            ResourcePermission(WRITE, TOPIC),
            # The handler checks the transactional id, since it depends on the records.
            ResourcePermission(WRITE, TRANSACTION, "a transactional producer"),
        ),
        produce.handle,
        produce.refuse,
        produce_request.read,
    ),
    Api(
        ApiKey.FETCH,
        range(4, 19),
        ApiPermissions(
            # Partitions that a follower may not fetch get the topic's refusal.
            for_resources=(
                ResourcePermission(READ, TOPIC, "a consumer"),
                ResourcePermission(CLUSTER_ACTION, CLUSTER, "a follower"),
            ),
            at_controllers=(RequestPermission((CLUSTER_ACTION,)),),
        ),
        fetch.handle,
        read=fetch_messages.read_request,
        read_in_slices=fetch_messages.read_request_in_slices,
        on=BOTH,
        on_controllers=raft.fetch,
        early=True,
    ),
    Api(
        ApiKey.LIST_OFFSETS,
        range(1, 12),
        DESCRIBE_TOPICS,
        list_offsets.handle,
        check=list_offsets.refuse_duplicates,
    ),
    Api(
        ApiKey.METADATA,
        range(14),
        require_on_resources(
            DESCRIBE_TOPIC,
            ResourcePermission(
                CREATE, TOPIC, "topics to be created automatically", or_cluster=CREATE
            ),
        ),
        metadata.handle,
        metadata.refuse,
    ),
    Api(
        ApiKey.OFFSET_COMMIT,
        range(2, 11),
        READ_GROUP_AND_TOPICS,
        offset_commit.handle,
        offset_commit.refuse,
    ),
    Api(ApiKey.OFFSET_FETCH, range(1, 11), DESCRIBE_GROUPS_AND_TOPICS, offset_fetch.handle),
    Api(
        ApiKey.FIND_COORDINATOR,
        range(7),
        require_on_resources(
            ResourcePermission(DESCRIBE, GROUP, "the coordinator of a group"),
            ResourcePermission(DESCRIBE, TRANSACTION, "the coordinator of a transactional id"),
            # One such key needs it for the whole request.
            ResourcePermission(CLUSTER_ACTION, CLUSTER, "the coordinator of a share partition"),
        ),
        find_coordinator.handle,
        find_coordinator.refuse,
    ),
    Api(ApiKey.JOIN_GROUP, range(10), READ_GROUP, join_group.handle, join_group.refuse),
    Api(ApiKey.HEARTBEAT, range(5), READ_GROUP, heartbeat.handle, heartbeat.refuse),
    Api(ApiKey.LEAVE_GROUP, range(6), READ_GROUP, leave_group.handle),
    Api(ApiKey.SYNC_GROUP, range(6), READ_GROUP, sync_group.handle),
    Api(ApiKey.DESCRIBE_GROUPS, range(7), DESCRIBE_GROUPS, describe_groups.handle),
    Api(
        ApiKey.LIST_GROUPS,
        range(6),
        require_on_each(DESCRIBE, GROUP, or_cluster=DESCRIBE),
        list_groups.handle,
    ),
    Api(ApiKey.SASL_HANDSHAKE, range(2), PUBLIC, sasl_handshake.handle, on=BOTH),
    Api(ApiKey.API_VERSIONS, range(6), PUBLIC, api_versions.handle, on=BOTH, early=True),
    Api(
        ApiKey.CREATE_TOPICS,
        range(2, 8),
        require_on_resources(
            ResourcePermission(CREATE, TOPIC, or_cluster=CREATE),
            ResourcePermission(DESCRIBE_CONFIGS, TOPIC, "to see the configs of the new topic"),
        ),
        create_topics.handle,
        create_topics.refuse,
        admit=create_topics.admit,
        on=BOTH,
        by_controller=True,
    ),
    Api(
        ApiKey.DELETE_TOPICS,
        range(1, 7),
        require_on_resources(
            ResourcePermission(DELETE, TOPIC, or_cluster=DELETE),
            ResourcePermission(
                DESCRIBE, TOPIC, "a topic that is named by its id", or_cluster=DELETE
            ),
        ),
        delete_topics.handle,
        delete_topics.refuse,
        on=BOTH,
        by_controller=True,
    ),
    Api(ApiKey.DELETE_RECORDS, range(3), require_on_each(DELETE, TOPIC), delete_records.handle),
    Api(
        ApiKey.INIT_PRODUCER_ID,
        range(6),
        ApiPermissions(
            (WRITE_BY_TRANSACTIONAL_ID._replace(condition="a transactional producer"),),
            # Without a transactional id (KIP-679).
            (
                ResourcePermission(
                    WRITE,
                    TOPIC,
                    "an idempotent producer; any topic suffices",
                    or_cluster=Operation.IDEMPOTENT_WRITE,
                ),
            ),
        ),
        init_producer_id.handle,
        init_producer_id.refuse,
    ),
    Api(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        range(2, 5),
        require_on_each(DESCRIBE, TOPIC, or_cluster=CLUSTER_ACTION),
        offset_for_leader_epoch.handle,
    ),
    Api(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        range(6),
        ApiPermissions(
            (
                RequestPermission(
                    (WRITE,),
                    TRANSACTION,
                    "v3_and_below_transactional_id",
                    range(4),
                    "a producer; versions 0 to 3",
                ),
                RequestPermission(
                    (CLUSTER_ACTION,),
                    versions=range(4, 1 << 15),
                    condition="a broker; since version 4",
                ),
            ),
            (ResourcePermission(WRITE, TOPIC, "a producer; versions 0 to 3"),),
        ),
        add_partitions_to_txn.handle,
        add_partitions_to_txn.refuse,
    ),
    Api(
        ApiKey.ADD_OFFSETS_TO_TXN,
        range(5),
        ApiPermissions((WRITE_BY_TRANSACTIONAL_ID, READ_BY_GROUP_ID)),
        add_offsets_to_txn.handle,
        add_offsets_to_txn.refuse,
    ),
    Api(
        ApiKey.END_TXN,
        range(6),
        ApiPermissions((WRITE_BY_TRANSACTIONAL_ID,)),
        end_txn.handle,
        end_txn.refuse,
    ),
    Api(
        ApiKey.WRITE_TXN_MARKERS,
        range(1, 3),
        require_on_cluster(ALTER, CLUSTER_ACTION),
        write_txn_markers.handle,
        write_txn_markers.refuse,
    ),
    Api(
        ApiKey.TXN_OFFSET_COMMIT,
        range(7),
        ApiPermissions((WRITE_BY_TRANSACTIONAL_ID, READ_BY_GROUP_ID), (READ_TOPIC,)),
        txn_offset_commit.handle,
        txn_offset_commit.refuse,
    ),
    Api(ApiKey.DESCRIBE_ACLS, range(1, 4), DESCRIBE_CLUSTER, describe_acls.handle, on=BOTH),
    Api(
        ApiKey.CREATE_ACLS,
        range(1, 4),
        ALTER_CLUSTER,
        create_acls.handle,
        create_acls.refuse,
        create_acls.read,
        on=BOTH,
        by_controller=True,
    ),
    Api(
        ApiKey.DELETE_ACLS,
        range(1, 4),
        ALTER_CLUSTER,
        delete_acls.handle,
        delete_acls.refuse,
        delete_acls.read,
        on=BOTH,
        by_controller=True,
    ),
    Api(
        ApiKey.DESCRIBE_CONFIGS,
        range(1, 5),
        DESCRIBE_EACH_CONFIGS,
        describe_configs.handle,
        describe_configs.refuse,
        on=BOTH,
    ),
    Api(
        ApiKey.ALTER_CONFIGS,
        range(3),
        ALTER_EACH_CONFIGS,
        alter_configs.handle,
        alter_configs.refuse,
        check=alter_configs.check,
        on=BOTH,
        by_controller=True,
    ),
    Api(
        ApiKey.DESCRIBE_LOG_DIRS,
        range(1, 6),
        DESCRIBE_CLUSTER,
        describe_log_dirs.handle,
        describe_log_dirs.refuse,
    ),
    Api(ApiKey.SASL_AUTHENTICATE, range(3), PUBLIC, sasl_handshake.authenticate, on=BOTH),
    Api(
        ApiKey.CREATE_PARTITIONS,
        range(4),
        require_on_each(ALTER, TOPIC),
        create_partitions.handle,
        create_partitions.refuse,
        on=BOTH,
        by_controller=True,
    ),
    Api(
        ApiKey.CREATE_DELEGATION_TOKEN,
        range(1, 4),
        require_on_resources(
            ResourcePermission(
                Operation.CREATE_TOKENS, ResourceType.USER, "a token for another user"
            )
        ),
        create_delegation_token.handle,
        create_delegation_token.refuse,
        admit=create_delegation_token.admit,
        on=BOTH,
        by_controller=True,
    ),
    Api(
        ApiKey.RENEW_DELEGATION_TOKEN,
        range(1, 3),
        PUBLIC,
        renew_delegation_token.handle,
        token_requests.refuse,
        admit=token_requests.admit,
        on=BOTH,
        by_controller=True,
    ),
    Api(
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        range(1, 3),
        PUBLIC,
        expire_delegation_token.handle,
        token_requests.refuse,
        admit=token_requests.admit,
        on=BOTH,
        by_controller=True,
    ),
    Api(
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        range(1, 4),
        require_on_resources(
            ResourcePermission(
                DESCRIBE, ResourceType.DELEGATION_TOKEN, "a token of another owner, by its id"
            ),
            ResourcePermission(
                Operation.DESCRIBE_TOKENS, ResourceType.USER, "the tokens of another owner"
            ),
        ),
        describe_delegation_token.handle,
        admit=token_requests.admit,
        on=BOTH,
    ),
    Api(ApiKey.DELETE_GROUPS, range(4), require_on_each(DELETE, GROUP), delete_groups.handle),
    Api(
        ApiKey.ELECT_LEADERS,
        range(3),
        ALTER_CLUSTER,
        elect_leaders.handle,
        elect_leaders.refuse,
        on=BOTH,
        by_controller=True,
    ),
    Api(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        range(2),
        ALTER_EACH_CONFIGS,
        incremental_alter_configs.handle,
        alter_configs.refuse,
        check=incremental_alter_configs.check,
        on=BOTH,
        by_controller=True,
    ),
    Api(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        range(2),
        ALTER_CLUSTER,
        alter_partition_reassignments.handle,
        alter_partition_reassignments.refuse,
        on=BOTH,
        by_controller=True,
    ),
    Api(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        range(1),
        DESCRIBE_CLUSTER,
        list_partition_reassignments.handle,
        list_partition_reassignments.refuse,
        on=BOTH,
        by_controller=True,
    ),
    Api(ApiKey.OFFSET_DELETE, range(1), require_on_group(DELETE, READ_TOPIC), offset_delete.handle),
    Api(ApiKey.VOTE, range(3), INTER_BROKER, raft.handle, on=CONTROLLER, early=True),
    Api(ApiKey.BEGIN_QUORUM_EPOCH, range(2), INTER_BROKER, raft.handle, on=CONTROLLER, early=True),
    Api(ApiKey.END_QUORUM_EPOCH, range(2), INTER_BROKER, raft.handle, on=CONTROLLER, early=True),
    Api(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        range(2),
        require_on_cluster(DESCRIBE_CONFIGS),
        describe_client_quotas.handle,
        describe_client_quotas.refuse,
    ),
    Api(
        ApiKey.ALTER_CLIENT_QUOTAS,
        range(2),
        require_on_cluster(ALTER_CONFIGS),
        alter_client_quotas.handle,
        alter_client_quotas.refuse,
        on=BOTH,
        by_controller=True,
    ),
    Api(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        range(1),
        DESCRIBE_CLUSTER,
        describe_user_scram_credentials.handle,
        describe_user_scram_credentials.refuse,
        on=BOTH,
    ),
    Api(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        range(1),
        ALTER_CLUSTER,
        alter_user_scram_credentials.handle,
        alter_user_scram_credentials.refuse,
        on=BOTH,
        by_controller=True,
    ),
    Api(
        ApiKey.DESCRIBE_QUORUM,
        range(3),
        DESCRIBE_CLUSTER,
        describe_quorum.handle,
        on=BOTH,
        by_controller=True,
    ),
    Api(
        ApiKey.ALTER_PARTITION,
        range(2, 4),
        INTER_BROKER,
        alter_partition.handle,
        on=CONTROLLER,
        by_controller=True,
    ),
    Api(
        ApiKey.UPDATE_FEATURES,
        range(3),
        ALTER_CLUSTER,
        update_features.handle,
        on=BOTH,
        by_controller=True,
    ),
    Api(ApiKey.ENVELOPE, range(1), INTER_BROKER, envelope.handle, on=CONTROLLER, early=True),
    Api(ApiKey.FETCH_SNAPSHOT, range(2), INTER_BROKER, raft.handle, on=CONTROLLER, early=True),
    Api(
        ApiKey.DESCRIBE_CLUSTER,
        range(3),
        ApiPermissions(
            for_resources=(
                ResourcePermission(DESCRIBE, CLUSTER, "to see the permitted operations"),
            ),
            at_controllers=(RequestPermission((ALTER,), condition="on a listener of controllers"),),
        ),
        describe_cluster.handle,
        on=BOTH,
    ),
    Api(
        ApiKey.DESCRIBE_PRODUCERS,
        range(1),
        require_on_each(READ, TOPIC),
        describe_producers.handle,
        check=describe_producers.drop_repeated,
    ),
    Api(
        ApiKey.BROKER_REGISTRATION,
        range(5),
        INTER_BROKER,
        broker_registration.handle,
        on=CONTROLLER,
        by_controller=True,
    ),
    Api(
        ApiKey.BROKER_HEARTBEAT,
        range(3),
        INTER_BROKER,
        broker_heartbeat.handle,
        on=CONTROLLER,
        by_controller=True,
    ),
    Api(
        ApiKey.UNREGISTER_BROKER,
        range(1),
        ALTER_CLUSTER,
        unregister_broker.handle,
        on=BOTH,
        by_controller=True,
    ),
    Api(
        ApiKey.DESCRIBE_TRANSACTIONS,
        range(1),
        require_on_resources(
            ResourcePermission(DESCRIBE, TRANSACTION),
            ResourcePermission(DESCRIBE, TOPIC, "topics of the transaction; others are not shown"),
        ),
        describe_transactions.handle,
    ),
    Api(
        ApiKey.LIST_TRANSACTIONS,
        range(3),
        require_on_each(DESCRIBE, TRANSACTION),
        list_transactions.handle,
    ),
    Api(
        ApiKey.ALLOCATE_PRODUCER_IDS,
        range(1),
        INTER_BROKER,
        allocate_producer_ids.handle,
        on=CONTROLLER,
        by_controller=True,
    ),
    Api(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        range(2),
        READ_GROUP_AND_SUBSCRIBE,
        consumer_group_heartbeat.handle,
        feature="group.version",
    ),
    Api(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        range(2),
        DESCRIBE_GROUPS_AND_MEMBERS,
        consumer_group_describe.handle,
        consumer_group_describe.refuse,
        feature="group.version",
    ),
    Api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, range(1), PUBLIC, get_telemetry_subscriptions.handle),
    Api(ApiKey.PUSH_TELEMETRY, range(1), PUBLIC, push_telemetry.handle),
    Api(
        ApiKey.LIST_CONFIG_RESOURCES,
        range(2),
        require_on_cluster(DESCRIBE_CONFIGS),
        list_config_resources.handle,
    ),
    Api(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        range(1),
        DESCRIBE_TOPICS,
        describe_topic_partitions.handle,
        describe_topic_partitions.refuse,
    ),
    Api(
        ApiKey.SHARE_GROUP_HEARTBEAT,
        range(1, 2),
        READ_GROUP_AND_SUBSCRIBE,
        share_group_heartbeat.handle,
        feature="share.version",
    ),
    Api(
        ApiKey.SHARE_GROUP_DESCRIBE,
        range(1, 2),
        DESCRIBE_GROUPS_AND_MEMBERS,
        share_group_describe.handle,
        consumer_group_describe.refuse,
        feature="share.version",
    ),
    Api(
        ApiKey.SHARE_FETCH,
        range(1, 3),
        READ_GROUP_AND_TOPICS,
        share_fetch.handle,
        share_fetch.refuse,
        share_messages.read_fetch,
        share_messages.read_fetch_in_slices,
        feature="share.version",
    ),
    Api(
        ApiKey.SHARE_ACKNOWLEDGE,
        range(1, 3),
        READ_GROUP_AND_TOPICS,
        share_acknowledge.handle,
        share_acknowledge.refuse,
        share_messages.read_acknowledge,
        share_messages.read_acknowledge_in_slices,
        feature="share.version",
    ),
    Api(ApiKey.ADD_RAFT_VOTER, range(2), ALTER_CLUSTER, raft.handle, on=BOTH, by_controller=True),
    Api(
        ApiKey.REMOVE_RAFT_VOTER, range(1), ALTER_CLUSTER, raft.handle, on=BOTH, by_controller=True
    ),
    Api(ApiKey.UPDATE_RAFT_VOTER, range(1), INTER_BROKER, raft.handle, on=CONTROLLER, early=True),
    Api(
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        range(1),
        INTER_BROKER,
        initialize_share_group_state.handle,
        share_group_state.refuse,
    ),
    Api(
        ApiKey.READ_SHARE_GROUP_STATE,
        range(1),
        INTER_BROKER,
        read_share_group_state.handle,
        share_group_state.refuse,
    ),
    Api(
        ApiKey.WRITE_SHARE_GROUP_STATE,
        range(2),
        INTER_BROKER,
        write_share_group_state.handle,
        share_group_state.refuse,
    ),
    Api(
        ApiKey.DELETE_SHARE_GROUP_STATE,
        range(1),
        INTER_BROKER,
        delete_share_group_state.handle,
        share_group_state.refuse,
    ),
    Api(
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
        range(2),
        INTER_BROKER,
        read_share_group_state_summary.handle,
        share_group_state.refuse,
    ),
    Api(
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        range(2),
        require_on_group(
            READ,
            ResourcePermission(DESCRIBE, TOPIC, "topics of the application's topology"),
            ResourcePermission(
                CREATE, TOPIC, "internal topics that do not exist yet", or_cluster=CREATE
            ),
        ),
        streams_group_heartbeat.handle,
        streams_group_heartbeat.refuse,
        feature="streams.version",
    ),
    Api(
        ApiKey.STREAMS_GROUP_DESCRIBE,
        range(2),
        require_on_resources(
            DESCRIBE_GROUP,
            ResourcePermission(
                DESCRIBE, TOPIC, "topics of the topology; without it the group is not shown"
            ),
        ),
        streams_group_describe.handle,
        consumer_group_describe.refuse,
        feature="streams.version",
    ),
    Api(
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        range(2),
        DESCRIBE_GROUPS_AND_TOPICS,
        describe_share_group_offsets.handle,
        describe_share_group_offsets.refuse,
        feature="share.version",
    ),
    Api(
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        range(1),
        READ_GROUP_AND_TOPICS,
        alter_share_group_offsets.handle,
        feature="share.version",
    ),
    Api(
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        range(1),
        require_on_group(DELETE, READ_TOPIC),
        delete_share_group_offsets.handle,
        feature="share.version",
    ),
    Api(
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
        range(1),
        READ_GROUP,
        streams_group_topology_description_update.handle,
        feature="streams.version",
    ),
    Api(
        ApiKey.UNREGISTER_CONTROLLER,
        range(1),
        ALTER_CLUSTER,
        unregister_controller.handle,
        on=BOTH,
        by_controller=True,
    ),
)
#: The table, by API key.
HANDLERS: dict[int, Api] = {api.key: api for api in _ROWS}


def _build_table(kind: Listeners) -> dict[int, Api]:
    """The rows of a kind of listener, each with the handler for it."""
    return {
        key: replace(api, handle=(CONTROLLER in kind and api.on_controllers) or api.handle)
        for key, api in HANDLERS.items()
        if api.on & kind
    }


#: The rows of each kind of listener.
TABLES = {kind: _build_table(kind) for kind in (BROKER, CONTROLLER, BOTH)}
