"""Versions of Apache Kafka 4.4 that kio does not have yet, as entities like kio's.

Most classes extend kio's entity of the version before, and add the fields of the new one. Delete a
class once kio has the version: `codec.find_known_versions` prefers kio's. Annotations are types,
not strings, because kio reads them from the fields.
"""

import uuid
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kio.schema.api_versions.v4.request import ApiVersionsRequest as ApiVersionsRequest4
from kio.schema.api_versions.v4.response import ApiVersionsResponse as ApiVersionsResponse4
from kio.schema.broker_heartbeat.v1.request import BrokerHeartbeatRequest as BrokerHeartbeatRequest1
from kio.schema.broker_heartbeat.v1.response import (
    BrokerHeartbeatResponse as BrokerHeartbeatResponse1,
)
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest as DeleteGroupsRequest2
from kio.schema.delete_groups.v2.response import DeletableGroupResult as DeletableGroupResult2
from kio.schema.delete_groups.v2.response import DeleteGroupsResponse as DeleteGroupsResponse2
from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.streams_group_describe.v0.request import (
    StreamsGroupDescribeRequest as StreamsGroupDescribeRequest0,
)
from kio.schema.streams_group_describe.v0.response import DescribedGroup as DescribedGroup0
from kio.schema.streams_group_describe.v0.response import (
    StreamsGroupDescribeResponse as StreamsGroupDescribeResponse0,
)
from kio.schema.streams_group_heartbeat.v0.request import (
    StreamsGroupHeartbeatRequest as StreamsGroupHeartbeatRequest0,
)
from kio.schema.streams_group_heartbeat.v0.response import EndpointToPartitions, Status, TaskIds
from kio.schema.txn_offset_commit.v5.request import (
    TxnOffsetCommitRequest as TxnOffsetCommitRequest5,
)
from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequestPartition
from kio.schema.txn_offset_commit.v5.response import (
    TxnOffsetCommitResponse as TxnOffsetCommitResponse5,
)
from kio.schema.txn_offset_commit.v5.response import TxnOffsetCommitResponsePartition
from kio.static.constants import EntityType
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

_entity = dataclass(frozen=True, slots=True, kw_only=True)


@_entity
class ApiVersionsRequest(ApiVersionsRequest4):
    """KIP-1242: the cluster and the node that the client means to reach; None and -1 for any."""

    __version__: ClassVar[i16] = i16(5)
    cluster_id: str | None = field(metadata={"kafka_type": "string"}, default=None)
    node_id: i32 = field(metadata={"kafka_type": "int32"}, default=i32(-1))


@_entity
class ApiVersionsResponse(ApiVersionsResponse4):
    __version__: ClassVar[i16] = i16(5)


@_entity
class TxnOffsetCommitRequestTopic:
    """KIP-1319: topics by id."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(6)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(28)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    topic_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})
    partitions: tuple[TxnOffsetCommitRequestPartition, ...]


@_entity
class TxnOffsetCommitRequest(TxnOffsetCommitRequest5):
    __version__: ClassVar[i16] = i16(6)
    topics: tuple[TxnOffsetCommitRequestTopic, ...]  # type: ignore[assignment]


@_entity
class TxnOffsetCommitResponseTopic:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(6)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(28)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    topic_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})
    partitions: tuple[TxnOffsetCommitResponsePartition, ...]


@_entity
class TxnOffsetCommitResponse(TxnOffsetCommitResponse5):
    __version__: ClassVar[i16] = i16(6)
    topics: tuple[TxnOffsetCommitResponseTopic, ...]  # type: ignore[assignment]


@_entity
class DeleteGroupsRequest(DeleteGroupsRequest2):
    __version__: ClassVar[i16] = i16(3)


@_entity
class DeletableGroupResult(DeletableGroupResult2):
    __version__: ClassVar[i16] = i16(3)
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)


@_entity
class DeleteGroupsResponse(DeleteGroupsResponse2):
    __version__: ClassVar[i16] = i16(3)
    results: tuple[DeletableGroupResult, ...]


@_entity
class BrokerHeartbeatRequest(BrokerHeartbeatRequest1):
    """KIP-1066: the log directories that get no new replicas."""

    __version__: ClassVar[i16] = i16(2)
    cordoned_log_dirs: tuple[uuid.UUID | None, ...] | None = field(
        metadata={"kafka_type": "uuid", "tag": 1}, default=None
    )


@_entity
class BrokerHeartbeatResponse(BrokerHeartbeatResponse1):
    __version__: ClassVar[i16] = i16(2)


@_entity
class StreamsGroupHeartbeatRequest(StreamsGroupHeartbeatRequest0):
    __version__: ClassVar[i16] = i16(1)


@_entity
class StreamsGroupHeartbeatResponse:
    """KIP-1331: asks for a description of the topology. The lag became wider, and moved."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(1)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(88)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)
    member_id: str = field(metadata={"kafka_type": "string"})
    member_epoch: i32 = field(metadata={"kafka_type": "int32"})
    heartbeat_interval: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    task_offset_interval: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    acceptable_recovery_lag: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    status: tuple[Status, ...] | None
    active_tasks: tuple[TaskIds, ...] | None
    standby_tasks: tuple[TaskIds, ...] | None
    warmup_tasks: tuple[TaskIds, ...] | None
    topology_description_required: bool = field(metadata={"kafka_type": "bool"}, default=False)
    endpoint_information_epoch: i32 = field(metadata={"kafka_type": "int32"})
    partitions_by_user_endpoint: tuple[EndpointToPartitions, ...] | None


