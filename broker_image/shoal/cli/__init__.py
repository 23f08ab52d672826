"""The `shoal` command: the broker and the tools. `main.COMMANDS` lists the commands."""

import sys

# kio imports Hypothesis if it is installed. No command needs it, and its import takes longer than
# all other imports together.
sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
