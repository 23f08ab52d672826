"""Structured logs: one JSON object a line, our own and those of kopf and aiohttp alike."""

from __future__ import annotations

import logging

import structlog


def configure(level: str = "INFO") -> None:
    """Send everything to standard error; `level` is that of our own lines."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processor=structlog.processors.JSONRenderer(), foreign_pre_chain=shared
        )
    )
    logging.root.handlers[:] = [handler]
    # kopf reports each event it hands on; what matters of its own is at least a warning.
    logging.root.setLevel(max(logging.WARNING, logging.getLevelName(level)))
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.INFO)
