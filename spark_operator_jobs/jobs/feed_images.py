"""Fills a queue with image tasks: scikit-image's pictures, cut and rotated, some of them broken.

    python feed_images.py --bootstrap-servers localhost:9092 --topic images --count 20000

Creates the topic if it does not exist. With `--group` it also sets the group's configs: it starts
at the beginning of the topic, and its rejected records go to `--dead-letters`.
"""

from __future__ import annotations

import importlib.util
import io
import sys
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

from feeding import Task, arguments, broken, run
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Number of different pictures. More tasks repeat them under other names.
PICTURES = 400


def originals() -> list[tuple[str, Image.Image]]:
    """Return the pictures in scikit-image's package by name."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the pictures come with scikit-image: pip install scikit-image")
    folder = Path(spec.submodule_search_locations[0], "data")
    paths = sorted(p for p in folder.iterdir() if p.suffix in (".png", ".jpg"))
    found = []
    for path in paths:
        with Image.open(path) as image:
            found.append((path.stem, image.convert("RGB")))
    return found


def pictures(size: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield `count` different JPEGs of `size` pixels square: name and bytes."""
    for number, (name, image) in enumerate(islice(cycle(originals()), count)):
        # A window that moves over the picture, with occasional quarter turns.
        side = min(image.size) * (60 + number % 40) // 100
        left = (image.width - side) * (number * 7 % 11) // 10
        top = (image.height - side) * (number * 3 % 11) // 10
        window = image.crop(
            (
                min(left, image.width - side),
                min(top, image.height - side),
                min(left, image.width - side) + side,
                min(top, image.height - side) + side,
            )
        )
        out = io.BytesIO()
        window.resize((size, size)).rotate(90 * (number % 4)).save(out, "JPEG", quality=85)
        yield name, out.getvalue()


def tasks(count: int, size: int, name_of_all: str = "image") -> Iterator[Task]:
    """Yield `count` pictures with unique names; the header has the original's name."""
    made = list(pictures(size, min(count, PICTURES)))
    for number in range(count):
        name, data = made[number % len(made)]
        yield Task(f"{name_of_all}-{number:06d}", data, (("picture", name.encode()),))


def main() -> None:
    parser = arguments(__doc__, topic="images", count=2000, broken_every=100)
    parser.add_argument("--size", type=int, default=256, help="pixels of an image's side")
    parser.add_argument("--name", default="image", help="prefix of the tasks' keys")
    given = parser.parse_args()
    made = tasks(given.count, given.size, given.name)
    run(given, broken(made, given.broken_every, part=3), "image tasks")


if __name__ == "__main__":
    main()
