"""A command's own failure, and the exit codes: 0 done, 1 refused by the cluster (in part or in
whole), 2 wrong usage, 3 no broker reached, 130 interrupted.
"""

from __future__ import annotations

REFUSED, USAGE, UNREACHABLE, INTERRUPTED = 1, 2, 3, 130


class CommandError(Exception):
    """A command's own failure: a sentence and the exit code."""

    def __init__(self, sentence: str, code: int = REFUSED) -> None:
        super().__init__(sentence)
        self.code = code
