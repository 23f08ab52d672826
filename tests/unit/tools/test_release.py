"""The tool that builds a release: what it refuses, and its archives."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from release import __main__ as tool
from release import charts, sbom, tar
from release.checkout import Checkout, ReleaseError, read_notes, read_versions

ROOT = Path(__file__).resolve().parents[3]
FILES = {
    "pyproject.toml": '[project]\nversion = "1.2.3"\n',
    "broker_image/shoal/__init__.py": '__version__ = "1.2.3"\n',
    "helm/shoal/Chart.yaml": 'apiVersion: v2\nname: shoal\nversion: 1.2.3\nappVersion: "1.2.3"\n',
    "helm/shoal/values.yaml": "a: 1\n",
    "crds/things.yaml": "kind: CustomResourceDefinition\nmetadata: {name: things}\n",
    "CHANGELOG.md": "# Changelog\n\n## 1.2.3\n\nNew things.\n\n## 1.2.2\n\nOld things.\n",
}


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    environment = {**os.environ, "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z"}
    subprocess.run(["git", *who, *words], cwd=folder, check=True, env=environment)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with version 1.2.3."""
    folder = tmp_path / "checkout"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder.parent, "init", "-q", "checkout")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "all")
    return folder


def change(folder: Path, name: str, old: str, new: str) -> None:
    (folder / name).write_text(FILES[name].replace(old, new))
    git(folder, "commit", "-qam", "change")


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3-rc1", "01.2.3", "1.2.3\n"])
def test_a_version_has_three_numbers(folder: Path, version: str) -> None:
    with pytest.raises(ReleaseError, match="is not a version"):
        Checkout(folder, version)


def test_a_change_without_a_commit_is_refused(folder: Path) -> None:
    (folder / "new.txt").write_text("")
    with pytest.raises(ReleaseError, match=r"new\.txt\nCommit or stash them"):
        Checkout(folder, "1.2.3")


@pytest.mark.parametrize(
    ("name", "old", "new", "named"),
    [
        ("pyproject.toml", "1.2.3", "1.2.4", "pyproject.toml"),
        ("broker_image/shoal/__init__.py", "1.2.3", "1.2.4", "__init__.py"),
        ("helm/shoal/Chart.yaml", "version: 1.2.3", "version: 1.2.4", r"\(version\)"),
        ("helm/shoal/Chart.yaml", '"1.2.3"', '"1.2.4"', r"\(appVersion\)"),
    ],
)
def test_all_files_have_the_version(
    folder: Path, name: str, old: str, new: str, named: str
) -> None:
    change(folder, name, old, new)
    with pytest.raises(ReleaseError, match=rf"{named} has version 1\.2\.4, not 1\.2\.3"):
        Checkout(folder, "1.2.3")


def test_the_notes_are_the_section_of_the_changelog(folder: Path) -> None:
    assert Checkout(folder, "1.2.3").notes == "New things.\n"
    change(folder, "CHANGELOG.md", "## 1.2.3", "## 1.2.30")
    with pytest.raises(ReleaseError, match=r"no section '1\.2\.3'"):
        Checkout(folder, "1.2.3")


def test_only_the_commit_is_exported(folder: Path, tmp_path: Path) -> None:
    (folder / ".git" / "info" / "exclude").write_text("ignored\n")
    (folder / "ignored").write_text("")
    Checkout(folder, "1.2.3").export(tmp_path / "out")
    found = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.*")}
    assert found == set(FILES)


def test_a_folder_that_is_not_a_release_is_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "ROOT", folder)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter").write_text("dear")
    with pytest.raises(ReleaseError, match="is not a release"):
        tool.release("1.2.3", None, ["charts"], mine)
    assert [p.name for p in mine.iterdir()] == ["letter"]


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(ReleaseError, match="no part 'chart'"):
        tool.release("1.2.3", None, ["chart"], None)


