"""`shoal share`: other names of `shoal dlq redrive` and `shoal dlq skip`."""

from __future__ import annotations

from shoal.cli import dlq
from shoal.cli.session import command, new_app

app = new_app("Redrive dead letters, or release the keys that they hold; see `shoal dlq`.")


@app.callback()
def _share() -> None:
    """Redrive dead letters, or release the keys that they hold; see `shoal dlq`."""


command(app, "redrive")(dlq.redrive)
command(app, "skip")(dlq.skip)
