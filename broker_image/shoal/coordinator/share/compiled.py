"""Whether the compiled loops of `native/` are there. They are made where a C compiler is (`make
venv`, `broker_image/compile.py`); what they do stands in Python beside the calls, with the same
outcome.

* `hashes(body, begin, end, count)`: the key hashes of an uncompressed batch's records, as
  `record_facts.key_hashes` gives them, or None where `facts` has to tell.
* `keys(data, bases, lasts, ends, cursor, budget)`: those of all batches of a read at once.
* `KeyQueues`: a type that holds the queues of keys (`key_queues.KeyQueues`).
* `rewrite`: many ranges of a window in one pass (`Runs.rewrite`), by one of three rules.
* `thinned`, `gathered`: batches without the records that other members have (`Batches.thinned`),
  of one read or of all that are kept (`ReadCache.gathered`).
* `acquired`: ranges as they go out (`selection.encoded`).
* `ranges`, `spans`, `joined`, `rises`, `packed`, `accepts`, `scan`: loops of `selection`,
  `batches`, `state_batches`, `records` and `bulk`.

`PURE_PYTHON=1` in the environment leaves them out. `description` is for the log.
"""

from __future__ import annotations

import os
from types import ModuleType

native: ModuleType | None
try:
    from shoal.coordinator.share import _bulk as native  # type: ignore[attr-defined,no-redef]
except ImportError:
    native = None
if os.environ.get("PURE_PYTHON") or not hasattr(native, "acquired"):
    native = None  # Also where it was compiled from older sources.

#: Rules of `rewrite`, as in `native/windows.c`.
LOCK, ACCEPT_ALL, LAY_OVER = range(3)


def description() -> str:
    """Which of the two runs."""
    return (
        "in Python (make compiled, with a C compiler, makes them faster)"
        if native is None
        else "compiled"
    )
