"""`help`: the documentation pages, which are shipped next to the code they describe."""

from __future__ import annotations

import argparse
from importlib.resources import files

from ..clis.registry import all_facts

PAGE = "README.md"
# Topic -> the folder of its page, and what the page covers.
TOPICS = {
    "runs": ("engine", "how a run ends, threads, limits, error codes"),
    "clis": ("clis", "the CLIs side by side, and how to add one"),
    **{cli.name: (f"clis/{cli.name}", f"{cli.title}: what each option becomes, known limits") for cli in all_facts()},
    "acp": ("clis/acp", "any agent that speaks the Agent Client Protocol"),
    "answers": ("schema", "answers of a type: what types there are, how they are asked for and checked"),
    "mcp": ("config_files", "MCP servers, and how config files are borrowed"),
    "chat": ("chat", "from a chat message to an answer, with sessions"),
    "portable": ("portable", "sessions that move between machines, and stores for them"),
    "web": ("web", "streams for Flask, Django and WSGI, reconnects, the chat page"),
    "cluster": ("cluster", "runs, sessions and limits on several machines, with Celery, RQ or Dramatiq"),
    "testing": ("testing", "fake CLIs, recordings, replay"),
    "command-line": ("cli", "the commands and their exit codes"),
}


def command(options: argparse.Namespace) -> int:
    """Print one page, or the list of pages."""
    if options.topic is None:
        width = max(map(len, TOPICS))
        for topic, (_, covers) in TOPICS.items():
            print(f"{topic:<{width}}  {covers}")
        return 0
    print(page(options.topic), end="")
    return 0


def page(topic: str) -> str:
    """The page of a topic, as Markdown."""
    return files("remoteclaw_sync").joinpath(TOPICS[topic][0], PAGE).read_text(encoding="utf-8")
