"""The log levels of this node as configs: the resource type BROKER_LOGGER (KIP-412).

The names of the configs are loggers, their values levels. They last until the node stops, so the
node itself answers, and not the controller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.alterations import AlterConfigOperation
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server import logs
from shoal.server.logs import LEVELS, ROOT, LogLevel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.metadata.alterations import ConfigAlteration
    from shoal.protocol.responses import cluster as responses

#: DescribeConfigs' source of the configs of this type.
SOURCE = 6
_NAMES = ", ".join(sorted(level.name for level in LogLevel))


def alter(node_id: int, alteration: ConfigAlteration, *, validate_only: bool) -> list[str]:
    """Change the levels of loggers, all of them or none; return the changes as text.

    Raises `ApiError`.
    """
    names = [change.name for change in alteration.changes]
    if len(set(names)) < len(names):
        raise _make_error("Error due to duplicate config keys")
    without = [
        c.name
        for c in alteration.changes
        if c.value is None and c.operation != AlterConfigOperation.DELETE
    ]
    if without:
        raise _make_error(f"Null value not supported for : {', '.join(without)}")
    if not alteration.resource_name.isdecimal():
        raise _make_error(f"Node id must be an integer, but it is: {alteration.resource_name}")
    if int(alteration.resource_name) != node_id:
        raise _make_error(
            f"Unexpected node id. Expected {node_id}, but received {alteration.resource_name}"
        )
    loggers = set(logs.LEVELS.list_loggers())
    for change in alteration.changes:
        _check(change.name, change.value, change.operation, loggers)
    if validate_only:
        return []
    for change in alteration.changes:
        if change.operation == AlterConfigOperation.SET:
            LEVELS.set(change.name, LogLevel[str(change.value)])
        else:
            LEVELS.unset(change.name)
    return [f"log level of {name}: {LEVELS.get_level(name).name}" for name in names]


def _check(logger: str, level: str | None, operation: int, loggers: set[str]) -> None:
    if operation in (AlterConfigOperation.APPEND, AlterConfigOperation.SUBTRACT):
        name = AlterConfigOperation(operation).name
        raise _make_error(f"{name} operation is not allowed for the BROKER_LOGGER resource")
    if operation not in (AlterConfigOperation.SET, AlterConfigOperation.DELETE):
        raise _make_error(f"Unknown operations type {operation}")
    if logger not in loggers:
        raise ApiError(ErrorCode.invalid_config, f"Logger {logger} does not exist!")
    if operation == AlterConfigOperation.DELETE:
        if logger == ROOT:
            raise _make_error("Removing the log level of the root logger is not allowed")
    elif level not in LogLevel.__members__:
        raise ApiError(
            ErrorCode.invalid_config,
            f"Cannot set the log level of {logger} to {level} as it is not a supported log level. "
            f"Valid log levels are {_NAMES}",
        )


def describe(
    node_id: int, name: str, requested: list[str] | None
) -> Iterator[responses.DescribeConfigsResourceResult]:
    """Yield DescribeConfigs' results of the levels in effect. Raises `ApiError`.

    `requested` are the loggers, all without it.
    """
    if not name:
        raise _make_error("Broker id must not be empty")
    if not name.isdecimal():
        raise _make_error(f"Broker id must be an integer, but it is: {name}")
    if int(name) != node_id:
        raise _make_error(f"Unexpected broker id, expected {node_id} but received {name}")
    for logger in LEVELS.list_loggers():
        if not requested or logger in requested:
            yield {
                "name": logger,
                "value": LEVELS.get_level(logger).name,
                "read_only": False,
                "config_source": SOURCE,
                "is_sensitive": False,
                "synonyms": [],
                "config_type": 0,
                "documentation": None,
            }


def _make_error(message: str) -> ApiError:
    return ApiError(ErrorCode.invalid_request, message)
