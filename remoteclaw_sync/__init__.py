"""Run AI agent CLIs (Claude Code, Gemini CLI, Codex, OpenCode) as subprocesses, with one blocking event stream.

    from remoteclaw_sync import create_cli_runtime

    for event in create_cli_runtime("claude").execute("Why is the build red?"):
        if event.type == "text":
            print(event.text, end="", flush=True)

Every run yields text, thinking, tool_use, tool_result and error events, and ends with exactly one done event.

Start here:
    create_cli_runtime      makes a runtime by name: "claude", "gemini", "codex", "opencode", "demo"
    CLIRuntimeBase          execute() (a generator), start() (a handle), run() (the result), ask() (a typed answer)
    AgentSession            the same with a process that stays, from open_session(): many turns, approvals
    SessionPool             many conversations on a few such processes
    AgentExecuteParams      everything that can be asked of a run
    AgentEvent              what a run yields: AgentTextEvent, AgentToolUseEvent, ..., AgentDoneEvent
    AgentRunResult          how a run ended
    McpServerConfig, tool   tools for the agent: MCP servers, Python functions
    ChannelBridge           from a chat message to an answer
    SessionStore            keeps sessions for several machines; see export_session() and import_session()
    ReplayRuntime           replays a recorded run; see also remoteclaw_sync.testing
    remoteclaw_sync.web     streams for Flask, Django and other WSGI applications

Calls block until they have their result. Bad arguments raise ValueError or TypeError at once. A failure during a run is
an error event; only run() and ask() turn it into an AgentRunError.

Public are the names listed in `__all__` here, in remoteclaw_sync.web, in remoteclaw_sync.cluster, in
remoteclaw_sync.cluster.celery and in remoteclaw_sync.testing. Every other module is private, whatever its name: it may
change or disappear with any release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import (
    AgentOutputError,
    AgentRunError,
    ErrorCode,
    RemoteClawError,
    RunSetupError,
    SessionBusyError,
    SessionTransferError,
    StaleSessionError,
    UnknownProviderError,
    UnsupportedOperationError,
)
from .limits import Budget, BudgetSpent, Price
from .types import (
    AgentDeliveryResult,
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentPermissionEvent,
    AgentRunResult,
    AgentRuntime,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    Allow,
    AskFields,
    BridgeCallbacks,
    ChannelMessage,
    Deny,
    ErrorSubtype,
    LeaseFields,
    McpMessageTarget,
    McpServerConfig,
    McpSideEffects,
    PermissionDenial,
    PermissionRequest,
    ReplyButton,
    ReplyPayload,
    RunFields,
    SessionFields,
    event_from_dict,
)

if TYPE_CHECKING:
    from ._version import __version__ as __version__
    from .chat.bridge import ChannelBridge as ChannelBridge
    from .chat.bridge import RetryPolicy as RetryPolicy
    from .chat.bridge import Route as Route
    from .chat.delivery import split_text as split_text
    from .chat.questions import AskInChat as AskInChat
    from .chat.questions import ChatQuestion as ChatQuestion
    from .chat.sessions import Conversation as Conversation
    from .chat.sessions import SessionMap as SessionMap
    from .clis.acp.runtime import AcpRuntime as AcpRuntime
    from .clis.claude.runtime import ClaudeCliRuntime as ClaudeCliRuntime
    from .clis.codex.runtime import CodexCliRuntime as CodexCliRuntime
    from .clis.gemini.runtime import GeminiCliRuntime as GeminiCliRuntime
    from .clis.opencode.runtime import OpenCodeCliRuntime as OpenCodeCliRuntime
    from .clis.registry import classify_error as classify_error
    from .engine.agent_run import AgentRun as AgentRun
    from .engine.dialect import Extracted as Extracted
    from .engine.outcome import Closing as Closing
    from .engine.outcome import Ended as Ended
    from .engine.outcome import RunOutcome as RunOutcome
    from .engine.resources import RunResources as RunResources
    from .factory import SUPPORTED_PROVIDERS as SUPPORTED_PROVIDERS
    from .factory import create_cli_runtime as create_cli_runtime
    from .pool import SessionPool as SessionPool
    from .portable.sealing import SealError as SealError
    from .portable.sealing import new_key as new_key
    from .portable.store import FolderSessionStore as FolderSessionStore
    from .portable.store import SessionStore as SessionStore
    from .portable.store import StoredSession as StoredSession
    from .recording.recorder import Recording as Recording
    from .recording.replay import ReplayRuntime as ReplayRuntime
    from .runtime import CLIRuntimeBase as CLIRuntimeBase
    from .session import AgentSession as AgentSession
    from .tool_server.messaging import CronJob as CronJob
    from .tool_server.messaging import GatewayTools as GatewayTools
    from .tool_server.messaging import OutgoingMessage as OutgoingMessage
    from .tool_server.server import Gateway as Gateway
    from .tool_server.tools import tool as tool

# Imported on first use, so that `import remoteclaw_sync` stays cheap.
_LAZY = {
    "AgentRun": ".engine.agent_run",
    "AgentSession": ".session",
    "AskInChat": ".chat.questions",
    "CLIRuntimeBase": ".runtime",
    "ChannelBridge": ".chat.bridge",
    "AcpRuntime": ".clis.acp.runtime",
    "ChatQuestion": ".chat.questions",
    "ClaudeCliRuntime": ".clis.claude.runtime",
    "Closing": ".engine.outcome",
    "CodexCliRuntime": ".clis.codex.runtime",
    "Conversation": ".chat.sessions",
    "CronJob": ".tool_server.messaging",
    "Ended": ".engine.outcome",
    "Extracted": ".engine.dialect",
    "FolderSessionStore": ".portable.store",
    "Gateway": ".tool_server.server",
    "GatewayTools": ".tool_server.messaging",
    "GeminiCliRuntime": ".clis.gemini.runtime",
    "OpenCodeCliRuntime": ".clis.opencode.runtime",
    "OutgoingMessage": ".tool_server.messaging",
    "Recording": ".recording.recorder",
    "ReplayRuntime": ".recording.replay",
    "RetryPolicy": ".chat.bridge",
    "Route": ".chat.bridge",
    "RunOutcome": ".engine.outcome",
    "RunResources": ".engine.resources",
    "SUPPORTED_PROVIDERS": ".factory",
    "SealError": ".portable.sealing",
    "SessionMap": ".chat.sessions",
    "SessionPool": ".pool",
    "SessionStore": ".portable.store",
    "StoredSession": ".portable.store",
    "__version__": "._version",
    "classify_error": ".clis.registry",
    "create_cli_runtime": ".factory",
    "new_key": ".portable.sealing",
    "split_text": ".chat.delivery",
    "tool": ".tool_server.tools",
}

__all__ = [
    "AcpRuntime",
    "AgentDeliveryResult",
    "AgentDoneEvent",
    "AgentErrorEvent",
    "AgentEvent",
    "AgentExecuteParams",
    "AgentOutputError",
    "AgentPermissionEvent",
    "AgentRun",
    "AgentRunError",
    "AgentRunResult",
    "AgentRuntime",
    "AgentSession",
    "AgentTextEvent",
    "AgentThinkingEvent",
    "AgentToolResultEvent",
    "AgentToolUseEvent",
    "AgentUsage",
    "Allow",
    "AskFields",
    "AskInChat",
    "BridgeCallbacks",
    "Budget",
    "BudgetSpent",
    "CLIRuntimeBase",
    "ChannelBridge",
    "ChannelMessage",
    "ChatQuestion",
    "ClaudeCliRuntime",
    "Closing",
    "CodexCliRuntime",
    "Conversation",
    "CronJob",
    "Deny",
    "Ended",
    "ErrorCode",
    "ErrorSubtype",
    "Extracted",
    "FolderSessionStore",
    "Gateway",
    "GatewayTools",
    "GeminiCliRuntime",
    "LeaseFields",
    "McpMessageTarget",
    "McpServerConfig",
    "McpSideEffects",
    "OpenCodeCliRuntime",
    "OutgoingMessage",
    "PermissionDenial",
    "PermissionRequest",
    "Price",
    "Recording",
    "RemoteClawError",
    "ReplayRuntime",
    "ReplyButton",
    "ReplyPayload",
    "RetryPolicy",
    "Route",
    "RunFields",
    "RunOutcome",
    "RunResources",
    "RunSetupError",
    "SUPPORTED_PROVIDERS",
    "SealError",
    "SessionBusyError",
    "SessionFields",
    "SessionMap",
    "SessionPool",
    "SessionStore",
    "SessionTransferError",
    "StaleSessionError",
    "StoredSession",
    "UnknownProviderError",
    "UnsupportedOperationError",
    "__version__",
    "classify_error",
    "create_cli_runtime",
    "event_from_dict",
    "new_key",
    "split_text",
    "tool",
]


if not TYPE_CHECKING:  # Otherwise a type checker would think that every name exists and is Any.

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
