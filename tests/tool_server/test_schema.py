"""From a function to what a model learns about it, and from the model's JSON to the function's arguments."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, NotRequired, Optional, TypedDict, Union

import attrs
import pytest

from remoteclaw_sync.schema.build import schema_of
from remoteclaw_sync.schema.convert import ArgumentError, convert
from remoteclaw_sync.tool_server.docstrings import describe
from remoteclaw_sync.tool_server.tools import build_tools, tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@attrs.frozen
class Order:
    number: int
    lines: list[Point] = attrs.field(factory=list)


class Person(TypedDict):
    name: str
    age: NotRequired[int]


UserId = NewType("UserId", int)

TYPES: list[tuple[Any, dict[str, Any], Any, Any]] = [
    (str, {"type": "string"}, "a", "a"),
    (int, {"type": "integer"}, 3.0, 3),
    (float, {"type": "number"}, 3, 3.0),
    (bool, {"type": "boolean"}, True, True),
    (Any, {}, [1, "x"], [1, "x"]),
    (list[int], {"type": "array", "items": {"type": "integer"}}, [1, 2], [1, 2]),
    (list, {"type": "array", "items": {}}, [1, "a"], [1, "a"]),
    (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}, [1, 2], (1, 2)),
    (
        tuple[int, str],
        {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "minItems": 2, "maxItems": 2},
        [1, "a"],
        (1, "a"),
    ),
    (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}, ["a", "a"], {"a"}),
    (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}, {"a": 1}),
    (dict, {"type": "object", "additionalProperties": {}}, {"a": "b"}, {"a": "b"}),
    (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, None),  # noqa: UP045
    (Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "7", "7"),  # noqa: UP007
    (float | int, {"anyOf": [{"type": "number"}, {"type": "integer"}]}, 3, 3),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, "b", "b"),
    (Literal[1, "b"], {"enum": [1, "b"]}, 1, 1),
    (Colour, {"type": "string", "enum": ["red", "blue"]}, "blue", Colour.BLUE),
    (UserId, {"type": "integer"}, 5, 5),
    (Annotated[int, "how many"], {"type": "integer", "description": "how many"}, 5, 5),
    (datetime.date, {"type": "string", "format": "date"}, "2024-02-29", datetime.date(2024, 2, 29)),
    (Path, {"type": "string"}, "/etc", Path("/etc")),
    (
        Point,
        {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["x"]},
        {"x": 1},
        Point(1, 0),
    ),
    (
        Person,
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name"],
        },
        {"name": "Ann"},
        {"name": "Ann"},
    ),
]


@pytest.mark.parametrize(("hint", "schema", "value", "converted"), TYPES, ids=lambda case: str(case)[:30])
def test_a_type_has_a_schema_and_reads_what_fits_it(hint: Any, schema: Any, value: Any, converted: Any) -> None:
    assert schema_of(hint) == schema
    result = convert(value, hint, "it")
    assert (result, type(result)) == (converted, type(converted))


def test_classes_within_classes_are_built_from_the_inside() -> None:
    assert convert({"number": 1, "lines": [{"x": 2}]}, Order, "order") == Order(1, [Point(2)])


@pytest.mark.parametrize(
    ("hint", "value", "words"),
    [
        (int, "3", "it: expected an integer, got '3'"),
        (int, True, "it: expected an integer, got True"),
        (int, 3.5, "it: expected an integer, got 3.5"),
        (str, None, "it: expected a string, got None"),
        (bool, 1, "it: expected true or false, got 1"),
        (list[int], [1, "x"], r"it\[1\]: expected an integer"),
        (dict[str, int], {"a": "x"}, r"it\.a: expected an integer"),
        (Literal["a"], "b", "it: expected one of 'a', got 'b'"),
        (Colour, "green", "it: expected one of 'red', 'blue', got 'green'"),
        (Order, {"number": 1, "lines": [{}]}, r"it\.lines\[0\]\.missing: x"),
        (Point, {"x": 1, "z": 2}, r"it\.unknown: z; known are: x, y"),
        (datetime.date, "tomorrow", "it: expected an ISO 8601 date"),
        (int | None, "x", "it: expected an integer, got 'x'; or it: expected null"),
        (tuple[int, int], [1], "it: expected an array of 2"),
    ],
)
def test_what_does_not_fit_is_refused_in_words_that_name_the_place(hint: Any, value: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        convert(value, hint, "it")


GOOGLE = """Find an order.

    It may be old.

    Args:
        number (int): the order's number,
            without the dash
        lang: a language

    Returns:
        dict: the order
    """
NUMPY = """Find an order.

    It may be old.

    Parameters
    ----------
    number : int
        the order's number,
        without the dash
    lang
        a language

    Returns
    -------
    dict
    """
SPHINX = """Find an order.

    It may be old.

    :param int number: the order's number,
        without the dash
    :param lang: a language
    :returns: the order
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_the_docstring_describes_the_function_and_its_parameters(docstring: str) -> None:
    summary, parameters = describe(docstring)
    assert summary == "Find an order.\n\nIt may be old."
    assert parameters == {"number": "the order's number, without the dash", "lang": "a language"}


