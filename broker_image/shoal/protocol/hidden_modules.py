"""Imports of libraries without the optional ones that they look for."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def hide_modules(*names: str) -> Iterator[None]:
    """Let imports of these modules fail inside the context, also if they were imported before.

    Some libraries import large optional ones that Shoal never uses: structlog imports rich (80 ms
    and some MB), and kio makes strategies for its types if Hypothesis is installed (0.5 s).
    """
    hidden = {name: sys.modules.get(name, ...) for name in names}
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in hidden.items():
            if module is ...:
                del sys.modules[name]
            else:
                sys.modules[name] = module
