"""`manage.py shoal_worker`: run the tasks of a backend until a signal."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from shoal.client.errors import ClientError
from shoal.django.backend import ShoalBackend
from shoal.django.framework import task_backends
from shoal.django.options import InvalidBackendOption
from shoal.django.runner import make_worker
from shoal.django.setup import prepare
from shoal.worker.logs import configure_logs
from shoal.worker.process import run_worker

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(BaseCommand):  # type: ignore[misc]
    """The command; its options are in docs/django.md."""

    help = "Run the tasks of a Shoal backend until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--backend", default="default", help="Alias in TASKS.")
        parser.add_argument(
            "--queue",
            action="append",
            metavar="NAME",
            help="A queue to run, all of the backend by default. Repeat it for several.",
        )
        parser.add_argument("--concurrency", type=int, metavar="N", help="Tasks at once.")
        parser.add_argument(
            "--listen", metavar="HOST:PORT", help="Serve /healthz, /readyz and /metrics here."
        )
        parser.add_argument("--json", action="store_true", help="Log as JSON, and all levels.")
        parser.add_argument(
            "--setup-only",
            action="store_true",
            help="Create topics and configure the group, as each worker does, and end.",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Run it."""
        backend = task_backends[options["backend"]]
        if not isinstance(backend, ShoalBackend):
            raise CommandError(
                f"TASKS[{backend.alias!r}] is a {type(backend).__name__}, but not a ShoalBackend."
            )
        queues = sorted(options["queue"] or backend.queues)
        if not queues:
            raise CommandError("This backend takes all queues. Name those to run with --queue.")
        if unknown := set(queues) - (backend.queues or set(queues)):
            raise CommandError(f"There is no queue {min(unknown)} in TASKS[{backend.alias!r}].")
        try:
            prepare(backend.shoal, queues, self.stdout.write)
            if options["setup_only"]:
                return
            if options["json"]:
                configure_logs()
            worker = make_worker(backend, queues, concurrency=options["concurrency"])
            self.stdout.write(f"Running tasks of {', '.join(queues)}. Ctrl-C or SIGTERM stops it.")
            self.stdout.flush()
            asyncio.run(run_worker(worker, listen=options["listen"], status_fd=None))
        except (ClientError, InvalidBackendOption) as error:
            raise CommandError(f"{error}.") from None
        except OSError as error:
            if error.errno is None:
                raise
            raise CommandError(f"{os.strerror(error.errno)}: choose another --listen.") from None
