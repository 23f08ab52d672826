"""Changes of configs of which the brokers refuse some.

The brokers change all configs of a topic or group in one request, or none. If they refuse them,
each config is sent alone, so that one bad field does not keep the others from taking effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from shoal.client.errors import KafkaError

    #: Configs by topic or group, to set, or to unset with None.
    Changes = Mapping[str, Mapping[str, str | None]]
    #: Sends changes; returns the errors by topic or group.
    Alter = Callable[[Changes], Awaitable[dict[str, KafkaError]]]
    #: Errors by topic or group, then by config.
    Refused = dict[str, dict[str, KafkaError]]


async def send(alter: Alter, changes: Changes) -> Refused:
    """Change configs; return the errors. Raises `ClientError`.

    What the brokers will accept later is not sent again.
    """
    failures = await alter(changes) if changes else {}
    refused = {name: dict.fromkeys(changes[name], error) for name, error in failures.items()}
    apart = {n: changes[n] for n, e in failures.items() if not e.retriable and len(changes[n]) > 1}
    # A config may be valid only after another one, so they are repeated while that helps.
    while apart:
        errors = await _send_apart(alter, apart)
        for name in apart:
            refused.pop(name)
        refused |= errors
        remaining = {name: {key: apart[name][key] for key in errors[name]} for name in errors}
        apart = {
            name: change for name, change in remaining.items() if len(change) < len(apart[name])
        }
    return refused


async def _send_apart(alter: Alter, changes: Changes) -> Refused:
    """Send one config of each topic or group at a time; return the errors."""
    refused: Refused = {}
    for config in sorted({config for change in changes.values() for config in change}):
        single = {name: {config: c[config]} for name, c in changes.items() if config in c}
        for name, error in (await alter(single)).items():
            refused.setdefault(name, {})[config] = error
    return refused
