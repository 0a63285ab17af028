"""An agent CLI that needs no account: speaks Claude Code's stream-json, thinks, lists the folder it works in, answers.

It is a separate program, started like a real CLI, that knows nothing about the rest of this package. It stores no
files: all it knows about an earlier turn is the session id. With `--permission-prompt-tool=stdio` it stays for many
turns and speaks the control protocol: it asks for permission, asks questions, can be interrupted, and takes further
words.

Words in a prompt that make it do something other than look around:

    run a command     runs a shell command, with permission (in the mode "bypass" without)
    edit, write       writes or changes demo-note.txt, with permission (in "accept-edits" and "bypass" without)
    ask me            asks the user a question
    markdown          answers with everything that Markdown has
    demo:wait         as the whole prompt: waits for further words, or an interrupt
    demo:hang         as the whole prompt: says nothing more
    demo:fail         as the whole prompt: the turn fails
    demo:crash        as the whole prompt: the process ends
"""

from __future__ import annotations

import json
import os
import sys
import threading
import uuid

from .client import Client, words_of
from .turn import Turn

SESSION_PREFIX = "de300000-"
PACE_VARIABLE = "REMOTECLAW_DEMO_PACE"
DEFAULT_PACE = 0.03  # Seconds between words.


def one_turn(client: Client, structured: bool) -> int:
    """One turn, whose prompt is everything on stdin, as text or as a JSON line."""
    text = sys.stdin.buffer.read().decode(errors="replace")
    client.turns += 1
    return Turn(client, words_of(json.loads(text)) if structured else text).work()


def many_turns(client: Client) -> int:
    """Turns one after the other, until the client is gone."""
    threading.Thread(target=client.listen, daemon=True).start()
    while (found := client.next_prompt()) is not None:
        name, prompt = found
        Turn(client, prompt, name).work()
    return 0


def main(arguments: list[str]) -> int:
    """Takes the arguments of `claude -p`; flags that mean nothing here are ignored."""
    if "--version" in arguments:
        print("0.0.0 (demo)")
        return 0
    options = dict(argument.partition("=")[::2] for argument in arguments)
    resumed = options.get("--resume")
    pace = float(os.environ.get(PACE_VARIABLE, DEFAULT_PACE))
    client = Client(resumed or SESSION_PREFIX + str(uuid.uuid4())[len(SESSION_PREFIX) :], options, pace)
    if resumed is not None and not resumed.startswith(SESSION_PREFIX):
        message = f"No conversation found with session ID: {resumed}"
        Turn(client, "").result(subtype="error_during_execution", is_error=True, errors=[message], num_turns=0)
        return 1
    return many_turns(client) if client.stays else one_turn(client, "--input-format" in options)


def run() -> None:
    """The program."""
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # At once: otherwise the interpreter would wait for the thread that reads stdin.
