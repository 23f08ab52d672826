"""What a traceback with local variables shows of our code."""

from __future__ import annotations

import traceback
from pathlib import Path

import shoal

_OURS = Path(shoal.__file__).parent


def shown(error: BaseException | None) -> str:
    """Return the messages of an exception and its causes, and the local variables of our frames."""
    text = ""
    while error is not None:
        found = traceback.TracebackException.from_exception(error, capture_locals=True)
        text += f"{error!r} {error}"
        for frame in found.stack:
            if _OURS in Path(frame.filename).parents:
                text += str(frame.locals)
        error = error.__cause__ or error.__context__
    return text