def test_a_function_without_a_docstring_is_described_by_its_name() -> None:
    assert describe(None) == ("", {})


def lookup(number: int, lang: Literal["en", "de"] = "en", note: str | None = None) -> str:
    """Find an order.

    Args:
        number: which
    """
    return f"{number} {lang} {note}"


def test_a_tool_is_made_of_signature_hints_and_docstring() -> None:
    made = tool(lookup)
    assert (made.name, made.description) == ("lookup", "Find an order.")
    assert made.input_schema == {
        "type": "object",
        "properties": {
            "number": {"type": "integer", "description": "which"},
            "lang": {"type": "string", "enum": ["en", "de"], "default": "en"},
            "note": {"type": "string"},
        },
        "required": ["number"],
        "additionalProperties": False,
    }
    assert made({"number": 3}) == "3 en None"
    assert made({"number": 3, "lang": "de", "note": None}) == "3 de None"


def test_a_tool_refuses_arguments_it_does_not_know_and_names_those_it_does() -> None:
    with pytest.raises(ArgumentError, match="unknown: size; known are: number, lang, note"):
        tool(lookup)({"number": 1, "size": 2})
    with pytest.raises(ArgumentError, match="missing: number"):
        tool(lookup)({})


def test_methods_partials_and_callable_objects_can_be_tools() -> None:
    class Shop:
        def find(self, number: int) -> int:
            return number + 1

        def __call__(self, name: str) -> str:
            return name * 2

    shop = Shop()
    assert tool(shop.find)({"number": 1}) == 2
    assert tool(shop, name="shop")({"name": "a"}) == "aa"
    assert tool(functools.partial(lookup, lang="de"))({"number": 1}) == "1 de None"


def test_keyword_arguments_of_any_name_are_passed_on() -> None:
    def anything(**values: Any) -> dict[str, Any]:
        return values

    assert "additionalProperties" not in tool(anything).input_schema
    assert tool(anything)({"a": 1}) == {"a": 1}


def positional(*values: int) -> None: ...


def unknown_type(value: object, file: memoryview) -> None: ...


async def coroutine() -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (positional, "positional"),
        (unknown_type, "parameter 'file' of tool 'unknown_type': memoryview cannot be passed as JSON"),
        (coroutine, "coroutine"),
        (Point, "must be a function"),
        ("lookup", "must be a function"),
    ],
)
def test_what_json_cannot_call_is_refused_when_it_is_given(function: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        build_tools([function])


def test_names_no_api_takes_and_names_given_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="name"):
        build_tools([lambda: None])
    with pytest.raises(ValueError, match="two tools are called 'lookup'"):
        build_tools([lookup, lookup])
    assert [one.name for one in build_tools([lookup, tool(lookup, name="again")])] == ["lookup", "again"]
