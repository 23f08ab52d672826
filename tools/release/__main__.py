"""`python -m release VERSION [--key FILE] [--only PARTS]`: write `dist/VERSION`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from release import charts, images, olm, packages, summary, wheels
from release.checkout import Checkout, ReleaseError

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("python", "wheels", "charts", "olm", *images.NAMES)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make release")
    parser.add_argument("version", help="version of the release, such as 0.2.0")
    parser.add_argument("--key", type=Path, help="PEM file with the Ed25519 key that signs")
    parser.add_argument(
        "--only", default=",".join(PARTS), help=f"parts to build: {', '.join(PARTS)}"
    )
    parser.add_argument("--into", type=Path, help="folder of the artifacts; default dist/VERSION")
    arguments = parser.parse_args()
    try:
        release(arguments.version, arguments.key, arguments.only.split(","), arguments.into)
    except ReleaseError as error:
        print(f"Nothing is released. {error}", file=sys.stderr)
        return 1
    return 0


def release(version: str, key_file: Path | None, parts: list[str], into: Path | None) -> None:
    """Build the parts, and replace the folder of the version once all are complete.

    Raises `ReleaseError`.
    """
    unknown = set(parts) - set(PARTS)
    if unknown:
        raise ReleaseError(f"There is no part {min(unknown)!r}: the parts are {', '.join(PARTS)}.")
    checkout = Checkout(ROOT, version)
    key = None if key_file is None else summary.load_key(key_file)
    target = into or ROOT / "dist" / version
    if target.exists() and not (target / summary.SUMS).exists():
        raise ReleaseError(
            f"{target} exists and is not a release. Remove it, or name another folder."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        sources, made = Path(work) / "sources", Path(work) / "made"
        checkout.export(sources)
        made.mkdir()
        if "python" in parts:
            packages.build(checkout, sources, made / "python")
        if "wheels" in parts:
            wheels.build(checkout, sources, made / "python")
        if "charts" in parts:
            charts.build(checkout, sources, made / "charts")
        if "olm" in parts:
            olm.build(checkout, sources, made / "olm")
        for name in images.NAMES:
            if name in parts:
                images.build(name, checkout, made / "images")
        summary.write(checkout, made, key)
        if target.exists():
            shutil.rmtree(target)
        made.rename(target)
    print((target / summary.SUMS).read_text(), end="")
    print(f"Written to {target}.", "" if key else "Not signed: give a key with KEY=FILE.")


if __name__ == "__main__":
    sys.exit(main())
