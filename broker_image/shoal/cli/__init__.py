"""The `shoal` command: the broker and the everyday tools. `main.COMMANDS` is the table."""

import sys

# kio brings Hypothesis along wherever that is installed. No command needs it, and it takes longer
# to import than all the rest together.
sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