@pytest.mark.parametrize("kind", ["missing", "garbled", "another"])
def test_a_bad_key_is_refused_before_anything_is_built(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(tool, "ROOT", folder)
    path = tmp_path / "key.pem"
    if kind == "garbled":
        path.write_text("-----BEGIN")
    if kind == "another":
        key = generate_private_key(SECP256R1())
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(ReleaseError, match=r"key\.pem"):
        tool.release("1.2.3", path, ["charts"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_release_of_charts(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the same each time, its checksums hold, and the signature is theirs."""
    monkeypatch.setattr(tool, "ROOT", folder)
    key = Ed25519PrivateKey.generate()
    path = tmp_path / "key.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    outs = [tmp_path / "one", tmp_path / "two"]
    for out in outs:
        tool.release("1.2.3", path, ["charts"], out)
    # A second build into the same folder replaces the first.
    tool.release("1.2.3", path, ["charts"], outs[1])
    made = [{str(p.relative_to(out)): p for p in out.rglob("*") if p.is_file()} for out in outs]
    assert {n: p.read_bytes() for n, p in made[0].items()} == {
        n: p.read_bytes() for n, p in made[1].items()
    }
    sums = made[0]["SHA256SUMS"].read_text()
    key.public_key().verify(made[0]["SHA256SUMS.sig"].read_bytes(), sums.encode())
    listed = {name: digest for digest, name in (line.split("  ") for line in sums.splitlines())}
    assert set(listed) == {"NOTES.md", "charts/shoal-1.2.3.tgz", "charts/shoal-crds-1.2.3.tgz"}
    for name, digest in listed.items():
        assert hashlib.sha256(made[0][name].read_bytes()).hexdigest() == digest
    assert "New things." in made[0]["NOTES.md"].read_text()
    with tarfile.open(made[0]["charts/shoal-crds-1.2.3.tgz"]) as chart:
        found = chart.extractfile("shoal-crds/templates/things.yaml")
        assert found is not None
        kept = yaml.safe_load(found)["metadata"]["annotations"]
        assert kept == {"helm.sh/resource-policy": "keep"}
        about = chart.extractfile("shoal-crds/Chart.yaml")
        assert about is not None
        assert yaml.safe_load(about)["name"] == "shoal-crds"


def test_a_definition_that_helm_would_render_is_refused(folder: Path, tmp_path: Path) -> None:
    change(folder, "crds/things.yaml", "things}", '"{{ x }}"}')
    Checkout(folder, "1.2.3").export(tmp_path / "out")
    with pytest.raises(ReleaseError, match=r"things\.yaml"):
        charts.read_definitions(tmp_path / "out", "1.2.3")


def test_an_archive_depends_on_content_and_time_alone(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "b").chmod(0o600)
    first, second = io.BytesIO(), io.BytesIO()
    tar.write(first, {"a": b"1", "b": tmp_path / "b"}, 5)
    os.utime(tmp_path / "b", (1, 1))
    (tmp_path / "b").chmod(0o755)
    tar.write(second, {"b": tmp_path / "b", "a": b"1"}, 5)
    assert first.getvalue() == second.getvalue()
    with tarfile.open(fileobj=io.BytesIO(first.getvalue())) as made:
        assert [(e.name, e.mtime, e.mode, e.uid) for e in made] == [
            ("a", 5, 0o644, 0),
            ("b", 5, 0o644, 0),
        ]


def test_a_bill_has_the_packages_of_all_layers(tmp_path: Path) -> None:
    def packed(files: dict[str, bytes]) -> bytes:
        made = io.BytesIO()
        tar.write(made, files, 0)
        return made.getvalue()

    gone = b"Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    tini = b"Package: tini\nStatus: install ok installed\nVersion: 0.19.0-1+b3\n"
    layers = {
        "1.tar": packed({"var/lib/dpkg/status": tini + b"\n" + gone}),
        "2.tar": packed({"opt/x/Foo_Bar-1.0.dist-info/METADATA": b"Name: Foo_Bar\nVersion: 1.0\n"}),
    }
    manifest = json.dumps([{"Layers": list(layers)}]).encode()
    archive = tmp_path / "image.tar"
    archive.write_bytes(packed({"manifest.json": manifest, **layers}))
    bill = json.loads(sbom.describe_image(archive, "shoal/x", "1"))
    assert [one["purl"] for one in bill["components"]] == [
        "pkg:deb/debian/tini@0.19.0-1%2Bb3",
        "pkg:pypi/foo-bar@1.0",
    ]


def test_this_tree_can_be_released() -> None:
    """All its files have one version, and the changelog has a section of it."""
    found = read_versions(ROOT)
    assert len(set(found.values())) == 1, found
    assert read_notes(ROOT, found["pyproject.toml"])
