"""The linters of `tools/lint` find what they look for, and leave plain text alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from lint import decision_records, import_cycles, locks, names, prose, references, tidy
from lint.tree import File


def make_file(name: str, text: str) -> File:
    file = File(name)
    file.text = text
    return file


def check(name: str, text: str) -> list[str]:
    file = make_file(name, text)
    return [*tidy.check_file(file), *prose.check_file(file)]


def test_a_plain_module_has_no_faults() -> None:
    text = '"""The group has no members."""\n\n# Pass by reference.\nX = "as such"\n'
    assert check("tools/x.py", text) == []


@pytest.mark.parametrize(
    ("name", "text", "remedy"),
    [
        ("tests/x.py", "x = 1\n" * 801, "split its 801 lines"),
        ("tests/x.py", "def f() -> None:\n" + "    x = 1\n" * 70, "split f, which has 71 lines"),
        ("tests/x.py", "# TODO\n", "do not mark it for later"),
        ("tests/x.py", "time.sleep(1)\n", "wait for the condition"),
        ("tests/x.py", "await asyncio.sleep(0.1)\n", "wait for the condition"),
        ("tests/x.py", "acks.on_done = f\n", "pass callbacks"),
        ("tests/x.py", "peer.on_close[key] = f\n", "pass callbacks"),
        ("tests/x.py", "self.quorum.on_step.append(f)\n", "pass callbacks"),
        ("tests/unit/x.py", "SimpleNamespace()\n", "NamedTuple"),
        ("tools/x.py", "x = 1\n", "docstring"),
    ],
)
def test_faults_of_a_file_are_found(name: str, text: str, remedy: str) -> None:
    (found,) = check(name, text)
    assert found.startswith(name)
    assert remedy in found


def test_what_names_a_machine_is_found() -> None:
    lines = (
        "cd |home|ann|shoal && make",
        "open('|Users|ann|x')",
        "|builds|a|b.log",
        "https:||packages.corp.net|simple",
        "grpc:||user@cache.corp.net:80",
        "pip install --index-url x",
        "GOPROXY=direct",
    )
    assert [line for line in lines if not tidy.find_machine(line.replace("|", "/"))] == []


def test_files_that_shadow_operator_are_found() -> None:
    names = ("operator/__init__.py", "operator/tests/test_x.py")
    files = [make_file(name, "") for name in (*names, "operator/shoal_operator/x.py")]
    assert [found.partition(":")[0] for found in tidy.check_tree(files)] == list(names)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("settled", True),
        ("_taken", True),
        ("moved_to", True),
        ("changedPartition", True),
        ("find_taken", False),
        ("is_settled", False),
        ("on_closed", False),
        ("read", False),
        ("set_limit", False),
        ("needs_roll", False),
        ("feed", False),
    ],
)
def test_participles_differ_from_verbs(name: str, expected: bool) -> None:
    source = f"class A:\n    async def {name}(self): ...\n"
    (function,) = names.find_functions(ast.parse(source))
    assert names.begins_with_participle(function) == expected
    (function,) = names.find_functions(ast.parse(f"@property\ndef {name}(self): ...\n"))
    assert not names.begins_with_participle(function)


def test_too_many_participles_are_found_with_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "PARTICIPLES_MAX", 0.4)
    monkeypatch.setattr(names, "EXCEPT", {"closed": "asyncio calls it", "gone": "nobody does"})
    text = "def find(): ...\ndef taken(): ...\ndef closed(): ...\n"
    name = f"{names.PACKAGES[0]}/x.py"
    assert [f for f in names.check_tree([make_file(name, text)]) if "EXCEPT" not in f] == []
    files = [make_file(name, text), make_file(f"{names.PACKAGES[0]}/y.py", "def lost(): ...\n")]
    share, *places, unused = names.check_tree(files)
    assert share.startswith(f"{names.PACKAGES[0]}: 2 of 4 functions")
    assert [place.partition(": ")[0] for place in places] == [
        f"{names.PACKAGES[0]}/x.py:2",
        f"{names.PACKAGES[0]}/y.py:1",
    ]
    assert unused == "tools/lint/names.py: remove gone from EXCEPT"


def test_each_ban_finds_its_phrase() -> None:
    """In a docstring, a comment, an f-string, over the end of a line, and in a document."""
    for ban in prose.BANS:
        example, broken = ban.example, ban.example.replace(" ", "\n# ", 1)
        source = f'"""{example}"""\n# {broken}\nx = f"{{y}} {example}"\n'
        first, _, rest = example.partition(" ")
        source += f'z = (\n    "{first} "\n    "{rest}"\n)\n'
        found = [hit for hit in check("tools/x.py", source) if ban.better in hit]
        assert len(found) == 4, (ban, found)
        document = example.replace(" ", "\n", 1) + f"\n\n```\n{example}\n```\n"
        assert len([h for h in check("docs/x.md", document) if ban.better in h]) == 1, ban


def test_an_exception_without_need_is_found() -> None:
    files = [make_file(name, "plain") for name in prose.EXCEPT]
    assert len(list(prose.check_tree(files))) == len(prose.EXCEPT)


@pytest.mark.parametrize(
    ("text", "stale"),
    [
        ("see `server/share/leader.py` and `server.share`", []),
        (
            "`server/outflow.py`, `server.outflow.Sender`",
            ["server/outflow.py", "server.outflow.Sender"],
        ),
        ("`server.share.leader.ShareLeader`", []),
        ("`server.share.leader.NoSuchClass`", ["server.share.leader.NoSuchClass"]),
        ("`/var/lib/shoal`, `lib/x`, `share.version`", []),
        ("`make wire`, `make unit SEED=1`, or make it so", []),
        ("`make units`", ["make units"]),
        ("      - run: make night", ["make night"]),
    ],
)
def test_stale_references_are_found(text: str, stale: list[str]) -> None:
    makefile = "VENV = x\nunit wire: venv\n\tpytest\n"
    known = references.References(["broker_image/shoal/server/share/leader.py"], makefile)
    found = [hit.removeprefix("1: ") for hit in known.find_stale(text, "docs/x.md")]
    assert found == stale


def test_stale_names_of_functions_are_found() -> None:
    file = "tests/unit/tools/test_lint.py"
    known = references.References([file])
    text = f"`{file}::test_a_cycle_is_found`, `{file}::test_a_cycle`"
    assert list(known.find_stale(text, "docs/x.md")) == [f"1: {file}::test_a_cycle"]
    text = f"`test_a_cycle_is_found` in `{file}`, or `test_a_cycle` (in `{file}`)"
    assert list(known.find_stale(text, "docs/x.md")) == [f"1: test_a_cycle in {file}"]


def test_variables_that_say_nothing_are_found() -> None:
    text = (
        "class A:\n    wanted: int\n\ndef f(given: int) -> int:\n    one = given\n    return one\n"
    )
    problems = [names.check_file(make_file(name, text)) for name in ("tools/x.py", "tests/x.py")]
    assert [[line.partition(" says")[0] for line in lines] for lines in problems] == [
        ["tools/x.py:4: given", "tools/x.py:5: one"],
        [],
    ]


def test_a_cycle_is_found() -> None:
    graph = {"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": ["e"], "e": [], "f": ["a"]}
    assert import_cycles.find_cycles(graph) == [["a", "b", "c"]]


RECORD = "# 7. Do it\n\nStatus: accepted. Date: 2026-11-30.\n\n**Situation.** A.\n\n"
RECORD += "**Decision.** B.\n\n**Rejected.** C.\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# 7.", "# 8."),
        ("# 7. Do it", "Do it"),
        ("accepted.", "accepted, mostly."),
        ("accepted.", "accepted; point 3 moved to [9](0009-x.md)."),
        ("Date: 2026-11-30.", "Date: 2026-11-30. Supersedes point 1 of [9](0009-x.md)."),
        ("**Decision.**", "**Decided.**"),
        ("**Rejected.** C.\n", ""),
        ("**Situation.** A.\n\n", "## One\n\n**Situation.** A.\n\n"),
    ],
)
def test_faults_of_a_record_are_found(old: str, new: str) -> None:
    assert not list(decision_records.find_faults("0007-do-it.md", RECORD))
    broken = RECORD.replace(old, new)
    if new.startswith("## "):
        broken += "\n## Two\n\n**Decision.** D.\n"
    assert list(decision_records.find_faults("0007-do-it.md", broken))


def test_links_of_records_lead_back() -> None:
    status = "; point 1 is superseded by [8](0008-other.md)."
    old = RECORD.replace("accepted.", f"accepted{status}").replace("B.", "\n1. B.")
    new = RECORD.replace("# 7.", "# 8.").replace("accepted.", "accepted; {}.")
    back = new.format("supersedes point 1 of [7](0007-do-it.md)")
    folder = decision_records.FOLDER

    def check_records(text: str) -> list[str]:
        files = {"0007-do-it.md": old, "0008-other.md": text}
        lines = [decision_records.make_index_line(n, t) for n, t in files.items()]
        files[decision_records.INDEX] = "\n".join(lines)
        return list(
            decision_records.check_tree([make_file(folder + n, t) for n, t in files.items()])
        )

    assert check_records(back) == []
    (found,) = check_records(new.replace("; {}", ""))
    assert "do not link to each other" in found


@pytest.mark.parametrize(
    ("index", "faults"),
    [
        ("* [7](0007-do-it.md): Do it\n", 0),
        ("", 1),
        ("* [7](0007-do-it.md): Do it\n" * 2, 1),
        ("* [7](0007-do-it.md): Did it\n", 2),
        ("* [7](0007-do-it.md): Do it\n* [8](0008-gone.md): Go\n", 1),
    ],
)
def test_the_index_lists_each_record_once(index: str, faults: int) -> None:
    texts = {"0007-do-it.md": RECORD, decision_records.INDEX: index}
    files = [make_file(decision_records.FOLDER + name, text) for name, text in texts.items()]
    assert len(list(decision_records.check_tree(files))) == faults


@pytest.mark.parametrize(
    "step",
    [
        "RUN pip install shoal",
        'RUN python3 -m pip install --no-cache-dir --target /opt/shoal ".[operator]"',
        "RUN true && \\\n    pip3 install \\\n    -r locked.txt",
        "RUN pip install --require-hashes -r a.txt && pip install b",
        "RUN pip install --no-index .",
        "RUN uv pip install b; true",
        "RUN curl -O https:" + "//kubernetes.io/kubectl",
        "ADD https:" + "//kubernetes.io/kubectl /bin/",
    ],
)
def test_an_image_that_installs_without_hashes_is_found(step: str) -> None:
    file = make_file("x/Containerfile", f"FROM scratch\n# pip install x\n{step}\n")
    (found,) = locks.check_file(file)
    assert found.startswith("x/Containerfile: install with --require-hashes")


@pytest.mark.parametrize(
    "step",
    [
        "RUN python3 -m pip install --require-hashes \\\n    --target /opt -r a.txt",
        "RUN PYTHONPATH=/b pip install --no-index --no-deps .",
        "RUN apt-get install --yes python3-pip curl",
    ],
)
def test_an_image_that_installs_by_hashes_is_no_fault(step: str) -> None:
    assert list(locks.check_file(make_file("x/Containerfile", f"{step}\n"))) == []


def test_our_images_install_by_hashes() -> None:
    images = sorted(Path(__file__).parents[3].glob("*/Containerfile"))
    assert len(images) == 3
    for path in images:
        name = f"{path.parent.name}/{path.name}"
        assert list(locks.check_file(make_file(name, path.read_text()))) == []


PYPROJECT = {
    "project": {
        "dependencies": ["a>=1"],
        "optional-dependencies": {name: [] for name in ("dev", "broker", "tiered", "operator")}
        | {
            "console": ["c"],
            "up": [],
            "tracing": [],
            "django": [],
            "celery": [],
            "spark": ["d<2"],
            "jobs": [],
            "demo": ["e_e"],
        },
    },
    "dependency-groups": {"build": ["h"]},
}


def make_locks(**pins: str) -> dict[str, str]:
    """Return locks, each with pins such as `a==1`."""
    return {
        name.replace("_", "-"): "".join(f"{pin} \\\n    --hash=sha256:0\n" for pin in text.split())
        for name, text in pins.items()
    }


def test_locks_agree_with_the_project_and_each_other() -> None:
    good = make_locks(
        dev="a==1 c==3",
        spark="d==1",
        jobs="",
        demo="a==1 e-e==5",
        build="h==1",
        image_broker="a==1 c==3",
        image_operator="a==1",
        image_spark="a==1 d==1",
    )

    def find(**changed: str) -> list[str]:
        return list(locks.find_faults(PYPROJECT, good | make_locks(**changed)))

    assert find() == []
    (found,) = find(image_broker="a==1")
    assert found == "image-broker.txt: pyproject.toml wants c, and it has []"
    both = find(spark="d==2", image_spark="a==1 d==2")
    wants = "pyproject.toml wants d<2, and it has ['2']"
    assert both == [f"image-spark.txt: {wants}", f"spark.txt: {wants}"]
    (found,) = find(image_operator="a==2")
    assert found == "the locks have a in the versions 1, 2"
    (found,) = find(plots="")
    assert found == "plots.txt: no extra has it"
    missing = {name: text for name, text in good.items() if name != "image-spark"}
    assert list(locks.find_faults(PYPROJECT, missing)) == ["image-spark.txt: it is missing"]
    (found,) = locks.find_faults(PYPROJECT, good | {"jobs": "j==1\n"})
    assert found == "jobs.txt: j==1 has no hash"
