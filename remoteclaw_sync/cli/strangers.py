"""waitress, made safe against clients that can reach the port but have no business there.

By default waitress reads a whole request before it calls the application, keeps what it has read, and limits the number
of connections. Here, the body of a request without a valid session is discarded. When there are too many connections,
a new one replaces the one that has been idle the longest. So clients that send half a request and wait cannot lock the
owner out.
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
ROOM_TO_REFUSE = 1024  # If a body is just a little too long, the application itself refuses it.

Admits = Callable[[Mapping[str, str]], bool]


def create_server(application: Any, admits: Admits, *, host: str, port: int, threads: int, max_body: int) -> Any:
    """A server for this application. `admits` gets a request's headers, as WSGI names them, before its body is read."""
    # Only waitress.create_server() itself is documented; the classes are those that have been its `channel_class` and
    # `parser_class` since 0.8.
    channels = importlib.import_module("waitress.channel")
    server = importlib.import_module("waitress").create_server(
        application,
        host=host,
        port=port,
        threads=threads,
        ident=None,
        asyncore_use_poll=True,  # select() cannot handle descriptors above 1023.
        connection_limit=2 * MOST_CONNECTIONS,
        channel_timeout=IDLE_SECONDS,
        cleanup_interval=CLEANUP_SECONDS,
        max_request_header_size=MAX_HEADERS,
        max_request_body_size=max_body + ROOM_TO_REFUSE,
        inbuf_overflow=max_body + 2 * ROOM_TO_REFUSE,  # Keeps bodies in memory: a prompt must not be written to disk.
    )
    room = places()
    parser_class = _careful_parser(admits)

    class Channel(channels.HTTPChannel):  # type: ignore[misc, name-defined] # waitress has no types.
        """A connection that must make room when there are too many."""

        def __init__(self, server: Any, *args: Any, **options: Any) -> None:
            super().__init__(server, *args, **options)
            self.parser_class = parser_class
            idle = [one for one in server.active_channels.values() if one is not self and not one.requests]
            if len(server.active_channels) > room and idle:
                min(idle, key=lambda one: one.last_activity).will_close = True

    server.channel_class = Channel
    return server


def places() -> int:
    """How many connections to allow: half of this process's descriptors. The rest is for the agents."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, soft // 2)


def _careful_parser(admits: Admits) -> Any:
    parsers, buffers = importlib.import_module("waitress.parser"), importlib.import_module("waitress.buffers")

    class Nowhere(buffers.OverflowableBuffer):  # type: ignore[misc, name-defined]
        """Accepts everything and keeps nothing."""

        def append(self, data: bytes) -> None:
            pass

    class Parser(parsers.HTTPRequestParser):  # type: ignore[misc, name-defined]
        """Checks the session as soon as the headers have arrived."""

        def parse_header(self, header: bytes) -> None:
            super().parse_header(header)
            if self.body_rcv is not None and not admits({f"HTTP_{name}": text for name, text in self.headers.items()}):
                # It is still read to its end, because a client that is cut off while sending never sees the reason.
                self.body_rcv.buf = Nowhere(0)

    return Parser
