"""Random types and values: from a value to JSON, according to the schema, and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from remoteclaw_sync.clis.claude.answer_schema import accepted
from remoteclaw_sync.clis.codex.strict_schema import strict
from remoteclaw_sync.schema.answers import AnswerFormat
from remoteclaw_sync.schema.plain import plain
from remoteclaw_sync.schema.validate import check_schema, problems
from tests.schema.kinds import Kinds, same

EXAMPLES = 1_000
CHUNK = 100


def filled(value: Any, schema: Any) -> Any:
    """The answer of a model that has to fill in every field: null for those that were left out."""
    for member in schema.get("anyOf", []):
        attempt = filled(value, member)
        if not problems(attempt, member, "it"):
            return attempt
    if isinstance(value, list):
        return [filled(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict) or not set(value) <= set(schema.get("properties", {})):
        return value
    return {name: filled(value.get(name), part) for name, part in schema["properties"].items()}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, EXAMPLES, CHUNK))
def test_a_value_survives_schema_json_check_and_the_way_back(first: int) -> None:
    for seed in range(first, first + CHUNK):
        kinds = Kinds(seed)
        hint, make = kinds.kind()
        answer = AnswerFormat.of(hint)
        check_schema(answer.schema)
        for _ in range(3):
            value = make()
            found = json.loads(json.dumps(plain(value)))
            said = {"value": found} if answer.wrapped else found
            assert problems(said, answer.schema, "it") == [], (seed, hint)
            assert problems(said, accepted(answer.schema), "it") == [], (seed, hint)
            written = json.dumps(said, ensure_ascii=seed % 2 == 0, indent=seed % 3 or None)
            assert same(answer.read(written), value), (seed, hint)
            assert same(answer.read(f"Here it is:\n```json\n{written}\n```\nAnything else?"), value), (seed, hint)


@pytest.mark.slow
def test_a_value_in_the_form_of_strict_mode_is_read_as_the_same_value() -> None:
    with_a_form = 0
    for seed in range(300):
        hint, make = Kinds(seed).kind()
        answer = AnswerFormat.of(hint)
        form = strict(answer.schema)
        if form is None:
            continue
        with_a_form += 1
        check_schema(form)
        value = make()
        found = json.loads(json.dumps(plain(value)))
        said = {"value": found} if answer.wrapped else found
        assert problems(filled(said, form), form, "it") == [], (seed, hint)
        read = answer.read(json.dumps(filled(said, form)))
        # (If a key may be left out or be null, strict mode cannot tell which of the two it is.)
        assert filled(said, form) != said or same(read, value), (seed, hint)
    assert with_a_form > 100
