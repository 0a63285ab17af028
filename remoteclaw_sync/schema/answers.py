"""The form of an agent's answer: what the model is told about it, and how its text is read."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import attrs

from .build import Schema, schema_of
from .convert import ArgumentError, convert
from .validate import copy_of_schema, problems, without_nulls

ROOT = "answer"  # The answer's name in messages.
WRAPPER = "value"  # The field that holds an answer that is not an object: the APIs require one at the top.

INSTRUCTION = (
    "{prompt}\n\n"
    "Your final answer must be one JSON value and nothing else: no explanation, no code fence. "
    "It has to fit this JSON schema:\n{schema}"
)
REPAIR = (
    "Your answer cannot be used:\n{problem}\n\n"
    "Give the whole answer again, corrected, in the form that was asked for, and nothing else."
)

FENCED = re.compile(r"```[\w-]*[ \t]*\r?\n(.*?)```", re.DOTALL)
OPENING = re.compile(r"[{\[]")
DEFINITIONS = ("$defs", "definitions")
VALUES = ("enum", "const", "default", "examples")  # They hold plain values, which are not schemas.
MAX_ATTEMPTS = 2_000  # Braces tried in a text that is not JSON as a whole.
QUOTED = 200  # Characters of an answer that a message quotes.


@attrs.frozen
class AnswerFormat:
    """The required form of an answer.

    Args:
        hint: the type of the value; None if there is only a schema.
        bare: the schema of the value.
        schema: the schema of the answer, which is always an object.
        wrapped: whether the value is a field of that object.
        native: the schema in the form that the CLI accepts; None if the model is told in words.
    """

    hint: Any
    bare: Schema
    schema: Schema
    wrapped: bool
    native: Schema | None = None

    @classmethod
    def of(cls, output_type: Any) -> AnswerFormat:
        """The format of answers of this type, or of this JSON schema. Raises TypeError or ValueError."""
        if isinstance(output_type, AnswerFormat):
            return output_type
        if isinstance(output_type, Mapping):
            schema = copy_of_schema(output_type)
            return cls(None, schema, *_with_object_at_the_top(schema))
        if output_type is None or isinstance(output_type, str):
            raise TypeError(f"output_type must be a type or a JSON schema, not {output_type!r}")
        try:
            schema = _closed(schema_of(output_type))
        except TypeError as error:
            raise TypeError(f"output_type: {error}") from None
        return cls(output_type, schema, *_with_object_at_the_top(schema))

    def same_as(self, other: AnswerFormat | None) -> bool:
        """Whether both ask for the same."""
        return other is not None and (self.hint, self.schema) == (other.hint, other.schema)

    def asked_for(self, prompt: str) -> str:
        """The prompt, with the form of the answer in words."""
        return INSTRUCTION.format(prompt=prompt, schema=json.dumps(self.schema, ensure_ascii=False))

    def read(self, *texts: str) -> Any:
        """The value in the first of these texts that has one. Raises ArgumentError, which says what is wrong."""
        said = next((text for text in texts if text.strip()), None)
        if said is None:
            raise ArgumentError(f"{ROOT}: there is none")
        if self.hint is str:
            return self._string_in(said)
        for text in texts:
            found = _json_in(text)
            if found:
                return self.checked(self._meant(found))
        raise ArgumentError(f"{ROOT}: expected JSON, got {_quoted(said)}")

    def _string_in(self, said: str) -> Any:
        """Any text is a string, even without quotes. Code in it is a part of it, unless it is in the required form."""
        for candidate in (said, *FENCED.findall(said)[-1:]):
            with contextlib.suppress(ValueError, RecursionError):
                found = _parsed(candidate)
                if candidate is said or (isinstance(found, dict) and WRAPPER in found):
                    return self.checked(found)
        return said

    def _meant(self, found: list[Any]) -> Any:
        """The last value in a text, but an object of the right kind takes precedence over a later "[1]"."""
        objects = [value for value in found if isinstance(value, dict) and (not self.wrapped or WRAPPER in value)]
        return (objects or found)[-1]

    def checked(self, found: Any) -> Any:
        """The value, given the JSON of the answer. Raises ArgumentError."""
        try:
            if not (self.wrapped and isinstance(found, dict) and set(found) == {WRAPPER}):
                return self._value(found)  # Many models leave out the wrapper.
            try:
                return self._value(found[WRAPPER])
            except ArgumentError:
                with contextlib.suppress(ArgumentError):  # The value itself may be an object with such a field.
                    return self._value(found)
                raise
        except RecursionError:
            raise ArgumentError(f"{ROOT}: it is nested too deeply") from None

    def _value(self, found: Any) -> Any:
        if self.hint is not None:
            try:
                return convert(found, self.hint, ROOT)
            except ArgumentError as error:
                # The schema reports everything that is wrong, the conversion only the first problem.
                wrong = problems(found, self.bare, ROOT) or [str(error)]
        else:
            found = without_nulls(found, self.bare) if self.native is not None else found
            wrong = problems(found, self.bare, ROOT)
            if not wrong:
                return found
        raise ArgumentError("\n".join(wrong))


def _with_object_at_the_top(schema: Schema) -> tuple[Schema, bool]:
    is_object = schema.get("type") == "object" and not {"anyOf", "oneOf", "enum", "$ref"} & schema.keys()
    if is_object:
        return schema, False
    moved = _moved(schema)
    definitions: Schema = {name: moved.pop(name) for name in DEFINITIONS if name in moved}
    fields = {"type": "object", "properties": {WRAPPER: moved}, "required": [WRAPPER], "additionalProperties": False}
    return {**fields, **definitions}, True


def _moved(part: Any) -> Any:
    """The schema with its references adjusted to its new place: all but the definitions becomes a field's schema."""
    if isinstance(part, list):
        return [_moved(item) for item in part]
    if not isinstance(part, dict):
        return part
    moved = {name: item if name in VALUES else _moved(item) for name, item in part.items()}
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.split("/")[1:2] not in [[name] for name in DEFINITIONS]:
        moved["$ref"] = f"#/properties/{WRAPPER}{reference[1:]}"
    return moved


def _closed(part: Any) -> Any:
    """The schema of a type, with objects that allow no further fields."""
    if isinstance(part, list):
        return [_closed(item) for item in part]
    if not isinstance(part, dict):
        return part
    closed = {name: _closed(item) for name, item in part.items()}
    if isinstance(part.get("properties"), dict) and part.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def _json_in(text: str) -> list[Any]:
    """The JSON value that a text consists of, or that is in its last block of code, or else all JSON values in it."""
    for candidate in (text, *reversed(FENCED.findall(text))):
        try:
            return [_parsed(candidate)]
        except (ValueError, RecursionError):
            continue
    decoder = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
    values: list[Any] = []
    place = 0
    for _ in range(MAX_ATTEMPTS):
        found = OPENING.search(text, place)
        if found is None:
            break
        try:
            value, place = decoder.raw_decode(text, found.start())
            values.append(value)
        except (ValueError, RecursionError):
            place = found.start() + 1
    return values


def _parsed(text: str) -> Any:
    return json.loads(text, parse_constant=_no_constant, parse_float=_finite)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _no_constant(digits)


def _quoted(text: str) -> str:
    short = text.strip()
    return repr(short if len(short) <= QUOTED else f"{short[:QUOTED]}...")
