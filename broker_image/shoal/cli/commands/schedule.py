"""`shoal schedule`: the schedules of a file, without Kubernetes."""

from __future__ import annotations

import asyncio
import datetime
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from shoal.cli.session import USAGE, CommandError, command, make_app
from shoal.cli.terminal import say
from shoal.client.client import Client
from shoal.client.produce.producer import RecordMetadata
from shoal.schedules import specs
from shoal.schedules.runner import RunningSchedule, ScheduleRunner
from shoal.schedules.specs import PayloadMissing, Schedule
from shoal.schedules.ticks import InvalidSchedule, format_tick

app = make_app("Produce records at the times of cron expressions.")

Manifest = dict[str, Any]


@app.callback()
def _schedule() -> None:
    """Produce records at the times of cron expressions."""


@command(app, "run")
async def run(
    client: Client,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="QueueSchedules as YAML; see docs/schedules.md.")
    ],
) -> None:
    """Produce the records of the QueueSchedules in FILE until Ctrl-C or SIGTERM. ConfigMaps and
    Secrets with payloads are in FILE as well. Several processes may run one file: a topic with
    shoal.deduplication.window.ms stores the record of each tick once.
    """
    schedules = list(_load_schedules(_read_manifests(file)))
    if not schedules:
        raise CommandError(
            f"{file} has no QueueSchedule. Write one as in docs/schedules.md.", USAGE
        )
    for running in schedules:
        await client.cluster.get_topic(running.schedule.topic)
    logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stderr)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    say(f"Schedules: {len(schedules)}. Ctrl-C or SIGTERM ends them.", file=sys.stderr)
    await ScheduleRunner(client, schedules, _report).run(stopping)


def _report(schedule: Schedule, tick: datetime.datetime, stored: RecordMetadata) -> None:
    place = f"{stored.topic}-{stored.partition} at offset {stored.offset}"
    say(f"{format_tick(tick)} {schedule.name}: {place}")
    sys.stdout.flush()


def _read_manifests(file: Path) -> list[Manifest]:
    try:
        documents = [
            document for document in yaml.safe_load_all(file.read_text()) if document is not None
        ]
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}.", USAGE) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} is not YAML: {error}.", USAGE) from None
    for document in documents:
        if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
            raise CommandError(f"{file} has a document that is no manifest of Kubernetes.", USAGE)
    return documents


def _load_schedules(manifests: list[Manifest]) -> Iterator[RunningSchedule]:
    """Yield the schedules with their payloads."""
    objects = {
        (manifest.get("kind"), manifest["metadata"].get("name")): manifest for manifest in manifests
    }
    for resource in (manifest for manifest in manifests if manifest.get("kind") == specs.KIND):
        name = resource["metadata"].get("name", "")
        try:
            specs.check_fields(resource)
            schedule = specs.parse_schedule(resource)
            reference = specs.find_reference(resource)
            if reference is None:
                payload = specs.get_inline_payload(resource)
            else:
                payload = specs.read_payload(reference, objects.get(reference[:2]))
        except InvalidSchedule as error:
            raise CommandError(f"QueueSchedule {name!r}: spec.{error}", USAGE) from None
        except PayloadMissing as error:
            raise CommandError(f"QueueSchedule {name!r}: {error}", USAGE) from None
        except (AttributeError, KeyError, TypeError) as error:
            raise CommandError(
                f"QueueSchedule {name!r} lacks a field, or has one of another type: {error}. The "
                "reference of QueueSchedule lists them.",
                USAGE,
            ) from None
        yield RunningSchedule(schedule, _make_constant(payload))


def _make_constant(payload: bytes | None) -> Callable[[datetime.datetime], bytes | None]:
    return lambda _: payload
