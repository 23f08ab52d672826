"""Actions that were confirmed: each runs in a task, has a page, and leaves one audit line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from shoal.client.errors import ClientError, KafkaError
from shoal.client.remedies import remedy
from shoal.console import figures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.client.client import Client
    from shoal.console.actions.contract import Plan
    from shoal.console.security import Ending

log = logging.getLogger("shoal.console")
#: One line of JSON for each action. `shoal console` writes them to standard error.
audit_log = logging.getLogger("shoal.console.audit")
#: Runs whose page is kept.
RUNS_MAX = 200
#: Actions that run at the same time.
RUNNING_MAX = 20
#: Seconds between two renewals of the login of a user whose action runs.
RENEW_EVERY_S = 5.0
#: Seconds for which a step of a stopped action may take to end.
STOP_S = 5.0


class Stopped(Exception):
    """A person has stopped a run, or the console ends."""


class Stage(Enum):
    """How far a run is."""

    RUNNING = "Running"
    DONE = "Done"
    FAILED = "Failed"
    STOPPED = "Stopped"


@dataclass(slots=True)
class Run:
    """One confirmed action. `text` is its progress, and in the end its result."""

    id: str
    title: str
    action: str
    target: Mapping[str, str]
    back: tuple[str, str]
    user: str
    remote: str
    started_ms: int
    stage: Stage = Stage.RUNNING
    text: str = ""
    done: int = 0
    total: int = 0
    is_stopping: bool = False
    stopped_by: str = ""
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def check(self) -> None:
        """Raise `Stopped` if a person has stopped the run. Actions call it between their steps."""
        if self.is_stopping:
            raise Stopped


def audit(
    action: str, user: str, remote: str, target: Mapping[str, str], result: str, detail: str
) -> None:
    """Write the audit line of an action. It has no payload, no key of a record and no secret."""
    line = {
        "at": figures.instant(int(time.time() * 1000)),
        "event": "console action",
        "action": action,
        "user": user or None,
        "remote": remote,
        "target": dict(target),
        "result": result,
        "detail": detail,
    }
    audit_log.info("%s", json.dumps(line))


async def _renewing(login: Ending) -> None:
    """Renew a login until it ends. An action may outlast an access token, and its page."""
    while not login.is_over:
        await asyncio.sleep(RENEW_EVERY_S)
        await login.renew()


class Runs:
    """The runs of one console, the newest last."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed` is called when a run has ended."""
        self._runs: dict[str, Run] = {}
        self._changed = changed

    def find(self, id: str) -> Run | None:
        return self._runs.get(id)

    @property
    def newest(self) -> list[Run]:
        return list(reversed(self._runs.values()))

    @property
    def is_full(self) -> bool:
        """Whether as many actions run as may run at the same time."""
        return sum(run.stage is Stage.RUNNING for run in self._runs.values()) >= RUNNING_MAX

    def start(
        self,
        plan: Plan,
        action: str,
        client: Client,
        user: str,
        remote: str,
        login: Ending | None = None,
    ) -> Run:
        """Run a plan in the background. It renews the user's `login`, also for a closed page."""
        run = Run(
            secrets.token_urlsafe(9),
            plan.title,
            action,
            plan.target,
            plan.back,
            user,
            remote,
            int(time.time() * 1000),
        )
        self._runs[run.id] = run
        for old in [one for one in self._runs.values() if one.stage is not Stage.RUNNING]:
            if len(self._runs) <= RUNS_MAX:
                break
            del self._runs[old.id]
        doing = self._run(run, plan, client, login)
        run.task = asyncio.create_task(doing, name=f"console {action}")
        return run

    async def _run(self, run: Run, plan: Plan, client: Client, login: Ending | None) -> None:
        run.stage, stage = Stage.RUNNING, Stage.STOPPED
        renewing = None if login is None else asyncio.create_task(_renewing(login))
        try:
            result = await plan.run(client, run)
            stage, run.text = (Stage.FAILED if result.failed else Stage.DONE), result.text
        except (Stopped, asyncio.CancelledError):
            by = run.stopped_by or "the end of the console"
            run.text = f"Stopped by {by}. What was done stays done. {run.text}".strip()
        except ClientError as error:
            stage = Stage.FAILED
            run.text = remedy(error) if isinstance(error, KafkaError) else f"{error}."
        except Exception:
            log.exception("action %s", run.action)
            stage, run.text = Stage.FAILED, "The console failed. Its error output has the reason."
        finally:
            if renewing is not None:
                renewing.cancel()
            run.stage = stage
            audit(run.action, run.user, run.remote, run.target, stage.value.lower(), run.text)
            self._changed()

    async def settled(self, run: Run, timeout_s: float) -> None:
        """Wait until a run has ended, but not longer than this."""
        assert run.task is not None
        await asyncio.wait((run.task,), timeout=timeout_s)

    async def stop(self, run: Run, by: str = "") -> None:
        """Stop a run between two steps, or after `STOP_S`; wait until it has ended.

        In the middle of a step, records are sent that no answer has confirmed yet. `by` is the
        person who stops it.
        """
        assert run.task is not None
        run.is_stopping, run.stopped_by = True, by
        await asyncio.wait((run.task,), timeout=STOP_S)
        run.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await run.task

    async def close(self) -> None:
        """Stop all runs."""
        running = [run for run in self._runs.values() if run.stage is Stage.RUNNING]
        await asyncio.gather(*map(self.stop, running))
