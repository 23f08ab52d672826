"""AlterUserScramCredentials: create, replace and delete credentials of users (KIP-554)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.metadata.scram_credentials import ScramCredentialDeletion, ScramCredentialUpsertion
from shoal.metadata.scram_credentials import alter as decide
from shoal.server.handlers import audited

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.protocol.responses import security as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Answer, Request


def handle(broker: Broker, request: Request) -> Answer:
    deletions = [ScramCredentialDeletion(d.name, d.mechanism) for d in request.body.deletions]
    upsertions = [
        ScramCredentialUpsertion(u.name, u.mechanism, u.iterations, u.salt, u.salted_password)
        for u in request.body.upsertions
    ]

    def respond(
        outcomes: Mapping[str, tuple[int, str | None]],
    ) -> responses.AlterUserScramCredentialsResponse:
        changed = [name for name in outcomes if not outcomes[name][0]]
        audited.log_changes(broker, request, (f"credentials of User:{name}" for name in changed))
        return {"results": [_build_result(name, *outcomes[name]) for name in outcomes]}

    return broker.security_records.submit(
        lambda image: decide(image, deletions, upsertions), respond
    )


def _build_result(
    name: str, code: int, message: str | None
) -> responses.AlterUserScramCredentialsResult:
    return {"user": name, "error_code": code, "error_message": message}


def refuse(
    request: Request, code: int, message: str | None
) -> responses.AlterUserScramCredentialsResponse:
    body = request.body
    names = dict.fromkeys(change.name for change in (*body.deletions, *body.upsertions))
    return {"results": [_build_result(name, code, message) for name in names]}
