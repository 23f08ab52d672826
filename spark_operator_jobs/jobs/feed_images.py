"""Fills a queue with image tasks: windows of the Mandelbrot set, some of them broken.

    python feed_images.py --bootstrap-servers localhost:9092 --topic images --count 20000

Creates the topic if it does not exist. With `--group` it also sets the group's configs: it starts
at the beginning of the topic, and its rejected records go to `--dead-letters`.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from feeding import Task, break_every_nth, build_parser, run
from PIL import Image, ImageOps

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Number of different pictures. More tasks repeat them under other names.
PICTURES = 400
#: Places in the Mandelbrot set by name: real and imaginary part of the centre, and the distance
#: from there to an edge.
PLACES = {
    "whole": (-0.6, 0.0, 1.4),
    "seahorses": (-0.748, 0.1, 0.05),
    "elephants": (0.285, 0.012, 0.03),
    "spirals": (-0.0885, 0.654, 0.02),
    "antenna": (-1.76, 0.0, 0.06),
    "needle": (-0.16, 1.035, 0.04),
    "scepter": (-1.256, 0.38, 0.05),
}
COLORS = {"black": "#0b1d3a", "mid": "#e0662f", "white": "#ffe8a8"}
#: Iterations for each point. More would cost time and show no more at this size.
ITERATIONS = 100


def draw_pictures(size: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield `count` different JPEGs of `size` pixels square: name and bytes."""
    for number in range(count):
        zoom, place = divmod(number, len(PLACES))
        name = list(PLACES)[place]
        x, y, reach = PLACES[name]
        # Each round comes closer and turns further.
        reach *= 0.97**zoom
        window = (x - reach, y - reach, x + reach, y + reach)
        gray = Image.effect_mandelbrot((size, size), window, ITERATIONS)
        colored = ImageOps.colorize(ImageOps.autocontrast(gray), **COLORS)
        out = io.BytesIO()
        colored.rotate(90 * (zoom % 4)).save(out, "JPEG", quality=85)
        yield name, out.getvalue()


def make_tasks(count: int, size: int, name_of_all: str = "image") -> Iterator[Task]:
    """Yield `count` pictures with unique names; the header has the place's name."""
    made = list(draw_pictures(size, min(count, PICTURES)))
    for number in range(count):
        name, data = made[number % len(made)]
        yield Task(f"{name_of_all}-{number:06d}", data, (("picture", name.encode()),))


def main() -> None:
    parser = build_parser(__doc__, topic="images", count=2000, broken_every=100)
    parser.add_argument("--size", type=int, default=256, help="pixels of an image's side")
    parser.add_argument("--name", default="image", help="prefix of the tasks' keys")
    args = parser.parse_args()
    made = make_tasks(args.count, args.size, args.name)
    run(args, break_every_nth(made, args.broken_every, part=3), "image tasks")


if __name__ == "__main__":
    main()
