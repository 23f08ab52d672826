"""The log levels of this node as configs: the resource type BROKER_LOGGER (KIP-412).

The names of the configs are loggers, their values levels. They last until the node stops, so the
node itself answers, and not the controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.metadata.alterations import Operation
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server import logs
from shoal.server.logs import LEVELS, ROOT, Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.metadata.alterations import Alteration

#: DescribeConfigs' source of the configs of this type.
SOURCE = 6
_NAMES = ", ".join(sorted(level.name for level in Level))


def alter(node_id: int, asked: Alteration, *, validate_only: bool) -> list[str]:
    """Change the levels of loggers, all of them or none; return the changes as text.

    Raises `ApiError`.
    """
    names = [change.name for change in asked.changes]
    if len(set(names)) < len(names):
        raise _invalid("Error due to duplicate config keys")
    without = [c.name for c in asked.changes if c.value is None and c.operation != Operation.DELETE]
    if without:
        raise _invalid(f"Null value not supported for : {', '.join(without)}")
    if not asked.resource_name.isdecimal():
        raise _invalid(f"Node id must be an integer, but it is: {asked.resource_name}")
    if int(asked.resource_name) != node_id:
        raise _invalid(
            f"Unexpected node id. Expected {node_id}, but received {asked.resource_name}"
        )
    known = set(logs.LEVELS.loggers())
    for change in asked.changes:
        _check(change.name, change.value, change.operation, known)
    if validate_only:
        return []
    for change in asked.changes:
        if change.operation == Operation.SET:
            LEVELS.set(change.name, Level[str(change.value)])
        else:
            LEVELS.unset(change.name)
    return [f"log level of {name}: {LEVELS.of(name).name}" for name in names]


def _check(logger: str, level: str | None, operation: int, known: set[str]) -> None:
    if operation in (Operation.APPEND, Operation.SUBTRACT):
        name = Operation(operation).name
        raise _invalid(f"{name} operation is not allowed for the BROKER_LOGGER resource")
    if operation not in (Operation.SET, Operation.DELETE):
        raise _invalid(f"Unknown operations type {operation}")
    if logger not in known:
        raise ApiError(ErrorCode.invalid_config, f"Logger {logger} does not exist!")
    if operation == Operation.DELETE:
        if logger == ROOT:
            raise _invalid("Removing the log level of the root logger is not allowed")
    elif level not in Level.__members__:
        raise ApiError(
            ErrorCode.invalid_config,
            f"Cannot set the log level of {logger} to {level} as it is not a supported log level. "
            f"Valid log levels are {_NAMES}",
        )


def describe(node_id: int, name: str, wanted: list[str] | None) -> Iterator[dict[str, Any]]:
    """Yield DescribeConfigs' results of the levels in effect. Raises `ApiError`.

    `wanted` are the loggers, all without it.
    """
    if not name:
        raise _invalid("Broker id must not be empty")
    if not name.isdecimal():
        raise _invalid(f"Broker id must be an integer, but it is: {name}")
    if int(name) != node_id:
        raise _invalid(f"Unexpected broker id, expected {node_id} but received {name}")
    for logger in LEVELS.loggers():
        if not wanted or logger in wanted:
            yield {
                "name": logger,
                "value": LEVELS.of(logger).name,
                "read_only": False,
                "config_source": SOURCE,
                "is_sensitive": False,
                "synonyms": [],
                "config_type": 0,
                "documentation": None,
            }


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.invalid_request, message)
