"""The log of `shoal worker`: a JSON object a line, with the job that a line is about.

Lines that a handler writes with `logging` get the same fields, also in threads.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from shoal.worker.jobs import describe
from shoal.worker.lanes import CURRENT_LANE

#: Fields of a line besides its message: those of `jobs.describe`, and the reason of a failure.
_FIELDS = ("topic", "partition", "offset", "key", "delivery_count", "trace_id", "reason")


class JsonFormatter(logging.Formatter):
    """Formats lines as JSON objects."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        lane = CURRENT_LANE.get()
        if lane is not None and len(lane.deliveries) == 1:
            line |= describe(lane.deliveries[0].record)
        line |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logs(level: int = logging.INFO) -> None:
    """Write all lines of this process to standard error as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
