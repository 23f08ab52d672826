"""The CRC-32C of batches, by the extension module of the library `crc32c`.

When the library's package is imported, it looks up its own version, which imports modules for
e-mail, zip archives and command lines: 2 MB in a broker that uses none of them. So the extension is
loaded without its package.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder
from importlib.util import find_spec, module_from_spec
from typing import Protocol


class Crc(Protocol):
    """Computes the checksum of data, behind the data of another one."""

    def __call__(self, data: bytes | bytearray | memoryview, value: int = 0, /) -> int: ...


def _load() -> Crc:
    """Return the function of the extension, or of the package where it has another form."""
    package = find_spec("crc32c")
    for folder in (package and package.submodule_search_locations) or ():
        spec = FileFinder(folder, (ExtensionFileLoader, EXTENSION_SUFFIXES)).find_spec("_crc32c")
        if spec is not None and spec.loader is not None:
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            found: Crc = module.crc32c
            return found
    from crc32c import crc32c as of_package

    return of_package


crc32c = _load()
