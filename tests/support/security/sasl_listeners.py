"""Listeners whose clients log in, and the Apache Kafka of a run that has them, without access
control. It has the listener SASL of `token_brokers`, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.brokers.shared_servers import SharedKafka, start_once
from support.kafka.kafkas import KafkaProcess
from support.security import token_brokers

if TYPE_CHECKING:
    from pathlib import Path

#: SESSION has sessions without an end, LIMITED sessions of a minute, and BRIEF of a tenth of a
#: second.
LISTENERS = {"SESSION": 0, "LIMITED": 60_000, "BRIEF": 100}
USERS = 'user_alice="secret" user_bob="builder" user_zoë="pä ss"'
MODULE = "org.apache.kafka.common.security"
DELAY_MS = 150


def configs() -> dict[str, str]:
    """Return the configs of `LISTENERS`."""
    found = {"connection.failed.authentication.delay.ms": str(DELAY_MS)}
    for name, lifetime_ms in LISTENERS.items():
        prefix = f"listener.name.{name.lower()}."
        found |= {
            f"{prefix}sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            f"{prefix}connections.max.reauth.ms": str(lifetime_ms),
            f"{prefix}plain.sasl.jaas.config": f"{MODULE}.plain.PlainLoginModule required {USERS};",
        }
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            found[f"{prefix}{mechanism}.sasl.jaas.config"] = (
                f"{MODULE}.scram.ScramLoginModule required;"
            )
    found["listener.name.brief.sasl.server.max.receive.size"] = "1000"
    return found


def shared_kafka(run_directory: Path, controller_pid: int) -> SharedKafka:
    """Return the run's Kafka with the listeners; the arguments are those of `start_once`."""
    folder = run_directory / "sasl"

    def make() -> KafkaProcess:
        return KafkaProcess(
            folder / "node",
            listeners=dict.fromkeys((*LISTENERS, "SASL"), "SASL_PLAINTEXT"),
            configs={n: _java(v) for n, v in (configs() | token_brokers.CONFIGS).items()},
        )

    return start_once(folder, controller_pid, make)


def _java(text: str) -> str:
    """Escape a text for a file of Java properties, which is not UTF-8."""
    return "".join(c if c.isascii() else f"\\u{ord(c):04x}" for c in text)
