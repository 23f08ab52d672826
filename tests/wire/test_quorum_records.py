"""The quorum's records and files compared with bytes that Apache Kafka 4.3.1 wrote.

A controller was formatted with `kafka-storage format --standalone` and started once.
"""

from __future__ import annotations

from uuid import UUID

from shoal.quorum import snapshots
from shoal.quorum.control_records import build_control_batch, read_control_batch
from shoal.quorum.log_index import OffsetAndEpoch
from shoal.quorum.quorum_state import QuorumState
from shoal.quorum.voters import ReplicaKey, Voter, VoterEndpoint, VoterSet
from shoal.record.batch import check_crc, read_header
from shoal.record.control import ControlType

#: 00000000000000000000.log, first batch: a leader's first records in a log without voters.
FIRST_BATCH = bytes.fromhex(
    "0000000000000000000000a20000000102bf01a2ed002000000002000001a1fd4c67de000001a1fd4c67de"
    "ffffffffffffffffffffffffffff000000033a00000008000000022600000000000102000000010002000000"
    "010000001e00000208000000050a000000010000820100000408000000066e00000200000001dcab1c536e2e"
    "4d87b5b36589f3905210020b434f4e54524f4c4c45520a3132372e302e302e3152d1000000000100000000"
)
#: 00000000000000000000-0000000000.checkpoint: header, kraft.version and voters; footer.
SNAPSHOT = bytes.fromhex(
    "00000000000000000000009a0000000002d6de0fa3002000000002000001a1fd4c53fc000001a1fd4c53fc"
    "ffffffffffffffffffffffffffff000000032a0000000800000003160000000001a1fd4c53ec00001e00000208"
    "000000050a000000010000820100000408000000066e00000200000001dcab1c536e2e4d87b5b36589f3905210"
    "020b434f4e54524f4c4c45520a3132372e302e302e3152d1000000000100000000"
    "00000000000000030000003f0000000002f512455f002000000000000001a1fd4c5421000001a1fd4c5421"
    "ffffffffffffffffffffffffffff000000011a00000008000000040600000000"
)
QUORUM_STATE = (
    b'{"leaderId":1,"leaderEpoch":2,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA",'
    b'"data_version":1}'
)
VOTERS = VoterSet.from_voters(
    [
        Voter(
            ReplicaKey(1, UUID("dcab1c53-6e2e-4d87-b5b3-6589f3905210")),
            (VoterEndpoint("CONTROLLER", "127.0.0.1", 21201),),
        )
    ]
)


def test_a_leaders_first_batch_is_kafkas_byte_for_byte() -> None:
    header = read_header(FIRST_BATCH)
    assert check_crc(FIRST_BATCH, 0, header)
    change, version, voters = read_control_batch(FIRST_BATCH)
    assert change.fields["leader_id"] == 1
    assert version.fields["kraft_version"] == 1
    assert VoterSet.from_fields(voters.fields) == VOTERS
    one = [{"voter_id": 1}]
    ours = build_control_batch(
        [
            (
                ControlType.LEADER_CHANGE,
                {"leader_id": 1, "voters": one, "granting_voters": one},
            ),
            (ControlType.KRAFT_VERSION, {"kraft_version": 1}),
            (ControlType.KRAFT_VOTERS, VOTERS.to_fields()),
        ],
        base_offset=0,
        leader_epoch=1,
        timestamp_ms=header.base_timestamp,
    )
    assert ours.hex() == FIRST_BATCH.hex()


def test_kafkas_snapshot_is_read() -> None:
    assert snapshots.read(SNAPSHOT) == (VOTERS, [])
    name = "00000000000000000000-0000000000.checkpoint"
    assert snapshots.parse_file_name(name) == OffsetAndEpoch(0, 0)
    assert snapshots.format_file_name(OffsetAndEpoch(0, 0)) == name


def test_the_quorum_state_is_kafkas_byte_for_byte() -> None:
    assert QuorumState.decode(QUORUM_STATE) == QuorumState(2, 1)
    assert QuorumState(2, 1).encode() == QUORUM_STATE
