"""Pins the packages of pyproject.toml with their hashes: `make lock` writes tools/locks.

`dev.txt` has the packages that the broker, the operator and their tests need (`make venv`), and
`demo.txt` those of `make demo`. Each other file has what one more extra adds to `dev.txt`, such as
`spark.txt`. An image installs from files of its own: `image-broker.txt` and the like have all of
its packages, and `build.txt` those that build wheels for it. All files agree on the version of a
package, and keep those that they have: `--upgrade` takes the newest ones.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "tools" / "locks"
#: The extras of `make venv`. `broker` is empty.
BASE = ("dev", "broker", "tiered", "operator", "up", "console", "tracing", "django", "celery")
#: Extras with a whole environment of their own.
WHOLE = ("demo",)
#: The extras of each image.
IMAGES = {
    "broker": ("broker", "console", "tiered"),
    "operator": ("operator",),
    "spark": ("spark", "jobs"),
}
#: The dependency group whose packages build wheels.
BUILD = "build"
#: Markers cover all later versions of Python, too.
PYTHON = "3.11"
_PIN = re.compile(r"^([a-z0-9._-]+)==[^\s\\]+.*?(?= \\$|$)", re.MULTILINE)


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    others = sorted(set(project["optional-dependencies"]) - set(BASE))
    LOCKS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # First all together, so that no two files have different versions of a package.
        versions = Path(folder) / "all.txt"
        if "--upgrade" not in sys.argv:
            versions.write_text(_list_pins())
        _write_pins(versions, "--all-extras", f"--group={BUILD}")
        for stale in LOCKS.glob("*.txt"):
            stale.unlink()
        base = LOCKS / "dev.txt"
        pins = ("--generate-hashes", f"--constraint={versions}")
        _write_pins(base, *pins, *(f"--extra={name}" for name in BASE))
        # A package that the base has on some systems only is pinned for an extra, too.
        held = [pin[1] for pin in _PIN.finditer(base.read_text()) if ";" not in pin[0]]
        left_out = [f"--no-emit-package={name}" for name in held]
        for name in others:
            without = () if name in WHOLE else left_out
            _write_pins(LOCKS / f"{name}.txt", *pins, f"--extra={name}", *without)
        for image, extras in IMAGES.items():
            _write_pins(
                LOCKS / f"image-{image}.txt", *pins, *(f"--extra={name}" for name in extras)
            )
        _write_pins(LOCKS / f"{BUILD}.txt", *pins, f"--group={BUILD}", source=())


def _list_pins() -> str:
    """Return the present pins of all files, without hashes. uv prefers their versions."""
    texts = (path.read_text() for path in sorted(LOCKS.glob("*.txt")))
    pins = (match[0] for text in texts for match in _PIN.finditer(text))
    return "".join(f"{pin}\n" for pin in dict.fromkeys(pins))


def _write_pins(into: Path, *options: str, source: tuple[str, ...] = ("pyproject.toml",)) -> None:
    """Write the pins of the packages that these options select, or end the program. Without a
    source, these are the packages of a group alone."""
    words = ["pip", "compile", "--quiet", "--universal", f"--python-version={PYTHON}"]
    words += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    command = [
        sys.executable,
        "-m",
        "uv",
        *words,
        *options,
        *source,
        f"--output-file={into}",
    ]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(
            f"{into.name} is not written: uv could not resolve the packages of pyproject.toml."
        )


if __name__ == "__main__":
    main()
