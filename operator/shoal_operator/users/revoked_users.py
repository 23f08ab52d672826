"""Certificates of deleted QueueUsers, which brokers must refuse until they expire. Pure.

The brokers keep the list in their dynamic config `shoal.ssl.revoked.subjects`, by the name of the
user. So the operator need not remember serial numbers, and the list reaches all brokers at once.

* The certificates of a user with type `tls` come from the operator. Those that it made before the
  deletion are revoked. A QueueUser of the same name that is made later gets a newer one.
* Certificates of type `tls-external` come from elsewhere. All of them are revoked until there is
  such a QueueUser again.

An entry is removed when all certificates that it revokes have expired, or when the authorities that
could have signed them are no longer trusted.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, NamedTuple

from shoal.security.revocations import Revocation

from shoal_operator.model import certificates
from shoal_operator.model import users as model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal_operator.model.resources.queue_user import QueueUser

#: Entries in the list, about 60 bytes each. Each change of it writes all of them.
ENTRIES_MAX = 10_000
#: What to do when the list is full.
FULL = (
    f"The brokers revoke the certificates of {ENTRIES_MAX:,} deleted QueueUsers already. Renew the "
    "clients CA by the annotation shoal.dev/renew, which empties the list"
)
_SECOND = datetime.timedelta(seconds=1)


class RevocationChange(NamedTuple):
    """A change of the list: entries to add, then entries to remove."""

    add: tuple[Revocation, ...] = ()
    remove: tuple[Revocation, ...] = ()


def get_subject(user: QueueUser) -> str:
    """Return the subject of a user's certificates; empty for users without."""
    return model.format_principal(user).removeprefix("User:") if _has_certificates(user) else ""


def _has_certificates(user: QueueUser) -> bool:
    return model.get_authentication(user) in (model.TLS, model.TLS_EXTERNAL)


def make_revocation(
    user: QueueUser,
    *,
    now: datetime.datetime,
    validity: datetime.timedelta,
    trusted: Sequence[bytes],
    expires: datetime.datetime | None,
) -> Revocation:
    """Return the entry of a user with certificates that is deleted.

    `trusted` are the clients' authorities. `validity` is that of new certificates, and `expires` is
    the end of the user's certificate; None if it is not known.
    """
    ends = max(map(certificates.get_expiry, trusted))
    if model.get_authentication(user) == model.TLS_EXTERNAL:
        return Revocation(get_subject(user), ends, ends)
    last = max(now + validity, expires or now)
    # A certificate that was made in this second is revoked, too.
    before = now.replace(microsecond=0) - certificates.EARLIER + _SECOND
    return Revocation(get_subject(user), before, min(last, ends))


def get_first_valid_time(entry: Revocation) -> datetime.datetime:
    """Return the earliest time at which a new certificate of the subject is not revoked."""
    return entry.issued_before + certificates.EARLIER


def list_removable(
    entries: Mapping[str, Revocation],
    users: Iterable[QueueUser],
    *,
    now: datetime.datetime,
    trusted: Sequence[bytes],
) -> list[Revocation]:
    """Return the entries that are no longer needed. `users` are those that exist."""
    external = {
        get_subject(user) for user in users if model.get_authentication(user) == model.TLS_EXTERNAL
    }
    begins = min(certificates.get_validity_start(pem) for pem in trusted)
    return sorted(
        entry
        for entry in entries.values()
        # An authority signs no certificate that begins before its own.
        if entry.valid_until <= now or entry.issued_before <= begins or entry.subject in external
    )
