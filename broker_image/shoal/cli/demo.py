"""`shoal demo`: the pipeline of broker, share group and Spark on this machine, watched.

Spark's side is an optional part of the installation, so it is imported only when it is there.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def demo(
    images: Annotated[int, typer.Option(min=50, max=100_000, help="Image tasks to do.")] = 600,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until it gives up.")] = 180,
    picture: Annotated[
        Path | None, typer.Option(help="A PNG of what happened; needs matplotlib.")
    ] = None,
) -> None:
    """Run the image pipeline on this machine, without Kubernetes.

    Starts a broker, fills a queue of one partition with images, and lets Spark make thumbnails of
    them, in more tasks than there are partitions; broken images become dead letters. Ends with 1
    if a task was lost. Needs Java 17 and the extras `spark` and `jobs`.
    """
    try:
        local: Any = importlib.import_module("shoal_spark.demo.local")
    except ModuleNotFoundError:
        _fail("The Spark part is not in this installation: pip install 'shoal[spark,jobs]'.")
    if lacking := local.missing():
        _fail(lacking)
    if picture is not None and importlib.util.find_spec("matplotlib") is None:
        _fail("--picture needs matplotlib: pip install matplotlib.")
    try:
        wrong = local.run(images, timeout, picture)
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
