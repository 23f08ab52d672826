"""`shoal demo`: the pipeline of broker, share group and Spark on this machine.

The Spark part is optional, so this module imports it only if it is installed.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from shoal.cli.commands import side_console
from shoal.cli.terminal import say

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def demo(
    images: Annotated[int, typer.Option(min=50, max=100_000, help="Number of image tasks.")] = 3000,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until the demo fails.")] = 300,
    picture: Annotated[Path, typer.Option(help="Write a PNG of the run to this file.")] = Path(
        "shoal-demo.png"
    ),
    console: Annotated[
        bool,
        typer.Option("--console", help="Serve the console on a free port while the demo runs."),
    ] = False,
) -> None:
    """Run the image pipeline on this machine, without Kubernetes.

    Lets `shoal up` run the manifests of the demo: a broker, a queue of two partitions, and Spark,
    which makes thumbnails in more tasks than that. Broken images become dead letters. At the end,
    every task must have one result or one dead letter; otherwise the demo names those that have
    not, and exits with 1. Needs Java 17 or newer and the extra `demo`.
    """
    try:
        local: Any = importlib.import_module("shoal_spark.demo.local")
    except ModuleNotFoundError:
        _fail("The Spark part is not installed. Run pip install 'shoal[demo]'.")
    lacks = local.list_missing()
    if console and (lacking := side_console.describe_missing()):
        lacks.append(lacking)
    if lacks:
        _fail(*lacks)
    try:
        wrong = local.run(images, timeout, picture, console=console)
    except local.DemoError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if wrong:
        _fail(*wrong)


def _fail(*sentences: str) -> NoReturn:
    for sentence in sentences:
        say(f"shoal demo: {sentence}", file=sys.stderr)
    raise typer.Exit(1)
