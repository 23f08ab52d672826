"""`shoal demo`: the pipeline of broker, share group and Spark on this machine.

The Spark part is optional, so this module imports it only if it is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from shoal.cli import side_console

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def demo(
    images: Annotated[int, typer.Option(min=50, max=100_000, help="Number of image tasks.")] = 600,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until the demo fails.")] = 180,
    picture: Annotated[
        Path | None, typer.Option(help="Write a PNG of the run; needs matplotlib.")
    ] = None,
    console: Annotated[
        bool,
        typer.Option("--console", help="Serve the console on a free port while the demo runs."),
    ] = False,
) -> None:
    """Run the image pipeline on this machine, without Kubernetes.

    Starts a broker and fills a queue of one partition with images. Spark makes thumbnails of them
    in more tasks than there are partitions. Broken images become dead letters. Exits with 1 if a
    task was lost. Needs Java 17 and the extras `spark` and `jobs`.
    """
    try:
        local: Any = importlib.import_module("shoal_spark.demo.local")
    except ModuleNotFoundError:
        _fail("The Spark part is not installed. Run pip install 'shoal[spark,jobs]'.")
    if lacking := local.missing():
        _fail(lacking)
    if picture is not None and importlib.util.find_spec("matplotlib") is None:
        _fail("--picture needs matplotlib. Run pip install matplotlib.")
    if console and (lacking := side_console.missing()):
        _fail(lacking)
    try:
        wrong = local.run(images, timeout, picture, console=console)
    except local.CannotRun as error:
        _fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    for sentence in wrong:
        print(f"shoal demo: {sentence}.", file=sys.stderr)
    if wrong:
        raise typer.Exit(1)


def _fail(sentence: str) -> NoReturn:
    print(f"shoal demo: {sentence}", file=sys.stderr)
    raise typer.Exit(1)
