"""Actions that run in the background, while the logins of their users continue or end."""

from __future__ import annotations

import asyncio

import pytest
from shoal.client.client import Client
from shoal.client.settings import Settings
from shoal.console import runs
from shoal.console.access.security import ExpiringLogin
from shoal.console.actions.contract import ActionPlan, ActionResult
from shoal.console.actions.run import ActionRun, Stage
from shoal.console.runs import ActionRuns


class Login(ExpiringLogin):
    """A login that notes its renewals, and ends after some."""

    def __init__(self, renewals_max: int) -> None:
        self.renewals = 0
        self._renewals_max = renewals_max
        self.changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self.renewals >= self._renewals_max

    async def renew(self) -> None:
        self.renewals += 1
        self.changed.set()


async def carry_out(login: Login | None, renewals: int) -> ActionRun:
    """Carry out an action that ends after this number of renewals of its user's login."""

    async def until_renewed(_client: Client, _run: ActionRun) -> ActionResult:
        while login is not None and login.renewals < renewals:
            login.changed.clear()
            await login.changed.wait()
        return ActionResult("Done.")

    plan = ActionPlan("Wait", (), "Wait", {}, ("/", "Overview"), None, until_renewed)
    every = ActionRuns(lambda: None)
    async with Client(Settings.from_bootstrap("127.0.0.1:1")) as client:
        run = every.start(plan, "wait", client, "ann", "127.0.0.1", login)
        await every.wait_until_ended(run, 60)
        await every.close()
    return run


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "RENEW_EVERY_S", 0.01)


def test_a_run_renews_the_login_of_its_user() -> None:
    """Nobody else does, once the page is closed."""

    async def whole() -> None:
        login = Login(renewals_max=100)
        assert (await carry_out(login, 3)).stage is Stage.DONE
        ended = login.renewals
        await others_have_ended()
        assert login.renewals == ended, "not after the run"

    asyncio.run(whole())


def test_a_login_that_ends_is_not_renewed() -> None:
    async def whole() -> None:
        login = Login(renewals_max=2)
        assert (await carry_out(login, 2)).stage is Stage.DONE
        await others_have_ended()
        assert login.renewals == 2

    asyncio.run(whole())


def test_a_run_without_a_login() -> None:
    assert asyncio.run(carry_out(None, 0)).text == "Done."


async def others_have_ended() -> None:
    """Wait for all other tasks; the renewal of a login may be among them."""
    current = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not current]
    await asyncio.wait_for(asyncio.gather(*others, return_exceptions=True), 60)
