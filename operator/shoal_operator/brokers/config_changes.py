"""Changes of configs of which the brokers refuse some.

The brokers change all configs of a topic, group or broker in one request, or none. If they refuse
them, each config is sent alone, so that one bad field does not keep the others from taking effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from shoal.client.errors import KafkaError

from shoal_operator.kube.conditions import Verdict

#: The name of a topic or group, or the id of a broker.
N = TypeVar("N", str, int)
#: Configs by topic, group or broker, to set, or to unset with None.
Changes = Mapping[N, Mapping[str, str | None]]
#: Sends changes; returns the errors by topic, group or broker.
Alter = Callable[[Changes[N]], Awaitable[dict[N, KafkaError]]]
#: Errors by topic, group or broker, then by config.
Refused = dict[N, dict[str, KafkaError]]


def make_refusal(errors: Mapping[str, KafkaError]) -> Verdict:
    """Return the verdict on a resource of which the brokers refused these fields."""
    causes = "; ".join(f"{field}: {error}" for field, error in sorted(errors.items()))
    text = f"The brokers refused {causes}."
    if any(error.retriable for error in errors.values()):
        return Verdict.make_waiting("ConfigRefused", text)
    return Verdict.make_refused(
        "ConfigRefused", f"{text} Change the spec. The other fields are in effect."
    )


async def send(alter: Alter[N], changes: Changes[N]) -> Refused[N]:
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


async def _send_apart(alter: Alter[N], changes: Changes[N]) -> Refused[N]:
    """Send one config of each topic, group or broker at a time; return the errors."""
    refused: Refused[N] = {}
    for config in sorted({config for change in changes.values() for config in change}):
        single = {name: {config: c[config]} for name, c in changes.items() if config in c}
        for name, error in (await alter(single)).items():
            refused.setdefault(name, {})[config] = error
    return refused
