"""What can go wrong between this client and a cluster, by whose word it is.

`KafkaError` is the broker's: one of Kafka's codes. `Unreachable`, `ConnectionLost` and
`RequestTimeout` are the network's. `Unsupported` and `SecurityError` are a mismatch of the two
ends. All say in a sentence what to do. In calls on many objects an error of one object is a value
in the result; `expect` turns such a result into an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from shoal.protocol.errors import ErrorCode

K = TypeVar("K")
V = TypeVar("V")


class ClientError(Exception):
    """Any failure of the client."""


class Unreachable(ClientError):
    """No broker answered at an address: wrong address, broker down, or a firewall."""


class Refused(Unreachable):
    """The host is there and nothing listens at the port: no such process, or not any more."""


class ConnectionLost(ClientError):
    """The connection ended while requests were under way; whether they took effect is unknown."""


class RequestTimeout(ClientError):
    """No answer within the request's time."""


class Unsupported(ClientError):
    """The broker serves no version of an API that this client speaks."""


class SecurityError(ClientError):
    """TLS or SASL refused, or settings that contradict each other."""


class KafkaError(ClientError):
    """A broker refused: `code` is Kafka's, `message` its own words or ours about what was asked."""

    def __init__(self, code: ErrorCode | int, message: str | None = None) -> None:
        try:
            self.code: ErrorCode = ErrorCode(code)
            name = self.code.name.upper()
        except ValueError:
            self.code = ErrorCode.unknown_server_error
            name = f"error {int(code)}"
        self.message = message
        super().__init__(f"{message.rstrip('.')} ({name})" if message else name)

    @property
    def retriable(self) -> bool:
        """Whether Kafka calls the code transient."""
        return self.code.retriable


class RecordsRefused(KafkaError):
    """A broker refused a batch because of some of its records (KIP-467). `record_errors` has the
    messages of these records by their index in the batch."""

    def __init__(
        self, code: ErrorCode | int, message: str | None, record_errors: dict[int, str | None]
    ) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors

    def of(self, index: int) -> ClientError:
        """The error of one record of the batch."""
        if index in self.record_errors:
            return KafkaError(self.code, self.record_errors[index] or self.message)
        return InvalidBatch(f"The record is valid, but others of its batch are not: {self}")


class InvalidBatch(ClientError):
    """A valid record was not stored because other records of its batch are invalid. Send it
    again."""


#: A partition moved, or a topic is younger than the metadata at hand: read metadata again.
STALE_METADATA = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.listener_not_found,
    }
)
#: The group lives elsewhere now, or is being loaded.
STALE_COORDINATOR = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
    }
)


def transient(error: ClientError) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, KafkaError):
        return error.retriable
    return isinstance(error, Unreachable | ConnectionLost | RequestTimeout)


def check(code: ErrorCode | int, message: str | None = None) -> None:
    """Raise `KafkaError` unless `code` is NONE."""
    if code:
        raise KafkaError(code, message)


def expect(results: Mapping[K, V | KafkaError]) -> dict[K, V]:
    """The values of a call on many objects; raises the first error among them."""
    values: dict[K, V] = {}
    for key, value in results.items():
        if isinstance(value, KafkaError):
            raise value
        values[key] = value
    return values
