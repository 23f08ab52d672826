"""Forms of actions: open a form, read the plan, confirm it, and follow its run.

Nothing changes before the confirmation, which is a POST with a form token. What was typed into a
form stays in this process between plan and confirmation, so payloads are never in an address, and
a confirmation carries out exactly the plan that its page showed. It can be sent once.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from shoal.client.errors import ClientError, KafkaError
from shoal.client.remedies import remedy
from shoal.console.actions import ACTIONS
from shoal.console.actions.contract import Given, Mistake, Scene
from shoal.console.pages import Page, Pages
from shoal.console.render import link
from shoal.console.runs import Runs, Stage, audit
from shoal.console.security import BEARER, LOGIN, NO_RIGHT, USER
from shoal.console.sessions import TOKEN_FIELD

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.console.actions.contract import Action, Field, Plan
    from shoal.console.actors import Actors
    from shoal.console.sampler import Sampler
    from shoal.console.sessions import Sessions
    from shoal.console.views import View

#: Bytes of a form. A payload of non-ASCII text is up to three times as long in a form.
FORM_BYTES_MAX = 4 << 20
#: Plans that wait for their confirmation, and how long. Together they have few bytes: most forms
#: have no payload, and `PLANS_BYTES_MAX` bounds the others.
PLANS_MAX, PLAN_AGE_S_MAX, PLANS_BYTES_MAX = 200, 1_800.0, 64 << 20
#: Seconds for which a confirmation waits for the result. A longer action is followed on its page.
RESULT_S = 3.0


@dataclass(frozen=True, slots=True)
class _Pending:
    """A plan that was shown to a person."""

    action: Action
    given: Given
    plan: Plan
    session: str
    user: str
    made_at_s: float

    @property
    def size(self) -> int:
        return sum(len(text) for some in self.given.values.values() for text in some)


class Forms:
    """The forms of one console."""

    def __init__(
        self,
        pages: Pages,
        sampler: Sampler,
        actors: Actors,
        sessions: Sessions,
        runs: Runs,
        view: View,
    ) -> None:
        self._pages, self._sampler, self._view = pages, sampler, view
        self._actors, self._sessions, self.runs = actors, sessions, runs
        self._pending: OrderedDict[str, _Pending] = OrderedDict()

    async def open(self, request: web.Request) -> Page:
        """The form of an action; its plan, if there is nothing to choose."""
        action = self._action(request)
        given = Given({name: request.query.getall(name) for name in request.query})
        scene = await self._scene(request)
        try:
            fields = await action.form(scene, given)
            if all(field.kind == "hidden" for field in fields):
                return self._confirmation(
                    request, action, given, await self._plan(request, action, scene, given)
                )
        except Mistake as mistake:
            raise web.HTTPConflict(text=str(mistake)) from None
        return self._form(request, action, fields, "")

    async def preview(self, request: web.Request) -> Page:
        """The plan for what a form asks."""
        action = self._action(request)
        given = await self._posted(request, action.name)
        scene = await self._scene(request)
        try:
            plan = await self._plan(request, action, scene, given)
        except Mistake as mistake:
            try:
                fields = await action.form(scene, given)
            except Mistake as other:
                raise web.HTTPConflict(text=str(other)) from None
            return self._form(request, action, fields, str(mistake))
        return self._confirmation(request, action, given, plan)

    async def confirm(self, request: web.Request) -> Page:
        """Run a plan. Redirects to the page of the run."""
        given = await self._posted(request, "confirm")
        pending = self._taken(request, given.one("plan"))
        scene = await self._scene(request)
        action, plan = pending.action, pending.plan
        if plan.typed and given.one("typed").strip() != plan.typed:
            mistake = f"Type {plan.typed} to confirm. Nothing was changed."
            return self._confirmation(request, action, pending.given, plan, mistake)
        try:
            same = pending.given.with_fields(plan.fixed)
            fresh = await self._plan(request, action, scene, same)
        except Mistake as mistake:
            raise web.HTTPConflict(text=str(mistake)) from None
        if fresh.seen != plan.seen:
            changed = (
                "The cluster has changed since the page was opened, perhaps by somebody else."
                " Nothing was changed by you. This is what would happen now."
            )
            return self._confirmation(request, action, pending.given, fresh, changed)
        if self.runs.is_full:
            raise web.HTTPServiceUnavailable(
                text="Too many actions are running. Nothing was changed. Wait for one to end."
            )
        who = (pending.user, _remote(request), request.get(LOGIN))
        run = self.runs.start(plan, action.name, scene.client, *who)
        await self.runs.settled(run, RESULT_S)
        raise web.HTTPSeeOther(link("run", id=run.id))

    async def stop(self, request: web.Request) -> Page:
        """Stop a run. Redirects to its page."""
        given = await self._posted(request, "stop")
        run = self.runs.find(given.one("id"))
        if run is None:
            raise web.HTTPNotFound(text="There is no such action. The console may have restarted.")
        if run.stage is Stage.RUNNING:
            await self.runs.stop(run, request.get(USER, "") or _remote(request))
        raise web.HTTPSeeOther(link("run", id=run.id))

    async def run(self, request: web.Request) -> Page:
        """How far an action is, and its result."""
        run = self.runs.find(request.query.get("id", ""))
        if run is None:
            raise web.HTTPNotFound(
                text="There is no such action. The console keeps the last ones until it ends; the"
                " audit lines in its output have all."
            )
        base = self._pages.base(request)
        token = self._sessions.token(request)
        return Page("run", {**base, "run": run, "token": token})

    async def actions(self, request: web.Request) -> Page:
        """The last actions of all users."""
        return Page("actions", {**self._pages.base(request), "runs": self.runs.newest})

    # What the handlers share

    def _action(self, request: web.Request) -> Action:
        found = ACTIONS.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound(text=f"There is no action {request.match_info['name']:.60}.")
        return found

    async def _scene(self, request: web.Request) -> Scene:
        """Return what an action reads, with the rights of the person. Raises HTTP 403."""
        if why := self._actors.why_off:
            raise web.HTTPForbidden(text=why)
        return Scene(await self._client(request), self._sampler.sample, self._view)

    async def _plan(self, request: web.Request, action: Action, scene: Scene, given: Given) -> Plan:
        """Return an action's plan. Audit a refusal by the brokers."""
        try:
            return await action.plan(scene, given)
        except KafkaError as error:
            if error.code in NO_RIGHT:
                user = request.get(USER, "")
                audit(action.name, user, _remote(request), {}, "refused", remedy(error))
            raise

    async def _client(self, request: web.Request) -> Client:
        user = request.get(USER, "")
        try:
            return await self._actors.client(user, request.get(BEARER))
        except ClientError as error:
            text = remedy(error) if isinstance(error, KafkaError) else f"{error}."
            raise web.HTTPForbidden(
                text=f"Actions are off for {user}: the brokers do not accept the login. {text}"
            ) from None

    async def _posted(self, request: web.Request, action: str) -> Given:
        """Return the fields of a form that this console's page sent. Raises HTTP 403 or 413."""
        try:
            form = await request.post()
        except web.HTTPRequestEntityTooLarge:
            raise web.HTTPRequestEntityTooLarge(
                FORM_BYTES_MAX,
                FORM_BYTES_MAX,
                text=f"The form is too large: it may have {FORM_BYTES_MAX >> 20} MiB."
                " Use `shoal produce` instead.",
            ) from None
        try:
            self._sessions.check(request, form)
        except web.HTTPForbidden as error:
            audit(action, request.get(USER, ""), _remote(request), {}, "refused", error.text or "")
            raise
        fields: dict[str, list[str]] = {}
        for name, value in form.items():
            if isinstance(value, str) and name != TOKEN_FIELD:
                fields.setdefault(name, []).append(value)
        return Given(fields)

    def _taken(self, request: web.Request, id: str) -> _Pending:
        """Return a plan that waits for its confirmation, once. Raises HTTP 409."""
        pending = self._pending.pop(id, None)
        if (
            pending is None
            or time.monotonic() - pending.made_at_s > PLAN_AGE_S_MAX
            or pending.session != self._sessions.session(request)
            or pending.user != request.get(USER, "")
        ):
            raise web.HTTPConflict(
                text="This confirmation was sent before, or is too old. See the actions for what"
                " was done, or open the form again."
            )
        return pending

    def _form(
        self, request: web.Request, action: Action, fields: list[Field], mistake: str
    ) -> Page:
        return Page(
            "form",
            {
                **self._pages.base(request),
                "action": action,
                "fields": fields,
                "mistake": mistake,
                "token": self._sessions.token(request),
            },
        )

    def _confirmation(
        self, request: web.Request, action: Action, given: Given, plan: Plan, notice: str = ""
    ) -> Page:
        """Return the page of a plan, and keep the plan until it is confirmed."""
        id = secrets.token_urlsafe(16)
        session, user = self._sessions.session(request), request.get(USER, "")
        self._pending[id] = _Pending(action, given, plan, session, user, time.monotonic())
        size = sum(one.size for one in self._pending.values())
        while len(self._pending) > PLANS_MAX or (size > PLANS_BYTES_MAX and len(self._pending) > 1):
            _, old = self._pending.popitem(last=False)
            size -= old.size
        return Page(
            "confirm",
            {
                **self._pages.base(request),
                "plan": plan,
                "id": id,
                "notice": notice,
                "token": self._sessions.token(request),
            },
        )


def _remote(request: web.Request) -> str:
    return request.remote or ""
