"""Agents whose processes stay between messages, and the tools of their conversations."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from typing import Any

import attrs

from ..engine.agent_run import AgentRun
from ..engine.turn import Turn
from ..errors import SessionBusyError
from ..pool import SessionPool
from ..runtime import CLIRuntimeBase
from ..session import AgentSession
from ..tool_server.messaging import GatewayTools
from ..tool_server.tools import Tool, ToolLike, build_tools
from ..types import AgentEvent, AgentExecuteParams, ChannelMessage, LeaseFields, RunFields
from .conversation import Conversation

MOST_TOOLBOXES = 1000  # Conversations; beyond that, tools are made again, which takes a new process.


class Toolbox:
    """The tools of one conversation. It has its own copy of the gateway tools, with its own record."""

    def __init__(self, tools: Iterable[ToolLike], message: ChannelMessage) -> None:
        self.tools = [_bound(one, message) for one in tools]
        self.sources = [one for one in self.tools if isinstance(one, GatewayTools)]
        self.calls_made = 0

    def sent_here(self) -> list[str]:
        """What the agent itself has sent to this conversation."""
        return [text for source in self.sources for text in source.texts_sent_here()]

    def counted(self, call_timeout: float | None) -> tuple[Tool, ...]:
        """The tools for a process that stays: calls are counted here, and each has a time limit."""
        longest = threading.TIMEOUT_MAX if call_timeout is None else call_timeout
        return tuple(
            attrs.evolve(one, function=self._counting(one), timeout=longest if one.timeout is None else one.timeout)
            for one in build_tools(self.tools)
        )

    def _counting(self, one: Tool) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            self.calls_made += 1
            return one._function(**arguments)

        return call


def _bound(one: ToolLike, message: ChannelMessage) -> ToolLike:
    if not isinstance(one, GatewayTools):
        return one
    return one.bind(provider=message.provider, to=message.channel_id or None, thread_id=message.thread_id)


class LeasedRun(AgentRun):
    """A turn of a session; closing it returns the session to its pool."""

    def __init__(self, events: Generator[AgentEvent, None, None], turn: Turn, session: AgentSession) -> None:
        super().__init__(events, turn)
        self._session = session

    def close(self) -> None:
        """End the turn and return the session."""
        try:
            super().close()
        finally:
            self._session.close()


class WarmAgents:
    """The conversations of a bridge that stay warm."""

    def __init__(self, runtime: CLIRuntimeBase, count: int, tools: Iterable[ToolLike], call_timeout: float | None):
        self._pool = SessionPool(runtime, max_warm=count)
        self._tools = tuple(tools)
        self._call_timeout = call_timeout
        self._lock = threading.Lock()
        self._toolboxes: OrderedDict[Conversation, tuple[Toolbox, tuple[Tool, ...]]] = OrderedDict()

    def toolbox(self, conversation: Conversation, message: ChannelMessage) -> tuple[Toolbox, tuple[Tool, ...]]:
        """The same objects each time: a process knows only the tools it was started with."""
        with self._lock:
            found = self._toolboxes.pop(conversation, None)
            if found is None:
                box = Toolbox(self._tools, message)
                found = box, box.counted(self._call_timeout)
            self._toolboxes[conversation] = found
            while len(self._toolboxes) > MOST_TOOLBOXES:
                self._toolboxes.popitem(last=False)
            return found

    def execute(self, params: AgentExecuteParams) -> LeasedRun:
        """A turn in the session that the params name, or in a new one. Raises if an argument is wrong."""
        fields: LeaseFields = {
            "mcp_servers": params.mcp_servers,
            "working_directory": params.working_directory,
            "env": params.env,
            "system_prompt": params.system_prompt,
            "model": params.model,
            "permission_mode": params.permission_mode,
            "extra_args": params.extra_args,
            "tools": params.tools,
            "approve": params.approve,
        }
        of_turn: RunFields = {
            "deadline": params.deadline,
            "abort_signal": params.abort_signal,
            "max_turns": params.max_turns,
            "max_tool_calls": params.max_tool_calls,
            "max_tokens": params.max_tokens,
            "max_cost_usd": params.max_cost_usd,
            "budget": params.budget,
        }
        session = self._pool.session(params.session_id, **fields)
        try:
            turn = session.new_turn(params.prompt, of_turn)
            return LeasedRun(turn.events(), turn, session)
        except BaseException:
            session.close()
            raise

    def let_go(self, session_id: str) -> None:
        """Called when nobody continues this session, or another machine does."""
        try:
            self._pool.cool(session_id)
        except SessionBusyError:
            pass  # A turn is running on it.

    def close(self) -> None:
        """End the processes and the turns that run on them."""
        self._pool.close()
