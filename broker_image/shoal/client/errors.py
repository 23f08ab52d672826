"""Errors of the client, by their source.

`KafkaError` is a broker's refusal with one of Kafka's codes. `Unreachable`, `ConnectionLost`,
`RequestTimeout` and `LoginUnavailable` come from the network. `UnsupportedVersion` and
`SecurityError` are mismatches of the two ends. Each message is a sentence with the remedy. Calls on
many objects return the error of one object as a value; `expect` raises it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from shoal.protocol.errors import ErrorCode, get_error_name, to_error_code

if TYPE_CHECKING:
    from collections.abc import Mapping

K = TypeVar("K")
V = TypeVar("V")


class ClientError(Exception):
    """Any failure of the client."""


class Unreachable(ClientError):
    """No broker answered at an address: wrong address, broker down, or a firewall."""


class ConnectionRefused(Unreachable):
    """The host answered, but no process listens on the port."""


class WrongBroker(Unreachable):
    """Another broker than the one meant answered, or one of another cluster: an address is out of
    date, or a proxy sent the connection elsewhere (KIP-1242)."""


class ConnectionLost(ClientError):
    """The connection ended with requests pending. The broker may or may not have processed them."""


class RequestTimeout(ClientError):
    """The broker did not answer within the request's timeout."""


class UnsupportedVersion(ClientError):
    """The broker and this client share no version of an API."""


class SecurityError(ClientError):
    """TLS or SASL failed, or the security settings contradict each other."""


class LoginUnavailable(ClientError):
    """The identity provider of OAUTHBEARER did not answer."""


class KafkaError(ClientError):
    """A broker's refusal: `code` is Kafka's; `message` is the broker's, or ours if it sent none."""

    def __init__(self, code: ErrorCode | int, message: str | None = None) -> None:
        name = get_error_name(code)
        self.code = to_error_code(code)
        self.message = message
        super().__init__(f"{message.rstrip('.')} ({name})" if message else name)

    @property
    def retriable(self) -> bool:
        """Whether Kafka marks the code as retriable."""
        return self.code.retriable


class RecordsRefused(KafkaError):
    """A broker rejected a batch because of some of its records (KIP-467).

    `record_errors` maps the index of each such record in the batch to its message.
    """

    def __init__(
        self, code: ErrorCode | int, message: str | None, record_errors: dict[int, str | None]
    ) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors

    def get_error(self, index: int) -> ClientError:
        """Return the error of one record of the batch."""
        if index in self.record_errors:
            return KafkaError(self.code, self.record_errors[index] or self.message)
        return InvalidBatch(f"The record is valid, but others of its batch are not: {self}")


class RecordCancelled(KafkaError):
    """A lock is not renewed because somebody has cancelled its record for the group. The record is
    not delivered again, and an accept still counts."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.invalid_record_state, "the record was cancelled for the group")


class TransactionError(KafkaError):
    """A transactional producer cannot continue as it was asked to (KIP-1050). `code` is that of the
    cause, or TRANSACTION_ABORTABLE if it has none."""

    remedy = ""

    def __init__(self, cause: ClientError) -> None:
        code = cause.code if isinstance(cause, KafkaError) else ErrorCode.transaction_abortable
        message = (cause.message if isinstance(cause, KafkaError) else None) or str(cause)
        super().__init__(code, f"{message.rstrip('.')}. {self.remedy}")

    @property
    def retriable(self) -> bool:
        """A repeated request would fail, too."""
        return False


class TransactionAbortable(TransactionError):
    """The transaction cannot commit. The producer can begin another one after `abort`."""

    remedy = "Abort the transaction; then repeat it"


class ApplicationRecoverable(TransactionError):
    """The producer cannot continue, but a new one of the same transactional id can. For example,
    the coordinator has aborted a transaction that took longer than its timeout."""

    remedy = "Close this producer and start it again; its transaction does not commit"


class ProducerFenced(ApplicationRecoverable):
    """Another producer of the same transactional id has started, or the transaction timed out."""

    remedy = (
        "Another producer has started with this transactional id, or the transaction took longer"
        " than its timeout. Close this producer"
    )


class InvalidConfiguration(TransactionError):
    """The producer can only continue once permissions or settings are changed."""

    remedy = "Close this producer, and correct the permission or the setting"


class InvalidBatch(ClientError):
    """A valid record was not stored because others in its batch are invalid. Send it again."""


#: The cached metadata is out of date: a partition moved or a topic is new. Read it again.
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
#: The coordinator moved or is still loading.
STALE_COORDINATOR = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
    }
)


def is_transient(error: ClientError) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, KafkaError):
        return error.retriable
    return isinstance(error, Unreachable | ConnectionLost | RequestTimeout | LoginUnavailable)


def check(code: ErrorCode | int, message: str | None = None) -> None:
    """Raise `KafkaError` unless `code` is NONE."""
    if code:
        raise KafkaError(code, message)


def expect(results: Mapping[K, V | KafkaError]) -> dict[K, V]:
    """Return the values of a call on many objects, or raise the first error among them."""
    values: dict[K, V] = {}
    for key, value in results.items():
        if isinstance(value, KafkaError):
            raise value
        values[key] = value
    return values
