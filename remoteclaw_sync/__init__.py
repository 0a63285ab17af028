"""Run AI agent CLIs (Claude Code, Gemini CLI, Codex, OpenCode) as subprocesses; one blocking event stream.

    from remoteclaw_sync import create_cli_runtime

    for event in create_cli_runtime("claude").execute("Why is the build red?"):
        if event.type == "text":
            print(event.text, end="", flush=True)

Every run yields text, thinking, tool_use, tool_result and error events, and ends with exactly one done.

Start here:
    create_cli_runtime      a runtime by name: "claude", "gemini", "codex", "opencode", "demo"
    CLIRuntimeBase          its three verbs: execute() (a generator), start() (a handle), run() (the result)
    AgentExecuteParams      all that can be asked of a run
    AgentEvent              what a run yields: AgentTextEvent, AgentToolUseEvent, ..., AgentDoneEvent
    AgentRunResult          how it ended
    McpServerConfig, tool   tools for the agent: MCP servers, Python functions
    ChannelBridge           from a chat message to an answer
    ReplayRuntime           a recorded run, played again; see also remoteclaw_sync.testing
    remoteclaw_sync.web     streams for Flask, Django and other WSGI applications

Calls block until they have what they give back. Bad arguments raise ValueError or TypeError at once; what goes wrong
in a run is an error event, and an AgentRunError from run() alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import AgentRunError, RemoteClawError, UnknownProviderError
from .types import (
    AgentDeliveryResult,
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentRunResult,
    AgentRuntime,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    BridgeCallbacks,
    ChannelMessage,
    McpMessageTarget,
    McpServerConfig,
    McpSideEffects,
    PermissionDenial,
    ReplyPayload,
    event_from_dict,
)

if TYPE_CHECKING:
    from ._version import __version__ as __version__
    from .bridge import ChannelBridge as ChannelBridge
    from .bridge import RetryPolicy as RetryPolicy
    from .bridge import Route as Route
    from .classify import classify_error as classify_error
    from .delivery import split_text as split_text
    from .factory import SUPPORTED_PROVIDERS as SUPPORTED_PROVIDERS
    from .factory import create_cli_runtime as create_cli_runtime
    from .gateway.server import Gateway as Gateway
    from .gateway.side_effects import CronJob as CronJob
    from .gateway.side_effects import GatewayTools as GatewayTools
    from .gateway.side_effects import OutgoingMessage as OutgoingMessage
    from .gateway.tools import tool as tool
    from .record import Recording as Recording
    from .replay import ReplayRuntime as ReplayRuntime
    from .runtimes.agent_run import AgentRun as AgentRun
    from .runtimes.base import CLIRuntimeBase as CLIRuntimeBase
    from .runtimes.claude import ClaudeCliRuntime as ClaudeCliRuntime
    from .runtimes.codex import CodexCliRuntime as CodexCliRuntime
    from .runtimes.gemini import GeminiCliRuntime as GeminiCliRuntime
    from .runtimes.opencode import OpenCodeCliRuntime as OpenCodeCliRuntime
    from .sessions import Conversation as Conversation
    from .sessions import SessionMap as SessionMap

# Imported when first asked for, so that `import remoteclaw_sync` stays cheap.
_LAZY = {
    "AgentRun": ".runtimes.agent_run",
    "CLIRuntimeBase": ".runtimes.base",
    "ChannelBridge": ".bridge",
    "ClaudeCliRuntime": ".runtimes.claude",
    "CodexCliRuntime": ".runtimes.codex",
    "Conversation": ".sessions",
    "CronJob": ".gateway.side_effects",
    "Gateway": ".gateway.server",
    "GatewayTools": ".gateway.side_effects",
    "GeminiCliRuntime": ".runtimes.gemini",
    "OpenCodeCliRuntime": ".runtimes.opencode",
    "OutgoingMessage": ".gateway.side_effects",
    "Recording": ".record",
    "ReplayRuntime": ".replay",
    "RetryPolicy": ".bridge",
    "Route": ".bridge",
    "SUPPORTED_PROVIDERS": ".factory",
    "SessionMap": ".sessions",
    "__version__": "._version",
    "classify_error": ".classify",
    "create_cli_runtime": ".factory",
    "split_text": ".delivery",
    "tool": ".gateway.tools",
}

__all__ = [
    "AgentDeliveryResult",
    "AgentDoneEvent",
    "AgentErrorEvent",
    "AgentEvent",
    "AgentExecuteParams",
    "AgentRun",
    "AgentRunError",
    "AgentRunResult",
    "AgentRuntime",
    "AgentTextEvent",
    "AgentThinkingEvent",
    "AgentToolResultEvent",
    "AgentToolUseEvent",
    "AgentUsage",
    "BridgeCallbacks",
    "CLIRuntimeBase",
    "ChannelBridge",
    "ChannelMessage",
    "ClaudeCliRuntime",
    "CodexCliRuntime",
    "Conversation",
    "CronJob",
    "Gateway",
    "GatewayTools",
    "GeminiCliRuntime",
    "McpMessageTarget",
    "McpServerConfig",
    "McpSideEffects",
    "OpenCodeCliRuntime",
    "OutgoingMessage",
    "PermissionDenial",
    "Recording",
    "RemoteClawError",
    "ReplayRuntime",
    "ReplyPayload",
    "RetryPolicy",
    "Route",
    "SUPPORTED_PROVIDERS",
    "SessionMap",
    "UnknownProviderError",
    "__version__",
    "classify_error",
    "create_cli_runtime",
    "event_from_dict",
    "split_text",
    "tool",
]


def __getattr__(name: str) -> Any:
    module_name = _LAZY.get(name)
    if module_name is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(module_name, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
