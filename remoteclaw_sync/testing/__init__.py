"""For tests of your own code: fake agent CLIs, without an account, a network or a token.

    # conftest.py
    from remoteclaw_sync.testing import fake_cli  # noqa: F401

    def test_the_view_streams_the_answer(fake_cli, client):
        claude = fake_cli("claude", "Hello!")
        assert b"Hello!" in client.post("/ask", {"question": "Hi"}).getvalue()
        assert claude.calls[0].stdin == "Hi"

A fake CLI is a real program, found on PATH and run like the real one, so threads, pipes and parser are tested too.
`ReplayRuntime` replays a recorded run instead. Without pytest, use `write_fake_cli`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from .._values import as_tuple
from ..clis.fake import Fake, Script, ToolCall
from ..clis.registry import NAMES, facts_of, fake_of
from ..recording.replay import ReplayRuntime

if TYPE_CHECKING:
    import pytest

__all__ = ["FakeAnswer", "FakeCall", "FakeCli", "ReplayRuntime", "ToolCall", "fake_cli", "write_fake_cli"]


@attrs.frozen
class FakeAnswer:
    """What a fake CLI does when it runs.

    Args:
        text: the answer.
        tools: tools that it calls before it answers.
        error: makes the run fail, with this message.
        session_id: by default a fixed one, or the one that the run resumes.
        lines: these lines (JSON objects, or raw text) instead of all of the above.
        stderr: what it prints on stderr before anything else.
        exit_code: by default 1 with `error`, else 0.
        delay: seconds before each line.
        hang: after its lines (without the last one, if they are made from the above) it prints nothing and never exits.
    """

    text: str = ""
    tools: Sequence[ToolCall] = attrs.field(default=(), converter=as_tuple, kw_only=True)
    error: str | None = attrs.field(default=None, kw_only=True)
    session_id: str | None = attrs.field(default=None, kw_only=True)
    lines: Sequence[str | Mapping[str, Any]] | None = attrs.field(default=None, kw_only=True)
    stderr: str = attrs.field(default="", kw_only=True)
    exit_code: int | None = attrs.field(default=None, kw_only=True)
    delay: float = attrs.field(default=0.0, kw_only=True)
    hang: bool = attrs.field(default=False, kw_only=True)

    def _plan(self, fake: Fake) -> dict[str, Any]:
        """The answer as plain data, for the program."""
        session_id = self.session_id or fake.session_id
        if self.lines is not None:
            lines = [line if isinstance(line, str) else json.dumps(line) for line in self.lines]
        else:
            script = Script(text=self.text, tools=tuple(self.tools), error=self.error, session_id=session_id)
            made = list(fake.lines(script))
            lines = [json.dumps(line) for line in (made[:-1] if self.hang else made)]
        failed = self.error is not None
        return {
            "lines": lines,
            "stderr": self.stderr,
            "exit_code": int(failed) if self.exit_code is None else self.exit_code,
            "delay": self.delay,
            "hang": self.hang,
            "session_id": session_id if self.lines is None and self.session_id is None else None,
        }


@attrs.frozen
class FakeCall:
    """How a fake CLI was run: its arguments, its stdin (the prompt), its folder and its environment. A live session has
    one for each turn."""

    argv: tuple[str, ...]
    stdin: str
    cwd: str
    env: Mapping[str, str] = attrs.field(repr=False)


class FakeCli:
    """A program that acts as a CLI. `path` is where it is, `folder` is what to put on PATH."""

    def __init__(self, folder: str, path: str, calls: str) -> None:
        self.folder = folder
        self.path = path
        self._calls = calls

    @property
    def calls(self) -> list[FakeCall]:
        """Its runs so far, in the order in which they began."""
        found = []
        names = (name for name in os.listdir(self._calls) if name.endswith(".json"))
        for name in sorted(names, key=lambda name: int(name.removesuffix(".json"))):
            with open(os.path.join(self._calls, name), encoding="utf-8") as file:
                text = file.read()
            if not text:
                continue  # The file is still being written.
            call = json.loads(text)
            found.append(FakeCall(tuple(call["argv"]), call["stdin"], call["cwd"], call["env"]))
        return found


# Runs with `python -I -S`, which starts in a few milliseconds. A resumed run keeps its session id. A program that stays
# (a live session) answers each line that is a prompt, and confirms each line that is a request.
PROGRAM = """\
import json, os, re, sys, time

