"""The action that produces one record to a topic, and how payloads are typed into forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.console import figures
from shoal.console.actions.contract import (
    ActionContext,
    ActionError,
    ActionPlan,
    ActionResult,
    FormData,
    FormField,
    make_hidden_fields,
)
from shoal.console.render import make_link

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.console.actions.run import ActionRun

TEXT, HEX, NULL = "text", "hex", "null"
FORMATS = ((TEXT, "text (UTF-8)"), (HEX, "hexadecimal"), (NULL, "null"))


def parse_payload(form: FormData, name: str, label: str) -> bytes | None:
    """Return a payload from the fields NAME and NAME-format. Raises `ActionError`.

    Browsers send line breaks as CR LF; in text they become LF.
    """
    text, format = form.get(name), form.get(f"{name}-format", TEXT)
    if format == NULL:
        return None
    if format == TEXT:
        return text.replace("\r\n", "\n").encode(errors="replace")
    if format != HEX:
        raise ActionError(f"The format of the {label} must be text, hex or null.")
    try:
        return bytes.fromhex("".join(text.split()))
    except ValueError:
        raise ActionError(
            f"The {label} is not hexadecimal. Write two digits 0-9 or a-f for each byte."
        ) from None


def format_size(payload: bytes | None) -> str:
    """Return a payload's size in words."""
    return "null" if payload is None else figures.format_size(len(payload))


class ProduceRecord:
    """Produce one record."""

    name, title = "produce", "Produce a test record"

    async def build_fields(self, context: ActionContext, form: FormData) -> list[FormField]:
        topic = await context.client.cluster.get_topic(form.require("topic", "The topic"))
        partitions = [("", "by the key, or any")]
        partitions += [(str(p.index), str(p.index)) for p in topic.partitions]
        return [
            *make_hidden_fields(form, "topic"),
            FormField(
                "partition",
                "Partition",
                "select",
                form.get("partition"),
                options=tuple(partitions),
            ),
            FormField("key", "Key", "area", form.get("key")),
            FormField(
                "key-format",
                "Format of the key",
                "select",
                form.get("key-format", NULL),
                options=FORMATS,
            ),
            FormField("value", "Value", "area", form.get("value")),
            FormField(
                "value-format",
                "Format of the value",
                "select",
                form.get("value-format", TEXT),
                options=FORMATS,
            ),
            FormField(
                "headers",
                "Headers",
                "area",
                form.get("headers"),
                "A line NAME=VALUE for each.",
            ),
        ]

    async def plan(self, context: ActionContext, form: FormData) -> ActionPlan:
        name = form.require("topic", "The topic")
        topic = await context.client.cluster.get_topic(name)
        partition: int | None = None
        if form.get("partition"):
            partition = form.get_number("partition", "The partition", most=2**31 - 1)
            topic.get_partition(partition)
        key, value = parse_payload(form, "key", "key"), parse_payload(form, "value", "value")
        headers = _parse_headers(form.get("headers"))
        destination = "a partition by its key" if key is not None else "any partition"
        if partition is not None:
            destination = f"partition {partition}"
        groups = sorted(
            group
            for group, group_positions in (
                context.sample.positions if context.sample else {}
            ).items()
            if any(p.partition.topic == name for p in group_positions)
        )
        readers = f"Groups that read the topic receive it: {', '.join(groups)}." if groups else ""

        async def run(client: Client, _run: ActionRun) -> ActionResult:
            producer = client.producer(linger_ms=0)
            try:
                future = await producer.send(
                    name, value, key=key, headers=headers, partition=partition
                )
                metadata = await future
            finally:
                await producer.close()
            return ActionResult(
                f"Produced the record {name}-{metadata.partition}@{metadata.offset}."
            )

        return ActionPlan(
            self.title,
            tuple(
                filter(
                    None,
                    (
                        f"One record goes to {destination} of topic {name}: key "
                        f"{format_size(key)}, value"
                        f" {format_size(value)}, {figures.format_plural(len(headers), 'header')}.",
                        readers,
                    ),
                )
            ),
            "Produce 1 record",
            {"topic": name, "partition": "any" if partition is None else str(partition)},
            (make_link("topic", name=name) + "#records", f"Topic {name}"),
            None,
            run,
        )


def _parse_headers(text: str) -> tuple[tuple[str, bytes | None], ...]:
    headers: list[tuple[str, bytes | None]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, sign, value = line.partition("=")
        if not sign or not name.strip():
            raise ActionError(f"Line {number} of the headers must be NAME=VALUE.")
        headers.append((name.strip(), value.encode(errors="replace")))
    return tuple(headers)
