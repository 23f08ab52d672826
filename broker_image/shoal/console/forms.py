"""Forms of actions: open a form, read the plan, confirm it, and follow its run.

Nothing changes before the confirmation, which is a POST with a form token. What was typed into a
form stays in this process between plan and confirmation, so payloads are never in an address, and
a confirmation carries out exactly the plan that its page showed. It can be sent once.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from shoal.client.errors import ClientError, KafkaError
from shoal.console.access.security import BEARER, LOGIN, NO_RIGHT, USER
from shoal.console.access.sessions import TOKEN_FIELD
from shoal.console.actions import ACTIONS
from shoal.console.actions.contract import ActionContext, ActionError, FormData
from shoal.console.actions.run import Stage
from shoal.console.pages import Page, Pages
from shoal.console.render import make_link
from shoal.console.runs import ActionRuns, audit
from shoal.monitoring.remedies import format_remedy

if TYPE_CHECKING:
    from shoal.client.client import Client
    from shoal.console.access.actors import Actors
    from shoal.console.access.sessions import Sessions
    from shoal.console.actions.contract import Action, ActionPlan, FormField
    from shoal.console.reading.views import RecordView
    from shoal.console.sampling.sampler import Sampler

#: Bytes of a form. A payload of non-ASCII text is up to three times as long in a form.
FORM_BYTES_MAX = 4 << 20
#: What browsers send. Files, each of which would take a descriptor, and compressed forms, which
#: expand at once, are refused without a look.
FORM_TYPE = "application/x-www-form-urlencoded"
#: Seconds in which a form has to arrive.
FORM_S = 60.0
#: Plans that wait for their confirmation, and how long. Together they have few bytes: most forms
#: have no payload, and `PLANS_BYTES_MAX` bounds the others.
PLANS_MAX, PLAN_AGE_S_MAX, PLANS_BYTES_MAX = 200, 1_800.0, 64 << 20
#: Seconds for which a confirmation waits for the result. A longer action is followed on its page.
RESULT_S = 3.0


@dataclass(frozen=True, slots=True)
class _PendingPlan:
    """A plan that was shown to a person."""

    action: Action
    form: FormData
    plan: ActionPlan
    session: str
    user: str
    made_at_s: float

    @property
    def size(self) -> int:
        return sum(len(text) for field_values in self.form.values.values() for text in field_values)


class Forms:
    """The forms of one console."""

    def __init__(
        self,
        pages: Pages,
        sampler: Sampler,
        actors: Actors,
        sessions: Sessions,
        runs: ActionRuns,
        view: RecordView,
    ) -> None:
        self._pages, self._sampler, self._view = pages, sampler, view
        self._actors, self._sessions, self.runs = actors, sessions, runs
        self._pending: OrderedDict[str, _PendingPlan] = OrderedDict()

    async def open(self, request: web.Request) -> Page:
        """The form of an action; its plan, if there is nothing to choose."""
        action = self._find_action(request)
        form = FormData({name: request.query.getall(name) for name in request.query})
        context = await self._make_context(request)
        try:
            fields = await action.build_fields(context, form)
            if all(field.kind == "hidden" for field in fields):
                return self._render_confirmation(
                    request, action, form, await self._make_plan(request, action, context, form)
                )
        except ActionError as mistake:
            raise web.HTTPConflict(text=str(mistake)) from None
        return self._render_form(request, action, fields, "")

    async def preview(self, request: web.Request) -> Page:
        """The plan for what a form asks."""
        action = self._find_action(request)
        form = await self._read_form(request, action.name)
        context = await self._make_context(request)
        try:
            plan = await self._make_plan(request, action, context, form)
        except ActionError as mistake:
            try:
                fields = await action.build_fields(context, form)
            except ActionError as other:
                raise web.HTTPConflict(text=str(other)) from None
            return self._render_form(request, action, fields, str(mistake))
        return self._render_confirmation(request, action, form, plan)

    async def confirm(self, request: web.Request) -> Page:
        """Run a plan. Redirects to the page of the run."""
        form = await self._read_form(request, "confirm")
        pending = self._take_pending(request, form.get("plan"))
        context = await self._make_context(request)
        action, plan = pending.action, pending.plan
        if plan.typed and form.get("typed").strip() != plan.typed:
            mistake = f"Type {plan.typed} to confirm. Nothing was changed."
            return self._render_confirmation(request, action, pending.form, plan, mistake)
        try:
            same = pending.form.with_fields(plan.fixed)
            fresh = await self._make_plan(request, action, context, same)
        except ActionError as mistake:
            raise web.HTTPConflict(text=str(mistake)) from None
        if fresh.observed_state != plan.observed_state:
            changed = (
                "The cluster has changed since the page was opened, perhaps by somebody else."
                " Nothing was changed by you. This is what would happen now."
            )
            return self._render_confirmation(request, action, pending.form, fresh, changed)
        if self.runs.is_full:
            raise web.HTTPServiceUnavailable(
                text="Too many actions are running. Nothing was changed. Wait for one to end."
            )
        actor = (pending.user, _get_remote(request), request.get(LOGIN))
        run = self.runs.start(plan, action.name, context.client, *actor)
        await self.runs.wait_until_ended(run, RESULT_S)
        raise web.HTTPSeeOther(make_link("run", id=run.id))

    async def stop(self, request: web.Request) -> Page:
        """Stop a run. Redirects to its page."""
        form = await self._read_form(request, "stop")
        run = self.runs.find(form.get("id"))
        if run is None:
            raise web.HTTPNotFound(text="There is no such action. The console may have restarted.")
        if run.stage is Stage.RUNNING:
            await self.runs.stop(run, request.get(USER, "") or _get_remote(request))
        raise web.HTTPSeeOther(make_link("run", id=run.id))

    async def show_run(self, request: web.Request) -> Page:
        """How far an action is, and its result."""
        run = self.runs.find(request.query.get("id", ""))
        if run is None:
            raise web.HTTPNotFound(
                text="There is no such action. The console keeps the last ones until it ends; the"
                " audit lines in its output have all."
            )
        base = self._pages.make_base(request)
        token = self._sessions.make_token(request)
        return Page("run", {**base, "run": run, "token": token})

    async def show_actions(self, request: web.Request) -> Page:
        """The last actions of all users."""
        return Page("actions", {**self._pages.make_base(request), "runs": self.runs.newest})

    # What the handlers share

    def _find_action(self, request: web.Request) -> Action:
        action = ACTIONS.get(request.match_info["name"])
        if action is None:
            raise web.HTTPNotFound(text=f"There is no action {request.match_info['name']:.60}.")
        return action

    async def _make_context(self, request: web.Request) -> ActionContext:
        """Return what an action reads, with the rights of the person. Raises HTTP 403."""
        if why := self._actors.why_off:
            raise web.HTTPForbidden(text=why)
        return ActionContext(await self._get_client(request), self._sampler.sample, self._view)

    async def _make_plan(
        self, request: web.Request, action: Action, context: ActionContext, form: FormData
    ) -> ActionPlan:
        """Return an action's plan. Audit a refusal by the brokers."""
        try:
            return await action.plan(context, form)
        except KafkaError as error:
            if error.code in NO_RIGHT:
                user = request.get(USER, "")
                audit(action.name, user, _get_remote(request), {}, "refused", format_remedy(error))
            raise

    async def _get_client(self, request: web.Request) -> Client:
        user = request.get(USER, "")
        try:
            return await self._actors.get_client(user, request.get(BEARER))
        except ClientError as error:
            text = format_remedy(error) if isinstance(error, KafkaError) else f"{error}."
            raise web.HTTPForbidden(
                text=f"Actions are off for {user}: the brokers do not accept the login. {text}"
            ) from None

    async def _read_form(self, request: web.Request, action: str) -> FormData:
        """Return the fields of a form that this console's page sent. Raises HTTP 403, 408, 413 and
        415."""
        if request.content_type != FORM_TYPE or "Content-Encoding" in request.headers:
            raise web.HTTPUnsupportedMediaType(
                text=f"Send a form as {FORM_TYPE} without compression."
            )
        try:
            async with asyncio.timeout(FORM_S):
                form = await request.post()
        except TimeoutError:
            raise web.HTTPRequestTimeout(
                text=f"The form did not arrive within {FORM_S:.0f} seconds. Nothing was changed."
            ) from None
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
            audit(
                action, request.get(USER, ""), _get_remote(request), {}, "refused", error.text or ""
            )
            raise
        fields: dict[str, list[str]] = {}
        for name, value in form.items():
            if isinstance(value, str) and name != TOKEN_FIELD:
                fields.setdefault(name, []).append(value)
        return FormData(fields)

    def _take_pending(self, request: web.Request, id: str) -> _PendingPlan:
        """Return a plan that waits for its confirmation, once. Raises HTTP 409."""
        pending = self._pending.pop(id, None)
        if (
            pending is None
            or time.monotonic() - pending.made_at_s > PLAN_AGE_S_MAX
            or pending.session != self._sessions.get_session(request)
            or pending.user != request.get(USER, "")
        ):
            raise web.HTTPConflict(
                text="This confirmation was sent before, or is too old. See the actions for what"
                " was done, or open the form again."
            )
        return pending

    def _render_form(
        self, request: web.Request, action: Action, fields: list[FormField], mistake: str
    ) -> Page:
        return Page(
            "form",
            {
                **self._pages.make_base(request),
                "action": action,
                "fields": fields,
                "mistake": mistake,
                "token": self._sessions.make_token(request),
            },
        )

    def _render_confirmation(
        self,
        request: web.Request,
        action: Action,
        form: FormData,
        plan: ActionPlan,
        notice: str = "",
    ) -> Page:
        """Return the page of a plan, and keep the plan until it is confirmed."""
        id = secrets.token_urlsafe(16)
        session, user = self._sessions.get_session(request), request.get(USER, "")
        self._pending[id] = _PendingPlan(action, form, plan, session, user, time.monotonic())
        size = sum(pending.size for pending in self._pending.values())
        while len(self._pending) > PLANS_MAX or (size > PLANS_BYTES_MAX and len(self._pending) > 1):
            _, old = self._pending.popitem(last=False)
            size -= old.size
        return Page(
            "confirm",
            {
                **self._pages.make_base(request),
                "plan": plan,
                "id": id,
                "notice": notice,
                "token": self._sessions.make_token(request),
            },
        )


def _get_remote(request: web.Request) -> str:
    return request.remote or ""
