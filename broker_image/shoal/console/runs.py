"""Actions that were confirmed: each runs in a task, has a page, and leaves one audit line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import time
from typing import TYPE_CHECKING

from shoal.client.errors import ClientError, KafkaError
from shoal.console import figures
from shoal.console.actions.run import ActionRun, RunStopped, Stage
from shoal.monitoring.remedies import format_remedy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.client.client import Client
    from shoal.console.access.security import ExpiringLogin
    from shoal.console.actions.contract import ActionPlan

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


def audit(
    action: str, user: str, remote: str, target: Mapping[str, str], result: str, detail: str
) -> None:
    """Write the audit line of an action. It has no payload, no key of a record and no secret."""
    line = {
        "at": figures.format_instant(int(time.time() * 1000)),
        "event": "console action",
        "action": action,
        "user": user or None,
        "remote": remote,
        "target": dict(target),
        "result": result,
        "detail": detail,
    }
    audit_log.info("%s", json.dumps(line))


async def _keep_renewed(login: ExpiringLogin) -> None:
    """Renew a login until it ends. An action may outlast an access token, and its page."""
    while not login.is_over:
        await asyncio.sleep(RENEW_EVERY_S)
        await login.renew()


class ActionRuns:
    """The runs of one console, the newest last."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """`on_change` is called when a run has ended."""
        self._runs: dict[str, ActionRun] = {}
        self._on_change = on_change

    def find(self, id: str) -> ActionRun | None:
        return self._runs.get(id)

    @property
    def newest(self) -> list[ActionRun]:
        return list(reversed(self._runs.values()))

    @property
    def is_full(self) -> bool:
        """Whether as many actions run as may run at the same time."""
        return sum(run.stage is Stage.RUNNING for run in self._runs.values()) >= RUNNING_MAX

    def start(
        self,
        plan: ActionPlan,
        action: str,
        client: Client,
        user: str,
        remote: str,
        login: ExpiringLogin | None = None,
    ) -> ActionRun:
        """Run a plan in the background. It renews the user's `login`, also for a closed page."""
        run = ActionRun(
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
        for old in [other for other in self._runs.values() if other.stage is not Stage.RUNNING]:
            if len(self._runs) <= RUNS_MAX:
                break
            del self._runs[old.id]
        doing = self._run(run, plan, client, login)
        run.task = asyncio.create_task(doing, name=f"console {action}")
        return run

    async def _run(
        self, run: ActionRun, plan: ActionPlan, client: Client, login: ExpiringLogin | None
    ) -> None:
        run.stage, stage = Stage.RUNNING, Stage.STOPPED
        renewing = None if login is None else asyncio.create_task(_keep_renewed(login))
        try:
            result = await plan.run(client, run)
            stage, run.text = (Stage.FAILED if result.failed else Stage.DONE), result.text
        except (RunStopped, asyncio.CancelledError):
            by = run.stopped_by or "the end of the console"
            run.text = f"Stopped by {by}. What was done stays done. {run.text}".strip()
        except ClientError as error:
            stage = Stage.FAILED
            run.text = format_remedy(error) if isinstance(error, KafkaError) else f"{error}."
        except Exception:
            log.exception("action %s", run.action)
            stage, run.text = Stage.FAILED, "The console failed. Its error output has the reason."
        finally:
            if renewing is not None:
                renewing.cancel()
            run.stage = stage
            audit(run.action, run.user, run.remote, run.target, stage.value.lower(), run.text)
            self._on_change()

    async def wait_until_ended(self, run: ActionRun, timeout_s: float) -> None:
        """Wait until a run has ended, but not longer than this."""
        assert run.task is not None
        await asyncio.wait((run.task,), timeout=timeout_s)

    async def stop(self, run: ActionRun, by: str = "") -> None:
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
