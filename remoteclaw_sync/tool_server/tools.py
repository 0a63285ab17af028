"""Python functions as tools of an agent: how they are described to the model, and how they are called."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import attrs

from .._values import check_seconds, check_text
from ..schema.build import Schema, object_schema, schema_of
from ..schema.convert import convert_fields
from ..schema.fields import Field
from .docstrings import describe

# Names that all models' APIs accept; some CLIs prepend "mcp__<server>__".
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@attrs.frozen
class Tool:
    """A function and what a model needs to know about it. Created by `tool()`."""

    name: str
    description: str
    input_schema: Schema = attrs.field(repr=False, eq=False)
    timeout: float | None
    _function: Callable[..., Any] = attrs.field(repr=False)
    _fields: list[Field] = attrs.field(repr=False, eq=False)
    _closed: bool = True

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        """Call the function with these JSON values. Raises ArgumentError if they do not fit it."""
        return self._function(**convert_fields(arguments, self._fields, "", closed=self._closed))


@runtime_checkable
class ToolSource(Protocol):
    """Something that provides several tools, like GatewayTools."""

    def tools(self) -> Iterable[Tool]: ...


ToolLike: TypeAlias = Callable[..., Any] | Tool | ToolSource


def tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
) -> Tool:
    """Make a function a tool: its name, description and parameters come from signature, type hints and docstring.

    Args:
        function: called with keyword arguments, in a thread of the host, perhaps several times at once.
        name: replaces the function's own name.
        description: replaces the text before the first section of the docstring.
        timeout: seconds for one call, instead of the gateway's limit.

    Raises TypeError for a function that cannot be called with JSON, and ValueError for a name that models' APIs refuse.
    """
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"a tool must be a function, not {function!r}")
    inner = function.func if isinstance(function, functools.partial) else function
    if inspect.iscoroutinefunction(inner):
        raise TypeError(f"{_name_of(inner)} is a coroutine function; tools run in threads and must be ordinary ones")
    own_name = name if name is not None else _name_of(inner)
    if not _NAME.fullmatch(own_name):
        raise ValueError(
            f"{own_name!r} cannot be the name of a tool (letters, digits, _ and -); use tool(..., name=...)"
        )
    check_seconds("timeout", timeout)
    summary, said = describe(inspect.getdoc(inner))
    if description is not None:
        check_text("description", description, empty_ok=True)
        summary = description
    fields, closed = _parameters(function, inner, own_name, said)
    schema = object_schema(fields, closed=closed)
    return Tool(own_name, summary, schema, timeout, function, fields, closed)


def build_tools(tools: Iterable[ToolLike]) -> tuple[Tool, ...]:
    """All tools of these functions and sources. Raises ValueError if two have the same name."""
    if callable(tools) or isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        raise TypeError("tools must be a sequence of functions")
    built: dict[str, Tool] = {}
    for item in tools:
        if isinstance(item, Tool):
            found: Iterable[Tool] = (item,)
        elif isinstance(item, ToolSource):
            found = item.tools()
        else:
            found = (tool(item),)
        for one in found:
            if one.name in built:
                raise ValueError(f"two tools are called {one.name!r}")
            built[one.name] = one
    return tuple(built.values())


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _parameters(
    function: Callable[..., Any], inner: Callable[..., Any], name: str, said: Mapping[str, str]
) -> tuple[list[Field], bool]:
    """The parameters that a model can give, and whether there are no others (no `**kwargs`)."""
    annotated = inner if inspect.isroutine(inner) else type(inner).__call__
    try:
        hints = typing.get_type_hints(annotated, include_extras=True)
    except NameError as error:
        raise TypeError(f"the type hints of tool {name!r} cannot be resolved: {error}") from error
    fields, closed = [], True
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            closed = False
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {name!r} is called with names: {parameter.name!r} must not be positional-only")
        field = _field(parameter, hints.get(parameter.name, Any), said.get(parameter.name, ""))
        try:
            schema_of(field.hint)
        except TypeError as error:
            raise TypeError(f"parameter {parameter.name!r} of tool {name!r}: {error}") from None
        fields.append(field)
    return fields, closed


def _field(parameter: inspect.Parameter, hint: Any, description: str) -> Field:
    required = parameter.default is parameter.empty
    return Field(parameter.name, hint, required, description, None if required else parameter.default)