plans, calls, version, pattern, stays = json.loads({data!r})
resumed = re.search(pattern, "\\0".join(sys.argv[1:]))

def say(line):
    sys.stdout.buffer.write(line.encode("utf-8", "surrogateescape") + b"\\n")
    sys.stdout.buffer.flush()

def answer(stdin):
    number = 0
    while True:
        try:
            name = os.path.join(calls, "%d.json" % number)
            os.close(os.open(name, os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError:
            number += 1
    report = dict(argv=sys.argv[1:], stdin=stdin, cwd=os.getcwd(), env=dict(os.environ))
    with open(name + ".new", "w", encoding="utf-8") as file:
        json.dump(report, file)
    os.replace(name + ".new", name)
    plan = plans[min(number, len(plans) - 1)]
    sys.stderr.write(plan["stderr"])
    sys.stderr.flush()
    for line in plan["lines"]:
        time.sleep(plan["delay"])
        if resumed and plan["session_id"]:
            line = line.replace(plan["session_id"], resumed[1])
        say(line)
    while plan["hang"]:
        time.sleep(3600)
    return plan["exit_code"]

if "--version" in sys.argv[1:2]:
    print(version)
    sys.exit(0)
if not stays or stays not in sys.argv:
    sys.exit(answer(sys.stdin.buffer.read().decode("utf-8", "replace")))
for line in sys.stdin.buffer:
    message = json.loads(line)
    if message["type"] == "user":
        answer("".join(part.get("text", "") for part in message["message"]["content"]))
    elif message["type"] == "control_request":
        if message["request"]["subtype"] == "end_session":
            break
        response = dict(subtype="success", request_id=message["request_id"], response=dict())
        say(json.dumps(dict(type="control_response", response=response)))
"""


def write_fake_cli(
    folder: str | os.PathLike[str], provider: str, *answers: str | FakeAnswer, name: str | None = None
) -> FakeCli:
    """Write a program into `folder` that acts as that provider's CLI; the n-th run (or turn of a live session) gives
    the n-th answer, and the last answer is repeated.

    `name` is the program's name (by default the provider's command). Raises ValueError for an unknown provider.
    """
    if provider not in NAMES:
        raise ValueError(f"provider must be one of {', '.join(NAMES)}, not {provider!r}")
    fake = fake_of(provider)
    folder = os.path.abspath(folder)
    path = os.path.join(folder, name or provider)
    calls = f"{path}.calls"
    os.makedirs(calls)
    plans = [_as_answer(answer)._plan(fake) for answer in answers or (FakeAnswer("OK"),)]
    with open(f"{path}.py", "w", encoding="utf-8") as file:
        file.write(PROGRAM.format(data=json.dumps([plans, calls, facts_of(provider).tested, fake.resumed, fake.stays])))
    # Started through the shell: a #! line can hold neither a space nor more than 127 bytes.
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            textwrap.dedent(f"""\
                #!/bin/sh
                exec {shlex.quote(sys.executable)} -I -S {shlex.quote(path + ".py")} "$@"
                """)
        )
    os.chmod(path, 0o755)
    return FakeCli(folder, path, calls)


def _as_answer(answer: str | FakeAnswer) -> FakeAnswer:
    return FakeAnswer(answer) if isinstance(answer, str) else answer


def _fake_cli(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeCli]:
    """Puts fake CLIs on PATH for one test: `fake_cli("claude", "Hello!")`, then run your code."""
    folder = tmp_path / "fake-clis"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def put(provider: str = NAMES[0], *answers: str | FakeAnswer) -> FakeCli:
        return write_fake_cli(folder, provider, *answers)

    return put


try:
    import pytest
except ImportError:  # Everything else here works without it.
    pass
else:
    fake_cli = pytest.fixture(name="fake_cli")(_fake_cli)
