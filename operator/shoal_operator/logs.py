"""Structured logs: one JSON object per line, for the operator, kopf and aiohttp."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog


def configure(level: str = "INFO", own: TextIO | None = None) -> None:
    """Log to standard error; `level` applies to the operator's own lines, which go to standard
    output, or with all others to the file `own`."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        logger_factory=structlog.PrintLoggerFactory(own or sys.stdout),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
    )
    handler = logging.StreamHandler(own)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processor=structlog.processors.JSONRenderer(), foreign_pre_chain=shared
        )
    )
    logging.root.handlers[:] = [handler]
    # kopf logs each event at a level below warning.
    logging.root.setLevel(max(logging.WARNING, logging.getLevelName(level)))
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.INFO)
