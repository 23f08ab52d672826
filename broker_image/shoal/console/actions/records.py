"""The action that produces one record to a topic, and how payloads are typed into forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.console import figures
from shoal.console.actions.contract import Field, Given, Mistake, Plan, Result, Scene, hidden
from shoal.console.render import link

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.console.runs import Run

TEXT, HEX, NULL = "text", "hex", "null"
FORMATS = ((TEXT, "text (UTF-8)"), (HEX, "hexadecimal"), (NULL, "null"))


def typed(given: Given, name: str, label: str) -> bytes | None:
    """Return a payload from the fields NAME and NAME-format. Raises `Mistake`.

    Browsers send line breaks as CR LF; in text they become LF.
    """
    text, format = given.one(name), given.one(f"{name}-format", TEXT)
    if format == NULL:
        return None
    if format == TEXT:
        return text.replace("\r\n", "\n").encode(errors="replace")
    if format != HEX:
        raise Mistake(f"The format of the {label} must be text, hex or null.")
    try:
        return bytes.fromhex("".join(text.split()))
    except ValueError:
        raise Mistake(
            f"The {label} is not hexadecimal. Write two digits 0-9 or a-f for each byte."
        ) from None


def size(payload: bytes | None) -> str:
    """Return a payload's size in words."""
    return "null" if payload is None else figures.size(len(payload))


class ProduceRecord:
    """Produce one record."""

    name, title = "produce", "Produce a test record"

    async def form(self, scene: Scene, given: Given) -> list[Field]:
        topic = await scene.client.cluster.topic(given.required("topic", "The topic"))
        partitions = [("", "by the key, or any")]
        partitions += [(str(p.index), str(p.index)) for p in topic.partitions]
        return [
            *hidden(given, "topic"),
            Field(
                "partition",
                "Partition",
                "select",
                given.one("partition"),
                options=tuple(partitions),
            ),
            Field("key", "Key", "area", given.one("key")),
            Field(
                "key-format",
                "Format of the key",
                "select",
                given.one("key-format", NULL),
                options=FORMATS,
            ),
            Field("value", "Value", "area", given.one("value")),
            Field(
                "value-format",
                "Format of the value",
                "select",
                given.one("value-format", TEXT),
                options=FORMATS,
            ),
            Field(
                "headers",
                "Headers",
                "area",
                given.one("headers"),
                "A line NAME=VALUE for each.",
            ),
        ]

    async def plan(self, scene: Scene, given: Given) -> Plan:
        name = given.required("topic", "The topic")
        topic = await scene.client.cluster.topic(name)
        partition: int | None = None
        if given.one("partition"):
            partition = given.number("partition", "The partition", most=2**31 - 1)
            topic.partition(partition)
        key, value = typed(given, "key", "key"), typed(given, "value", "value")
        headers = _headers(given.one("headers"))
        where = "a partition by its key" if key is not None else "any partition"
        if partition is not None:
            where = f"partition {partition}"
        groups = sorted(
            group
            for group, found in (scene.sample.positions if scene.sample else {}).items()
            if any(p.where.topic == name for p in found)
        )
        readers = f"Groups that read the topic receive it: {', '.join(groups)}." if groups else ""

        async def run(client: Client, _run: Run) -> Result:
            producer = client.producer(linger_ms=0)
            try:
                future = await producer.send(
                    name, value, key=key, headers=headers, partition=partition
                )
                done = await future
            finally:
                await producer.close()
            return Result(f"Produced the record {name}-{done.partition}@{done.offset}.")

        return Plan(
            self.title,
            tuple(
                filter(
                    None,
                    (
                        f"One record goes to {where} of topic {name}: key {size(key)}, value"
                        f" {size(value)}, {figures.plural(len(headers), 'header')}.",
                        readers,
                    ),
                )
            ),
            "Produce 1 record",
            {"topic": name, "partition": "any" if partition is None else str(partition)},
            (link("topic", name=name) + "#records", f"Topic {name}"),
            None,
            run,
        )


def _headers(text: str) -> tuple[tuple[str, bytes | None], ...]:
    found: list[tuple[str, bytes | None]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, sign, value = line.partition("=")
        if not sign or not name.strip():
            raise Mistake(f"Line {number} of the headers must be NAME=VALUE.")
        found.append((name.strip(), value.encode(errors="replace")))
    return tuple(found)
