"""What is taken for the answer in what an agent says, and what is reported about an answer that does not fit."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
from datetime import UTC
from decimal import Decimal
from typing import Any, Literal, NotRequired, Required, TypedDict
from uuid import UUID

import attrs
import pytest

from remoteclaw_sync.clis.claude.answer_schema import accepted
from remoteclaw_sync.clis.codex.strict_schema import strict
from remoteclaw_sync.schema.answers import AnswerFormat
from remoteclaw_sync.schema.convert import ArgumentError
from remoteclaw_sync.schema.plain import plain
from remoteclaw_sync.schema.validate import check_schema, problems, without_nulls


@attrs.frozen
class Bug:
    file: str
    line: int
    fix: str | None = None


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


BUG = '{"file": "a.py", "line": 3}'


@pytest.mark.parametrize(
    "text",
    [
        BUG,
        f"  \n{BUG}\n",
        f"```json\n{BUG}\n```",
        f"I looked at {{it}} and [1].\n\n{BUG}\n\nSee [2].",
        f'First {{"file": "b.py", "line": 9}}, no: {BUG}',
        f"```\nnot this\n```\nbut\n```json\n{BUG}\n```\nI hope it helps {{}}.",
        '{"file": "a.py", "line": 3.0, "fix": null}',
    ],
)
def test_the_answer_is_found_in_what_was_said(text: str) -> None:
    assert AnswerFormat.of(Bug).read(text) == Bug("a.py", 3)


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (list[int], '{"value": [1, 2]}', [1, 2]),
        (list[int], "[1, 2]", [1, 2]),
        (int, "42", 42),
        (Literal["yes", "no"], '"yes"', "yes"),
        (Size, '{"value": 2}', Size.LARGE),
        (int | None, '{"value": null}', None),
        (dict[str, Any], '{"value": 3}', {"value": 3}),
    ],
)
def test_an_answer_that_is_no_object_may_come_with_its_wrapper_or_without(hint: Any, text: str, value: Any) -> None:
    assert AnswerFormat.of(hint).read(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"Paris"', "Paris"),
        ('{"value": "Paris"}', "Paris"),
        ("Paris, as of [1].", "Paris, as of [1]."),
        ('{"value": "Paris", "sure": true}', '{"value": "Paris", "sure": true}'),
        ("42", "42"),
        ("```sh\nls\n```", "```sh\nls\n```"),
        ("[" * 100_000, "[" * 100_000),
        ('Here it is:\n```json\n{"value": "Paris"}\n```\n', "Paris"),
        ('First ```\n"draft"\n``` and so on.', 'First ```\n"draft"\n``` and so on.'),
        ('I call it with {"value": "x"}.', 'I call it with {"value": "x"}.'),
    ],
)
def test_any_words_are_an_answer_that_is_to_be_a_text(text: str, value: str) -> None:
    answer = AnswerFormat.of(str)
    assert answer.read(text, f'Before. ```\n"draft"\n```{text}') == value
    with pytest.raises(ArgumentError, match="there is none"):
        answer.read(" ", "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "answer: there is none"),
        ("I do not know.", "answer: expected JSON, got 'I do not know.'"),
        ('{"file": "a.py"}', "answer: missing: line"),
        (
            '{"file": 1, "line": "x", "more": 0}',
            "answer.file: expected a string, got 1\nanswer.line: expected an integer",
        ),
        ('{"file": "a", "line": NaN}', "answer: expected JSON"),
        ("[" * 100_000, "answer: expected JSON"),
    ],
)
def test_what_is_wrong_is_said_all_at_once(text: str, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        AnswerFormat.of(Bug).read(text)
    assert str(caught.value).startswith(words)


def test_words_after_the_last_tool_go_before_all_words() -> None:
    other = '{"file": "b.py", "line": 1}'
    assert AnswerFormat.of(Bug).read(BUG, f"{other} {BUG}") == Bug("a.py", 3)
    assert AnswerFormat.of(Bug).read("Done.", f"{BUG} Done.") == Bug("a.py", 3)


def test_a_json_schema_gives_what_fits_it() -> None:
    schema = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/node"}},
        "required": ["tree"],
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}, "left": {"$ref": "#/$defs/node"}},
                "required": ["name"],
                "additionalProperties": False,
            }
        },
    }
    answer = AnswerFormat.of(schema)
    assert answer.read('{"tree": {"name": "a", "left": {"name": "b"}}}')["tree"]["left"] == {"name": "b"}
    with pytest.raises(ArgumentError, match=r"answer\.tree\.left\.name: expected text that matches"):
        answer.read('{"tree": {"name": "a", "left": {"name": "B"}}}')


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"type": ["string", "null"]}, None, True),
        ({"type": "integer"}, 3.0, True),
        ({"type": "integer"}, True, False),
        ({"enum": [1, "a"]}, True, False),
        ({"const": 4}, 4, True),
        ({"minimum": 3}, 2, False),
        ({"exclusiveMaximum": 3}, 3, False),
        ({"multipleOf": 0.1}, 0.3, True),
        ({"minLength": 2}, "a", False),
        ({"maxItems": 1}, [1, 2], False),
        ({"uniqueItems": True}, [{"a": 1}, {"a": 1}], False),
        ({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, ["a", 1, 2], True),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a", 1], False),
        ({"contains": {"const": 1}}, [2, 3], False),
        ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, 5, False),
        ({"allOf": [{"minimum": 3}, {"maximum": 5}]}, 6, False),
        ({"not": {"type": "string"}}, "a", False),
        ({"additionalProperties": {"type": "integer"}}, {"a": "b"}, False),
        ({"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}, {"x1": 2}, True),
        ({"propertyNames": {"pattern": "^a"}}, {"b": 1}, False),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}, False),
        ({"if": {"required": ["a"]}, "then": False, "else": {"required": ["b"]}}, {"b": 1}, True),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}, False),
        ({"type": "integer", "minimum": 3, "multipleOf": 10}, 10**400, True),
        ({"multipleOf": 10}, 10**400 + 1, False),
        ({"multipleOf": 0.5}, 10**400, True),
        ({"const": [1, {"a": 2.0}]}, [1.0, {"a": 2}], True),
        ({"const": [1]}, [True], False),
        ({"a-word-of-tomorrow": 1}, "anything", True),
    ],
)
def test_a_value_is_checked_by_the_words_of_the_standard(schema: dict[str, Any], value: Any, fits: bool) -> None:
    check_schema(schema)
    assert (problems(value, schema, "it") == []) is fits


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "text"}, "type must be one of"),
        ({"properties": {"a": 3}}, r"the schema\.properties\.a must be an object"),
        ({"required": "a"}, "required must be an array"),
        ({"enum": "abc"}, "enum must be an array"),
        ({"enum": []}, "enum must be an array of at least one value"),
        ({"minimum": "3"}, "minimum must be a number, not '3'"),
        ({"minItems": -1}, "minItems must be a number, not -1"),
        ({"description": 3}, "description must be a string"),
        ({"pattern": "("}, "pattern cannot be used"),
        ({"patternProperties": {"(": {}}}, "pattern cannot be used"),
        ({"type": {}}, "type must be one of"),
        ({"$ref": 3}, r"\$ref must be a string"),
        ({"properties": {"a": {"$ref": "#node"}}}, "which is not in it"),
        ({"$ref": "#/$defs/nowhere"}, "which is not in it"),
        ({"$ref": "https://example.org/schema"}, "which is not in it"),
        ({"const": float("nan")}, "is not JSON"),
        ({"const": object()}, "is not JSON"),
        ({"anyOf": {}}, "must be an array"),
    ],
)
def test_what_is_no_schema_is_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AnswerFormat.of(schema)


@pytest.mark.parametrize("output_type", [None, "Bug", 3, object(), type("Thing", (), {})])
def test_what_is_no_type_is_refused(output_type: object) -> None:
    with pytest.raises(TypeError):
        AnswerFormat.of(output_type)


def test_strict_mode_has_every_field_required_and_every_object_closed() -> None:
    made = strict(AnswerFormat.of(list[Bug]).schema)
    assert made is not None
    (item,) = [made["properties"]["value"]["items"]]
    assert (item["required"], item["additionalProperties"]) == (["file", "line", "fix"], False)
    assert {"type": "null"} in item["properties"]["fix"]["anyOf"]
    assert strict({"type": "object", "properties": {"a": {"enum": [1, "x"]}}}) == {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "integer", "enum": [1]}, {"type": "string", "enum": ["x"]}, {"type": "null"}]}
        },
        "required": ["a"],
        "additionalProperties": False,
    }


def test_strict_mode_has_references_with_nothing_beside_them() -> None:
    node = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    schema = {
        "type": "object",
        "properties": {
            "one": {"$ref": "#/$defs/node", "description": "the first"},
            "two": {"allOf": [{"$ref": "#/$defs/node"}], "description": "the second"},
            "three": {"$ref": "#/$defs/node", "default": None},
        },
        "required": ["one", "two"],
        "$defs": {"node": node},
    }
    made = strict(schema)
    assert made is not None
    reference = {"$ref": "#/$defs/node"}
    one, two, three = made["properties"].values()
    assert (one, two, three) == (reference, reference, {"anyOf": [reference, {"type": "null"}]})
    assert strict({"type": "object", "properties": {"a": {"$ref": "#/x-types/a"}}, "x-types": {"a": node}}) is None


def test_claude_gets_a_schema_in_the_words_of_draft_7() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "a": {"enum": [1, 1.0, "x"], "x-mine": 3},
            "b": {"oneOf": [{"const": {"x-mine": 3}}], "discriminator": {"propertyName": "k"}},
            "c": {"pattern": r"(?<=x)y", "deprecated": True},
            "d": {"pattern": r"^\d+\.[a-z]*(?:x|y)$"},
        },
        "required": ["a", "a"],
    }
    assert accepted(schema) == {
        "type": "object",
        "properties": {
            "a": {"enum": [1, "x"]},
            "b": {"oneOf": [{"const": {"x-mine": 3}}]},
            "c": {},
            "d": {"pattern": r"^\d+\.[a-z]*(?:x|y)$"},
        },
        "required": ["a"],
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "array", "prefixItems": [{"type": "integer"}]}}},
        {"properties": {"a": {"$ref": "#/x-types/a"}}, "x-types": {"a": {"type": "integer"}}},
        {"properties": {"ab": {}}, "patternProperties": {"^a": {}}},
        {"patternProperties": {"(?i)a": {}}},
    ],
    ids=["words-of-later-drafts", "a-reference-to-nowhere", "two-schemas-of-a-field", "a-pattern-of-python"],
)
def test_what_claude_would_not_take_is_told_in_words(schema: dict[str, Any]) -> None:
    check_schema({"type": "object", **schema})
    assert accepted({"type": "object", **schema}) is None


@pytest.mark.parametrize("hint", [dict[str, int], list[Any], Any, list[dict[str, str]]])
def test_strict_mode_has_no_form_for_mappings_and_for_anything(hint: Any) -> None:
    assert strict(AnswerFormat.of(hint).schema) is None


def test_fields_that_strict_mode_filled_with_null_are_left_out_again() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": ["string", "null"]}}}
    assert without_nulls({"a": None, "b": None, "c": None}, schema) == {"b": None, "c": None}


def test_a_pydantic_model_is_read_by_itself() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed (extra `test-mcp`)")
    inner = pydantic.create_model("Inner", day=(__import__("datetime").date, ...))
    outer = pydantic.create_model("Outer", inners=(list[inner], ...), note=(str | None, None))  # type: ignore[valid-type]
    answer = AnswerFormat.of(outer)
    assert "$ref" not in str(answer.schema)
    value = answer.read('{"inners": [{"day": "2024-02-29"}]}')
    assert value.inners[0].day.isoformat() == "2024-02-29"
    assert plain(value) == {"inners": [{"day": "2024-02-29"}], "note": None}
    with pytest.raises(ArgumentError, match="inners"):
        answer.read('{"inners": 3}')


# --- types that are told apart, that contain themselves, that refuse -------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    ONE = 1
    TWO = 2


class Odd(enum.Enum):
    DAY = datetime.date(2024, 1, 1)
    PAIR = (1, 2)


@attrs.frozen
class Short:
    x: int = 0


@attrs.frozen
class Long:
    x: int = 0
    y: int = 0


class Name(TypedDict):
    name: str


class Birthday(TypedDict):
    name: str
    day: datetime.date


class Partly(TypedDict, total=False):
    a: Required[int]
    b: str


class Whole(Partly):
    c: NotRequired[datetime.date]
    d: int


class Holder(TypedDict):
    value: int


DAY = datetime.date(2024, 2, 29)


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (datetime.date | str, '"2024-02-29"', DAY),
        (str | datetime.date, '"2024-02-29"', DAY),
        (str | datetime.date, '"today"', "today"),
        (datetime.datetime | datetime.date, '"2024-02-29"', DAY),
        (datetime.date | datetime.datetime, '"2024-02-29T00:00:00Z"', datetime.datetime(2024, 2, 29, tzinfo=UTC)),
        (str | Colour, '"red"', Colour.RED),
        (int | Level, "2", Level.TWO),
        (int | Level, "3", 3),
        (float | int, "3", 3),
        (int | float, "3.0", 3.0),
        (bool | int, "1", 1),
        (int | bool, "true", True),
        (Long | Short, '{"x": 0}', Short()),
        (Short | Long, '{"x": 0, "y": 0}', Long()),
        (Long | Short, "{}", Long()),
        (Name | Birthday, '{"name": "a", "day": "2024-02-29"}', {"name": "a", "day": DAY}),
        (Holder | None, '{"value": {"value": 3}}', {"value": 3}),
        (Holder | None, '{"value": 3}', {"value": 3}),
    ],
)
def test_of_the_members_of_a_union_the_nearest_is_taken(hint: Any, text: str, value: Any) -> None:
    read = AnswerFormat.of(hint).read(text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (Decimal, "19.99", Decimal("19.99")),
        (Decimal, '"0.10000000000000000000000000001"', Decimal("0.10000000000000000000000000001")),
        (int, str(10**40), 10**40),
        (datetime.time, '"10:00:00+05:30"', datetime.time.fromisoformat("10:00:00+05:30")),
        (Literal[Colour.RED, 1], '"red"', Colour.RED),
        (Literal[1, 2], "1.0", 1),
        (Odd, '"2024-01-01"', Odd.DAY),
        (Odd, "[1, 2]", Odd.PAIR),
        (dict[bool, int], '{"true": 1}', {True: 1}),
        (dict[Colour, int], '{"red": 1}', {Colour.RED: 1}),
        (dict[Literal[1, "a"], int], '{"1": 1, "a": 2}', {1: 1, "a": 2}),
        (dict[str | int, int], '{"1": 1, "a": 2}', {1: 1, "a": 2}),
        (Whole, '{"a": 1, "d": 2, "c": "2024-02-29"}', {"a": 1, "d": 2, "c": DAY}),
        (frozenset[int], "[1, 1]", frozenset({1})),
        (int | None, "```json\r\n3\r\n```", 3),
    ],
)
def test_values_that_json_writes_in_another_way_come_back(hint: Any, text: str, value: Any) -> None:
    read = AnswerFormat.of(hint).read(text)
    assert (read, type(read)) == (value, type(value))
    said = json.dumps(plain(value))
    assert AnswerFormat.of(hint).read(said) == value


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (float, "1e999"),
        (float, "NaN"),
        (float, "1" + "0" * 400),
        (Any, '{"a": 1e999}'),
        (Any, "[-Infinity]"),
        (Decimal, '"NaN"'),
        (Decimal, "true"),
        (Decimal, '"a lot"'),
        (int, "true"),
        (float, "false"),
        (bool, "1"),
        (Level, "true"),
        (Literal[1], "true"),
        (dict[int, int], '{"1_0": 1}'),
        (dict[float, int], '{"nan": 1}'),
        (dict[Colour, int], '{"green": 1}'),
        (Name, '{"name": "a", "more": 1}'),
        (Whole, '{"a": 1}'),
        (UUID, '"me"'),
    ],
)
def test_a_value_of_another_kind_is_refused(hint: Any, text: str) -> None:
    with pytest.raises(ArgumentError):
        AnswerFormat.of(hint).read(text)


@attrs.frozen
class Tree:
    name: str
    children: list[Tree] = attrs.field(factory=list)


def test_a_class_that_contains_itself_is_checked_deeper_than_it_is_written_out() -> None:
    text = '{"name": "leaf"}'
    for _ in range(30):
        text = f'{{"name": "a", "children": [{text}]}}'
    tree = AnswerFormat.of(Tree).read(text)
    for _ in range(30):
        (tree,) = tree.children
    assert tree == Tree("leaf")
    with pytest.raises(ArgumentError, match="name: expected a string, got 3"):
        AnswerFormat.of(Tree).read(text.replace('"leaf"', "3"))


@attrs.frozen
class Here:
    one: There | None = None
    two: There | None = None
    three: list[There] = attrs.field(factory=list)


@attrs.frozen
class There:
    one: Here | None = None
    two: Here | None = None
    three: dict[str, Here] = attrs.field(factory=dict)


def test_the_schema_of_classes_that_contain_each_other_in_many_places_stays_small() -> None:
    assert len(json.dumps(AnswerFormat.of(Here).schema)) < 20_000


def test_an_answer_that_is_nested_too_deeply_is_refused_like_any_other() -> None:
    text = '{"name": "a", "children": [' * 400 + "]}" * 400
    with pytest.raises(ArgumentError):
        AnswerFormat.of(Tree).read(text)


@dataclasses.dataclass
class Picky:
    name: str

    def __post_init__(self) -> None:
        assert self.name != "nobody", "there has to be a name"
        {"ann": 1}[self.name]


@pytest.mark.parametrize(("name", "words"), [("nobody", "there has to be a name"), ("bob", "KeyError: 'bob'")])
def test_what_a_class_raises_for_its_values_is_what_is_wrong_with_the_answer(name: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        AnswerFormat.of(Picky).read(json.dumps({"name": name}))


def test_a_type_that_cannot_be_looked_up_is_refused_with_the_way_out() -> None:
    @attrs.frozen
    class Inner:
        a: int

    @attrs.frozen
    class Outer:
        inner: Inner

    with pytest.raises(TypeError, match=r"of Outer cannot be resolved: name 'Inner' .* top level of their module"):
        AnswerFormat.of(Outer)
    attrs.resolve_types(Outer, localns={"Inner": Inner})
    assert AnswerFormat.of(Outer).read('{"inner": {"a": 1}}') == Outer(Inner(1))


@pytest.mark.parametrize("hint", [dict[tuple[int, int], int], dict[Bug, int], list["Bug"], bytes])
def test_a_type_that_json_cannot_carry_is_refused(hint: Any) -> None:
    with pytest.raises(TypeError, match="cannot be"):
        AnswerFormat.of(hint)


# --- JSON schemas with references ------------------------------------------------------------------------------------

NODE: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "note": {"type": "string"}, "next": {"$ref": "#/$defs/node"}},
    "required": ["n"],
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, {"n": 1, "next": {"n": 2}}, {"n": 1, "next": {"n": "x"}}),
        (
            {"type": "array", "items": {"$ref": "#/$defs/node"}, "$defs": {"node": NODE}},
            [{"n": 1}],
            [{"n": 1, "next": {}}],
        ),
        ({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]}, [1, [2]], [1, ["x"]]),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"$ref": "#/prefixItems/0"}},
            [1, 2],
            [1, ""],
        ),
    ],
    ids=["at-the-top", "in-a-list", "to-the-whole", "to-a-part"],
)
def test_references_of_a_schema_that_is_no_object_are_followed(schema: Any, good: Any, bad: Any) -> None:
    answer = AnswerFormat.of(schema)
    for said, value in ((good, good), ({"value": good}, good)):
        assert answer.read(json.dumps(said)) == value
    assert problems({"value": good}, answer.schema, "it") == []
    assert problems({"value": bad}, answer.schema, "it") != []
    for said in (bad, {"value": bad}):
        with pytest.raises(ArgumentError):
            answer.read(json.dumps(said))


def test_a_schema_that_leads_to_itself_ends() -> None:
    loop = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}
    assert AnswerFormat.of(loop).read("1") == 1
    twice = {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "array", "items": {"$ref": "#"}}]}
    with pytest.raises(ArgumentError):
        AnswerFormat.of(twice).read("[" * 60 + "1" + "]" * 60)


def test_nulls_of_strict_mode_are_left_out_behind_references_and_in_alternatives() -> None:
    schema = {
        "type": "object",
        "properties": {"node": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["node"],
        "$defs": {"node": NODE},
    }
    answer = attrs.evolve(AnswerFormat.of(schema), native=strict(schema))
    said = {"node": {"n": 1, "note": None, "next": {"n": 2, "note": None, "next": None}}}
    assert answer.read(json.dumps(said)) == {"node": {"n": 1, "next": {"n": 2}}}


def test_a_schema_is_a_copy_with_what_json_makes_of_it() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": ("x", "y")}}}
    answer = AnswerFormat.of(schema)
    schema["properties"]["a"] = {"type": "integer"}
    assert answer.read('{"a": "y"}') == {"a": "y"}


def test_a_pydantic_model_that_is_no_object_comes_back_and_becomes_json() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed (extra `test-mcp`)")

    class Days(pydantic.RootModel[list[datetime.date]]):  # type: ignore[misc, name-defined]
        pass

    value = AnswerFormat.of(Days).read('["2024-02-29"]')
    assert value.root == [DAY]
    assert plain([value]) == [["2024-02-29"]]
