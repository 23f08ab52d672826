"""Files with a user and a password, and the error for settings with which nobody may log in."""

from __future__ import annotations

from shoal.client.security.secret import Secret


class InvalidAccess(ValueError):
    """The console may not listen like this, or its users cannot be read."""


def parse_login(text: str, option: str) -> tuple[str, Secret]:
    """Return the user and the password of USER:PASSWORD, both empty for an empty text. `option`
    named the file with it. Raises `InvalidAccess` without the password."""
    user, colon, password = text.strip().partition(":")
    if text and not (user and colon and password):
        raise InvalidAccess(f"the file of {option} must have a line USER:PASSWORD")
    return user, Secret(password)
