"""What runtimes share whose live sessions can have a process in common."""

from __future__ import annotations

import abc
import json
import os
from collections.abc import Hashable
from typing import ClassVar

from ..engine.channel import Channel
from ..engine.shared_process import SharedProcesses
from ..engine.switchboard import Switchboard
from ..engine.transport import Transport
from ..process.launch import Launch, Setup
from ..runtime import MARKER_PREFIX
from ..types import AgentExecuteParams
from .dialect import DialectRuntime


class SharingRuntime(DialectRuntime):
    """A runtime of a CLI whose process can serve several sessions."""

    # Whether sessions that share a process may have different MCP servers.
    keeps_servers_apart: ClassVar[bool] = False

    @abc.abstractmethod
    def new_switchboard(self) -> Switchboard:
        """A switchboard for one process: it passes on what the process says to the sessions that share it."""

    def process_key(self, launch: Launch) -> Hashable:
        """Sessions share a process if they have this in common: command, arguments and environment."""
        env = {name: value for name, value in launch.env.items() if name not in ("PWD", launch.marker)}
        return launch.argv, frozenset(env.items())

    def shared_by(self, params: AgentExecuteParams) -> Hashable | None:
        """What `process_key` will be, as far as that is known before the launch."""
        if not self.is_live or not self.share_process or (params.tools and not self.keeps_servers_apart):
            return None  # Python functions are a server with its own token.
        agent = self.private_copy()
        agent.new_dialect(params)
        cwd = os.path.abspath(params.working_directory or _current_folder())
        launch = Launch(
            argv=(*agent.command, *agent.build_args(params)),
            env=agent._environment(params, cwd, MARKER_PREFIX),
            cwd=cwd,
            stdin=b"",
            marker=MARKER_PREFIX,
            linger=agent.linger,
            max_pending_bytes=agent.max_pending_bytes,
        )
        servers = {} if self.keeps_servers_apart else params.mcp_servers
        described = {name: server.to_dict() for name, server in servers.items()}
        return agent.process_key(launch), json.dumps(described, sort_keys=True)

    def connect(self, setup: Setup) -> Transport:
        if not self.is_live:
            return super().connect(setup)
        processes = self.processes if self.share_process else SharedProcesses()

        def join(channel: Channel, launch: Launch) -> None:
            processes.join(channel, launch, self.process_key(launch), self.new_switchboard)

        return Channel(setup, join)


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.sep
