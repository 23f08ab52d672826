"""The checksums of a release, their signature, and the release notes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from release.checkout import ReleaseError

if TYPE_CHECKING:
    from pathlib import Path

    from release.checkout import Checkout

SUMS, SIGNATURE, NOTES = "SHA256SUMS", "SHA256SUMS.sig", "NOTES.md"


def load_key(path: Path) -> Ed25519PrivateKey:
    """Return the key that signs. Raises `ReleaseError`."""
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ReleaseError(f"The key {path} cannot be read: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ReleaseError(
            f"The key {path} is not an Ed25519 key. Make one: openssl genpkey -algorithm ed25519"
        )
    return key


def write(checkout: Checkout, into: Path, key: Ed25519PrivateKey | None) -> None:
    """Write the notes, the checksums of all files, and the signature of the checksums."""
    files = sorted(path for path in into.rglob("*") if path.is_file())
    sizes = "".join(
        f"| {path.relative_to(into)} | {path.stat().st_size / 1e6:.1f} |\n" for path in files
    )
    (into / NOTES).write_text(
        f"# Shoal {checkout.version}\n\nCommit {checkout.commit}. Images and the compiled wheel are"
        f" for x86_64 (amd64) only.\n\n{checkout.notes}\n## Files\n\n| file | MB |\n| --- | --- |"
        f"\n{sizes}"
    )
    sums = "".join(
        f"{_compute_digest(path)}  {path.relative_to(into)}\n" for path in [*files, into / NOTES]
    )
    (into / SUMS).write_text(sums)
    if key is not None:
        (into / SIGNATURE).write_bytes(key.sign(sums.encode()))


def _compute_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
