"""A plugin of mypy: `get` of a TypedDict takes only keys of its type, as `[]` does.

mypy itself returns `object` for another key, so a misspelt field would pass where only its truth
matters: `if spec.get("pausd")`. `[tool.mypy]` names this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy.errorcodes import TYPEDDICT_ITEM
from mypy.plugin import MethodContext, Plugin
from mypy.plugins.default import typed_dict_get_callback
from mypy.typeops import try_getting_str_literals
from mypy.types import Type, TypedDictType

if TYPE_CHECKING:
    from collections.abc import Callable


class TypedDictKeys(Plugin):
    """The check of the keys."""

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        return _check_key if fullname == "typing.Mapping.get" else None


def _check_key(ctx: MethodContext) -> Type:
    if isinstance(ctx.type, TypedDictType) and ctx.args and ctx.args[0]:
        for key in try_getting_str_literals(ctx.args[0][0], ctx.arg_types[0][0]) or ():
            if key not in ctx.type.items:
                text = f'TypedDict "{ctx.type.fallback.type.name}" has no key "{key}"'
                ctx.api.fail(text, ctx.context, code=TYPEDDICT_ITEM)
    return typed_dict_get_callback(ctx)


def plugin(_version: str) -> type[Plugin]:
    """Return the plugin; mypy calls this."""
    return TypedDictKeys
