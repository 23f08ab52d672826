"""The names that `shoal.client` exports: they exist, cost nothing until they are used, and are
typed."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import shoal.client as face
from shoal.client import synchronous
from shoal.client.produce import producer, transactional

#: Classes with public methods, beside those that the module exports.
CLASSES = (
    synchronous.SyncProducer,
    synchronous.SyncShareConsumer,
    synchronous.SyncTransactionalProducer,
)


def test_a_name_is_exported_for_type_checkers_as_at_run_time() -> None:
    tree = ast.parse(Path(inspect.getfile(face)).read_text())
    typed = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "typing"
        for alias in node.names
        if alias.name != "annotations"
    }
    found = {name: getattr(face, name) for name in face.__all__}
    assert typed.keys() == found.keys() == face._MODULES.keys()  # noqa: SLF001
    for name, value in found.items():
        module = sys.modules[typed[name] or ""]
        assert getattr(module, name) is value
    assert set(face.__all__) <= set(dir(face))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        face.Cleint  # noqa: B018


def test_the_package_imports_no_module_before_a_name_is_used() -> None:
    """A broker needs the client's connections only, and a command a part of it."""
    program = (
        "import sys, shoal.client; from shoal.client.errors import KafkaError;"
        "print(*sorted(m for m in sys.modules if m.startswith('shoal.client')))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert printed.split() == ["shoal.client", "shoal.client.errors"]


def test_hypothesis_is_left_to_those_who_import_it() -> None:
    """kio would import it where it is installed, which takes longer than all the rest."""
    program = (
        "import sys, shoal.client.client; print('hypothesis' in sys.modules);"
        "import hypothesis.strategies; print('hypothesis' in sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert printed.split() == ["False", "True"]


def list_calls() -> list[tuple[str, object]]:
    """Return the public functions of exported classes, with their names."""
    classes = [getattr(face, name) for name in face.__all__] + list(CLASSES)
    return [
        (f"{cls.__name__}.{name}", getattr(value, "__func__", value))
        for cls in classes
        if inspect.isclass(cls)
        for name, value in vars(cls).items()
        if not name.startswith("_") or name == "__init__"
        if inspect.isfunction(getattr(value, "__func__", value))
    ]


def test_each_option_of_a_public_call_has_a_name_and_a_type() -> None:
    untyped = []
    for name, call in list_calls():
        for parameter in inspect.signature(call).parameters.values():  # type: ignore[arg-type]
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                is_typed = str(parameter.annotation).startswith("Unpack[")
            else:
                is_typed = parameter.annotation is not inspect.Parameter.empty
            if not is_typed and parameter.name not in ("self", "cls", "_"):
                untyped.append(f"{name}: {parameter}")
    assert not untyped


def test_the_options_of_producers_are_those_of_their_constructor() -> None:
    options = typing.get_type_hints(producer.ProducerOptions)
    taken = inspect.signature(producer.Producer.__init__).parameters.keys() - {"self", "cluster"}
    assert options.keys() == taken
    batches = typing.get_type_hints(producer.BatchOptions)
    assert options.keys() - batches.keys() == {"acks", "idempotent"}
    fixed = inspect.signature(transactional.TransactionalProducer.__init__).parameters
    assert {"timeout_ms", "options"} <= fixed.keys()
