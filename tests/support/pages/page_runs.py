"""Runs a page of the documentation against one broker, as its reader would."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from support.brokers.ports import free_ports
from support.pages.console import TERMINAL, Console, marks, steps

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from support.brokers.servers import ShoalProcess


def try_page(
    text: str,
    start_broker: Callable[..., ShoalProcess],
    folder: Path,
    aside: Collection[str] = (),
) -> None:
    """Check that the unmarked commands of a page print what it shows.

    Sections with the headings `aside` run beside the others, each in a folder of its own.
    """
    port, metrics = free_ports(2)
    assert len(steps(text)) >= 5
    if TERMINAL in marks(text):
        # The page starts its own broker.
        text = text.replace("shoal server ", f"shoal server --listener 127.0.0.1:{port} ")
        text = text.replace("127.0.0.1:9092", f"127.0.0.1:{port}")
        text = text.replace("127.0.0.1:9404", f"127.0.0.1:{metrics}")
        bootstrap = f"127.0.0.1:{port}"
    else:
        bootstrap = start_broker(metrics=f"127.0.0.1:{metrics}").bootstrap

    def run(name: str, part: str) -> None:
        own = folder / name
        own.mkdir(exist_ok=True)
        with Console(own, bootstrap) as console:
            console.try_page(part)

    sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    others = {name: part for part in sections for name in aside if part.startswith(f"## {name}\n")}
    assert others.keys() == set(aside)
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(run, name, part) for name, part in others.items()]
        run("", "".join(part for part in sections if part not in others.values()))
        for each in running:
            each.result()
