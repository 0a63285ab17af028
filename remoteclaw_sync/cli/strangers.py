"""waitress, taught that most of those who can reach a port have no business there.

It reads a request to its end before it asks the application, keeps what it has read, and lets only so many connect.
Here, nothing is kept of the body of somebody who has not been let in, and whoever connects when there are too many
takes the place of the one who has been idle for the longest time: so nobody who sends half a request, and waits, keeps
the owner out.
"""

from __future__ import annotations

import importlib
import resource
from collections.abc import Callable, Mapping
from typing import Any

MOST_CONNECTIONS = 1000
IDLE_SECONDS = 20
CLEANUP_SECONDS = 5
MAX_HEADERS = 64 << 10  # Other servers on this host may have left many cookies.
ROOM_TO_REFUSE = 1024  # A body that is a little too long gets the application's own answer.

Admits = Callable[[Mapping[str, str]], bool]


def create_server(application: Any, admits: Admits, *, host: str, port: int, threads: int, max_body: int) -> Any:
    """A server for this application. `admits` gets a request's headers, as WSGI names them, before its body is read."""
    # Only waitress.create_server() itself is documented; the classes are what its `channel_class` and `parser_class`
    # have been since 0.8.
    channels = importlib.import_module("waitress.channel")
    server = importlib.import_module("waitress").create_server(
        application,
        host=host,
        port=port,
        threads=threads,
        ident=None,
        asyncore_use_poll=True,  # select() knows no descriptor above 1023.
        connection_limit=2 * MOST_CONNECTIONS,
        channel_timeout=IDLE_SECONDS,
        cleanup_interval=CLEANUP_SECONDS,
        max_request_header_size=MAX_HEADERS,
        max_request_body_size=max_body + ROOM_TO_REFUSE,
        inbuf_overflow=max_body + 2 * ROOM_TO_REFUSE,  # In memory: a prompt has no business on the disk.
    )
    room = places()
    parser_class = _careful_parser(admits)

    class Channel(channels.HTTPChannel):  # type: ignore[misc, name-defined] # waitress has no types.
        """A connection, which has to leave when others want its place."""

        def __init__(self, server: Any, *args: Any, **options: Any) -> None:
            super().__init__(server, *args, **options)
            self.parser_class = parser_class
            idle = [one for one in server.active_channels.values() if one is not self and not one.requests]
            if len(server.active_channels) > room and idle:
                min(idle, key=lambda one: one.last_activity).will_close = True

    server.channel_class = Channel
    return server


def places() -> int:
    """How many may be connected: half of the descriptors that this process can have, the rest is for the agents."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, soft // 2)


def _careful_parser(admits: Admits) -> Any:
    parsers, buffers = importlib.import_module("waitress.parser"), importlib.import_module("waitress.buffers")

    class Nowhere(buffers.OverflowableBuffer):  # type: ignore[misc, name-defined]
        """Takes everything and keeps nothing."""

        def append(self, data: bytes) -> None:
            pass

    class Parser(parsers.HTTPRequestParser):  # type: ignore[misc, name-defined]
        """Asks who it is as soon as the headers are there."""

        def parse_header(self, header: bytes) -> None:
            super().parse_header(header)
            if self.body_rcv is not None and not admits({f"HTTP_{name}": text for name, text in self.headers.items()}):
                # Read to its end, because a client that is cut off while it sends never sees why.
                self.body_rcv.buf = Nowhere(0)

    return Parser