@_entity
class StreamsGroupDescribeRequest(StreamsGroupDescribeRequest0):
    """KIP-1331: whether to return the description of the topology."""

    __version__: ClassVar[i16] = i16(1)
    include_topology_description: bool = field(metadata={"kafka_type": "bool"}, default=False)


@_entity
class TopologyDescriptionNode:
    """A source (1), processor (2) or sink (3) of a topology."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(93)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    name: str = field(metadata={"kafka_type": "string"})
    node_type: i8 = field(metadata={"kafka_type": "int8"})
    source_topics: tuple[str, ...] = field(metadata={"kafka_type": "string"}, default=())
    sink_topic: str | None = field(metadata={"kafka_type": "string"}, default=None)
    stores: tuple[str, ...] = field(metadata={"kafka_type": "string"}, default=())
    successors: tuple[str, ...] = field(metadata={"kafka_type": "string"}, default=())


@_entity
class TopologyDescriptionSubtopology:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(93)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    subtopology_id: str = field(metadata={"kafka_type": "string"})
    nodes: tuple[TopologyDescriptionNode, ...]


@_entity
class TopologyDescriptionGlobalStore:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(93)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    source: TopologyDescriptionNode
    processor: TopologyDescriptionNode


@_entity
class TopologyDescription:
    """A topology, as requests send it and responses return it."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(93)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    subtopologies: tuple[TopologyDescriptionSubtopology, ...]
    global_stores: tuple[TopologyDescriptionGlobalStore, ...]


@_entity
class DescribedGroup(DescribedGroup0):
    __version__: ClassVar[i16] = i16(1)
    topology_description: TopologyDescription | None = field(default=None)
    topology_description_status: i8 = field(metadata={"kafka_type": "int8"}, default=i8(0))
    assignor_name: str | None = field(metadata={"kafka_type": "string"}, default=None)


@_entity
class StreamsGroupDescribeResponse(StreamsGroupDescribeResponse0):
    __version__: ClassVar[i16] = i16(1)
    groups: tuple[DescribedGroup, ...]


@_entity
class StreamsGroupTopologyDescriptionUpdateRequest:
    """KIP-1331: the description of a topology, from a member of its group."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(93)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    group_id: str = field(metadata={"kafka_type": "string"})
    member_id: str = field(metadata={"kafka_type": "string"})
    topology_epoch: i32 = field(metadata={"kafka_type": "int32"})
    topology_description: TopologyDescription


@_entity
class StreamsGroupTopologyDescriptionUpdateResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(93)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)


@_entity
class UnregisterControllerRequest:
    """Forget a controller that has registered."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(94)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    controller_id: i32 = field(metadata={"kafka_type": "int32"})


@_entity
class UnregisterControllerResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(94)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: i16 = field(metadata={"kafka_type": "int16"})
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)


#: (API key, version, whether it is the request) -> entity.
ENTITIES: dict[tuple[int, int, bool], Any] = {
    (int(cls.__api_key__), int(cls.__version__), cls.__type__ is EntityType.request): cls
    for cls in (
        ApiVersionsRequest,
        ApiVersionsResponse,
        TxnOffsetCommitRequest,
        TxnOffsetCommitResponse,
        DeleteGroupsRequest,
        DeleteGroupsResponse,
        BrokerHeartbeatRequest,
        BrokerHeartbeatResponse,
        StreamsGroupHeartbeatRequest,
        StreamsGroupHeartbeatResponse,
        StreamsGroupDescribeRequest,
        StreamsGroupDescribeResponse,
        StreamsGroupTopologyDescriptionUpdateRequest,
        StreamsGroupTopologyDescriptionUpdateResponse,
        UnregisterControllerRequest,
        UnregisterControllerResponse,
    )
}
