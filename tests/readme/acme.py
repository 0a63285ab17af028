"""The CLI that README's example of a fifth runtime runs."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def emit(kind: str, **fields: Any) -> None:
    print(json.dumps({"kind": kind, **fields}), flush=True)


def main() -> int:
    """One run: a tool call, then an answer; the prompt `break` fails instead."""
    prompt = sys.stdin.read()
    assert sys.argv[1:3] == ["chat", "--json"], sys.argv
    assert os.environ["ACME_NO_UPDATE"] == "1"
    emit("news", text="a line that the runtime does not know")
    if prompt == "break":
        emit("trouble", text="out of credit", code="NO_CREDIT")
        return 1
    emit("call", tool="shell", id="c1", input={"command": "ls"})
    emit("returned", id="c1", output="a.py")
    for word in (*prompt.split(), *sys.argv[3:]):
        emit("say", words=word + " ")
    emit("bye", session="s-7", tokens_in=3, tokens_out=5)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
