"""Random types with random values, from a seed: the same in every run."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import random
import string
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, Union

import attrs

Make = Callable[[], Any]
MAKE_ENUM: Any = enum.Enum


def generic(form: Any, *arguments: Any) -> Any:
    """form[arguments]"""
    return form[arguments if len(arguments) > 1 else arguments[0]]


class Kinds:
    """Makes types, each with a function that makes values of the type."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._names = 0

    def kind(self, depth: int = 3) -> tuple[Any, Make]:
        """A type, and a function that makes values of it."""
        simple = [self._plain, self._string_like, self._literal, self._enum, self._annotated]
        nested = [self._list, self._tuple, self._mapping, self._union, self._class, self._class, self._typed_dict]
        return self.random.choice(simple if depth == 0 else simple[:2] + nested)(depth - 1)

    def text(self) -> str:
        """Any text, including what breaks quoting."""
        letters = string.ascii_letters + string.digits + " \n\t\"'\\{}[]`<>/@é漢😀\u2028\x7f"
        return "".join(self.random.choices(letters, k=self.random.randrange(12)))

    def _name(self, start: str) -> str:
        self._names += 1
        return f"{start}{self._names}"

    def _plain(self, depth: int) -> tuple[Any, Make]:
        made: list[tuple[Any, Make]] = [
            (str, self.text),
            (int, lambda: self.random.choice([self.random.randint(-(2**40), 2**40), 10**30])),
            (float, lambda: self.random.choice([0.5, -1.25e-7, 3.0, self.random.uniform(-1e6, 1e6)])),
            (bool, lambda: self.random.random() < 0.5),
            (type(None), lambda: None),
        ]
        return self.random.choice(made)

    def _string_like(self, depth: int) -> tuple[Any, Make]:
        day = datetime.date(1970, 1, 1)
        made: list[tuple[Any, Make]] = [
            (datetime.date, lambda: day + datetime.timedelta(days=self.random.randrange(30_000))),
            (datetime.datetime, self._moment),
            (datetime.time, lambda: self._moment().time()),
            (uuid.UUID, lambda: uuid.UUID(int=self.random.getrandbits(128))),
            (Path, lambda: Path("/") / self.random.choice(["a", "b c", "é"])),
            (decimal.Decimal, lambda: decimal.Decimal(self.random.randrange(-(10**25), 10**25)) / 1000),
        ]
        return self.random.choice(made)

    def _moment(self) -> datetime.datetime:
        zone = self.random.choice([None, datetime.UTC, datetime.timezone(datetime.timedelta(hours=5, minutes=30))])
        return datetime.datetime.fromtimestamp(self.random.randrange(2**31), datetime.UTC).replace(tzinfo=zone)

    def _literal(self, depth: int) -> tuple[Any, Make]:
        choices = self.random.sample(["a", "", "two words", 1, 7, True, None], k=self.random.randint(1, 4))
        return generic(Literal, *choices), lambda: self.random.choice(choices)

    def _enum(self, depth: int) -> tuple[Any, Make]:
        values = self.random.sample(["red", "blue", 1, 2, "3"], k=self.random.randint(1, 4))
        made: Any = MAKE_ENUM(self._name("Choice"), {f"MEMBER_{number}": value for number, value in enumerate(values)})
        return made, lambda: self.random.choice(list(made))

    def _annotated(self, depth: int) -> tuple[Any, Make]:
        hint, make = self._plain(depth)
        return Annotated[hint, "what it means"], make

    def _list(self, depth: int) -> tuple[Any, Make]:
        hint, make = self.kind(depth)

        def many() -> list[Any]:
            return [make() for _ in range(self.random.randrange(4))]

        forms: list[tuple[Any, Make]] = [
            (generic(list, hint), many),
            (generic(Sequence, hint), many),
            (generic(tuple, hint, ...), lambda: tuple(many())),
        ]
        if hint in (str, int, uuid.UUID):
            forms.append((generic(set, hint), lambda: set(many())))
        return self.random.choice(forms)

    def _tuple(self, depth: int) -> tuple[Any, Make]:
        members = [self.kind(depth) for _ in range(self.random.randint(1, 3))]
        return generic(tuple, *(hint for hint, _ in members)), lambda: tuple(make() for _, make in members)

    def _mapping(self, depth: int) -> tuple[Any, Make]:
        hint, make = self.kind(depth)
        day = datetime.date(2024, 2, 28)
        keys: list[tuple[Any, Make]] = [
            (str, self.text),
            (int, lambda: self.random.randrange(100)),
            (datetime.date, lambda: day + datetime.timedelta(days=self.random.randrange(9))),
            (bool, lambda: self.random.random() < 0.5),
            self._enum(depth),
            self._literal(depth),
        ]
        key, make_key = self.random.choice(keys)
        form: Any = self.random.choice([dict, Mapping])
        return generic(form, key, hint), lambda: {make_key(): make() for _ in range(self.random.randrange(4))}

    def _union(self, depth: int) -> tuple[Any, Make]:
        """Members that can be told apart, if only by the closest fit: "2024-02-29" is a text as well as a date."""
        members: list[tuple[Any, Make]] = [self._plain(depth), (type(None), lambda: None)]
        if members[0][0] is type(None):
            members[0] = (str, self.text)
        if self.random.random() < 0.3:
            day = datetime.date(2024, 2, 28)
            dates = [(datetime.date, lambda: day), (datetime.datetime, self._moment), self._enum(depth)]
            members += self.random.sample(dates, k=self.random.randint(1, 3))
        if self.random.random() < 0.5:
            members.append(self._list(depth))
        if self.random.random() < 0.5:
            members += [self._class(depth), self._class(depth)]
        self.random.shuffle(members)
        return generic(Union, *(hint for hint, _ in members)), lambda: self.random.choice(members)[1]()

    def _class(self, depth: int) -> tuple[Any, Make]:
        fields = {self._name("field_"): self.kind(depth) for _ in range(self.random.randint(1, 3))}
        given = {name for name in fields if self.random.random() < 0.3}  # Fields with a default come last.
        ordered = [*(fields.keys() - given), *given]
        defaults = {name: fields[name][1]() for name in ordered if name in given}
        made = self.random.choice([self._dataclass, self._attrs_class, self._named_tuple])(fields, ordered, defaults)
        return made, lambda: made(**{name: make() for name, (_, make) in fields.items()})

    def _dataclass(self, fields: Any, ordered: list[str], defaults: dict[str, Any]) -> Any:
        def field(name: str) -> Any:
            if name not in defaults:
                return (name, fields[name][0])
            return (name, fields[name][0], dataclasses.field(default_factory=lambda: defaults[name]))

        return dataclasses.make_dataclass(self._name("Data"), [field(name) for name in ordered])

    def _attrs_class(self, fields: Any, ordered: list[str], defaults: dict[str, Any]) -> Any:
        made = {
            name: attrs.field(type=fields[name][0], **({"default": defaults[name]} if name in defaults else {}))
            for name in ordered
        }
        return attrs.make_class(self._name("Attrs"), made, frozen=True, hash=False)

    def _named_tuple(self, fields: Any, ordered: list[str], defaults: dict[str, Any]) -> Any:
        made: Any = NamedTuple(self._name("Named"), [(name, fields[name][0]) for name in ordered])  # type: ignore[misc]
        made._field_defaults.update(defaults)
        made.__new__.__defaults__ = tuple(defaults[name] for name in ordered if name in defaults)
        return made

    def _typed_dict(self, depth: int) -> tuple[Any, Make]:
        fields = {self._name("key_"): self.kind(depth) for _ in range(self.random.randint(1, 3))}
        optional = {name for name in fields if self.random.random() < 0.4}
        hints = {name: NotRequired[hint] if name in optional else hint for name, (hint, _) in fields.items()}
        made = TypedDict(self._name("Typed"), hints)  # type: ignore[misc]

        def make() -> dict[str, Any]:
            there = [name for name in fields if name not in optional or self.random.random() < 0.5]
            return {name: fields[name][1]() for name in there}

        return made, make


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down: 1 is not True, and a tuple is not a list."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict):
        return all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return all(same(*pair) for pair in zip(one, other, strict=True))
    return True
