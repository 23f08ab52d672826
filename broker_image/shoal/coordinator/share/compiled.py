"""Whether the compiled loops of `native/` are available.

A C compiler builds them (`shoal.compile`). Python code beside each call does the same.

* `hashes(body, begin, end, count)`: key hashes of an uncompressed batch's records, as
  `record_facts.compute_key_hashes` returns them, or None if the caller has to use `facts`.
* `keys(data, bases, lasts, ends, cursor, budget)`: those of all batches of a read.
* `KeyQueues`: the per-key FIFOs (`make_key_queues.KeyQueues`).
* `rewrite_runs`: many ranges of a window in one pass (`Runs.rewrite`), by one of three rules.
* `build_thinned`, `gather`: batches without the records of other members (`Batches.build_thinned`),
  of one
  read or of all cached reads (`ReadCache.gather`).
* `acquired`: ranges encoded for the answer (`selection.encode_ranges`).
* `ranges`, `spans`, `joined`, `rises`, `packed`, `accepts`, `scan`: loops of `selection`,
  `batches`, `state_batches`, `records` and `bulk`.

`PURE_PYTHON=1` in the environment disables them.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

native: ModuleType | None
try:
    from shoal.coordinator.share import _share_native as native  # type: ignore[attr-defined,no-redef]
except ImportError:
    native = None
if os.environ.get("PURE_PYTHON") or not hasattr(native, "rewrite_runs"):
    native = None  # Or they were compiled from older sources.

#: Rules of `rewrite_runs`, as in `native/windows.c`.
LOCK, ACCEPT_ALL, OVERWRITE = range(3)


def describe() -> str:
    """Return whether the loops are compiled, for the log."""
    if native is not None:
        return "compiled"
    return f"in Python ({sys.executable} -m shoal.compile, with a C compiler, makes them faster)"
