"""The contract: what goes into a run, what comes out of it, and what is delivered.

All values are frozen attrs classes with `to_dict()` / `from_dict()` for JSON. Nothing here starts a process, a thread
or a clock.
"""

from __future__ import annotations

import inspect
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias, TypedDict, get_args, runtime_checkable

import attrs

from ._values import (
    TRANSIENT,
    Value,
    as_dict,
    as_tuple,
    check_amount,
    check_choice,
    check_env,
    check_flag,
    check_limit,
    check_path,
    check_seconds,
    check_strings,
    check_text,
    decoded_by,
    each,
    each_value,
)
from .limits import Budget

PermissionMode: TypeAlias = Literal["default", "read-only", "accept-edits", "bypass"]
PromptSyntax: TypeAlias = Literal["text", "cli"]

# Every kind of failure that `AgentRunResult.error_subtype` can name.
ErrorSubtype: TypeAlias = Literal[
    "aborted",
    "auth",
    "billing",
    "cli_missing",
    "config",
    "context_window",
    "crash",
    "incomplete",
    "invalid_output",
    "limit",
    "max_turns",
    "network",
    "overloaded",
    "permission",
    "rate_limit",
    "session_busy",
    "session_not_found",
    "timeout",
    "unknown",
    "untrusted_directory",
]

# How a run is done: with a process that gets one prompt and exits, or with one that stays and can be talked to.
TransportChoice: TypeAlias = Literal["auto", "oneshot", "live"]

# What became of a chat message.
HandledAs: TypeAlias = Literal["turn", "steered", "answer", "rejected"]

# Tool names are built from server names ("mcp__<server>__<tool>"); the limit of the APIs behind the CLIs is near this.
MAX_MCP_NAME_LENGTH = 128


# --- what goes in --------------------------------------------------------------------------------------


def _show_url(url: str | None) -> str:
    # Many servers expect their key as a query parameter, as the password in the URL, or as part of the path.
    shown = url and re.sub(r"(?<=//)[^?#]*@|[?#].*", "", url, flags=re.DOTALL)
    return repr(shown and re.sub(r"(?<=/)(?=[^/]*\d)(?=[^/]*[A-Za-z])[\w~.=-]{16,}(?=/|$)", "...", shown))


@attrs.frozen
class McpServerConfig(Value):
    """One MCP server for the run: a program to start, or a URL to connect to.

    `trust=True` lets its tools run without approval, which nobody could give in a headless run.
    Values of `env` and `headers` are secrets: they never appear in a command line, log, repr or world-readable file.
    """

    command: str | None = None
    args: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    env: Mapping[str, str] = attrs.field(factory=dict, converter=as_dict, repr=False)
    trust: bool = True
    url: str | None = attrs.field(default=None, kw_only=True, repr=_show_url)
    headers: Mapping[str, str] = attrs.field(factory=dict, converter=as_dict, repr=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ValueError("McpServerConfig needs either command or url, and not both")
        if self.command is not None:
            check_text("command", self.command)
        if self.url is not None:
            check_text("url", self.url)
        check_strings("args", self.args)
        check_flag("trust", self.trust)
        check_env("env", self.env, unset_ok=False)
        check_env("headers", self.headers, unset_ok=False)


def _check_session_id(session_id: object) -> None:
    check_text("session_id", session_id)
    assert isinstance(session_id, str)
    if session_id.startswith("-"):
        raise ValueError("session_id must not start with '-': a CLI would read it as a flag")
    if not session_id.isprintable() or session_id != session_id.strip():
        raise ValueError("session_id must not contain control characters or surrounding spaces")


def _check_mcp_servers(servers: object) -> None:
    if not isinstance(servers, Mapping):
        raise TypeError(f"mcp_servers must be a mapping of names to McpServerConfig, not {type(servers).__name__}")
    for name, server in servers.items():
        check_text("an mcp_servers name", name)
        if not name.isprintable() or name != name.strip():
            message = f"mcp_servers name {name!r} must not contain control characters or surrounding spaces"
            raise ValueError(message)
        if name.startswith("-"):
            raise ValueError(f"mcp_servers name {name!r} must not start with '-'")
        if len(name) > MAX_MCP_NAME_LENGTH:
            raise ValueError(f"mcp_servers name {name[:20]!r}... is longer than {MAX_MCP_NAME_LENGTH} characters")
        if not isinstance(server, McpServerConfig):
            message = f"mcp_servers[{name!r}] must be an McpServerConfig, not {type(server).__name__}"
            raise TypeError(message)


def _check_abort_signal(signal: object) -> None:
    # Recognised by its methods, because multiprocessing's works too. A class has these methods, but is not an event.
    wait = getattr(signal, "wait", None)
    if wait is None or not hasattr(signal, "is_set") or isinstance(signal, type):
        raise TypeError(f"abort_signal must be a threading.Event, not {type(signal).__name__}")
    if not _takes_timeout(wait):
        kind = f"{type(signal).__module__}.{type(signal).__name__}"
        message = f"abort_signal must be a threading.Event, not {kind}: a thread cannot wait for that with a timeout"
        raise TypeError(message)


def _takes_timeout(wait: Callable[..., object]) -> bool:
    """Whether it can be called like `threading.Event.wait`; asyncio's, trio's and anyio's have to be awaited."""
    if inspect.iscoroutinefunction(wait):
        return False
    try:
        inspect.signature(wait).bind(1.0)
    except TypeError:
        return False
    except ValueError:
        pass  # It is written in C and has no signature.
    return True


# --- approvals -----------------------------------------------------------------------------------------


@attrs.frozen
class PermissionRequest(Value):
    """The agent asks whether it may call a tool, or asks the user something.

    Args:
        id: the CLI's id of this request.
        tool_name: the tool.
        tool_id: the id of the call; the `tool_use` event has the same.
        input: the arguments of the call.
        reason: why the CLI asks, if it says so.
        session_id: the conversation that asks, if it has an id yet.
        parent_tool_use_id: if a sub-agent asks, the call that started it.
        questions: what the user is asked, in the CLI's format; answer with `Allow(answers={question: answer})`.
    """

    id: str
    tool_name: str
    tool_id: str = ""
    input: Mapping[str, Any] = attrs.field(factory=dict)
    reason: str | None = None
    session_id: str | None = None
    parent_tool_use_id: str | None = None
    questions: tuple[Mapping[str, Any], ...] = attrs.field(default=(), converter=as_tuple)


@attrs.frozen
class Allow(Value):
    """The call may be made.

    Args:
        input: other arguments for the call, all of them; None leaves them unchanged.
        remember: allow further calls of this tool (for a shell: only of the same command) without asking, until the
            session is closed.
        answers: the answers to the questions of the request, by the text of the question.
    """

    input: Mapping[str, Any] | None = None
    remember: bool = False
    answers: Mapping[str, Any] | None = None


@attrs.frozen
class Deny(Value):
    """The call must not be made. The agent is told the message and goes on, or (`stop`) its turn is aborted."""

    message: str = ""
    stop: bool = False


Decision: TypeAlias = bool | Allow | Deny
Approve: TypeAlias = Callable[[PermissionRequest], Decision]


def _check_approve(approve: object) -> None:
    if not callable(approve):
        raise TypeError(f"approve must be a function of one argument, not {type(approve).__name__}")


@attrs.frozen
class AgentExecuteParams(Value):
    """The input of one run. It is checked when it is built, and error messages name the field.

    Args:
        prompt: what the agent is asked. It is text, not syntax: `/clear` or `@file` reach the model as written.
        session_id: continue this conversation of the CLI.
        mcp_servers: tools for this run, besides the user's own.
        abort_signal: setting this event ends the run, even while nobody is iterating.
        working_directory: where the agent works (default: the host's current directory).
        env: variables for the CLI on top of the host's environment; None removes one.
        system_prompt: instructions on top of the CLI's own.
        model: a model name as the CLI knows it.
        permission_mode: "default" (the CLI's own policy), "read-only", "accept-edits" or "bypass".
        images: paths of images to show to the model.
        extra_args: further arguments for the CLI, passed on unchanged.
        deadline: seconds of wall-clock time for the whole run.
        tools: Python functions that the agent may call; they run in threads of this process.
        prompt_syntax: "cli" lets the CLI interpret `/commands` and `@files` in the prompt (default: "text").
        approve: decides on tool calls that the CLI asks about; called in the thread that iterates.
        output_type: what the answer has to be: a class or another type, or a JSON schema. It is in `result.output`.
        max_turns: how many requests to the model the run may make.
        max_tool_calls: how many tool calls it may make.
        max_tokens: how many tokens it may use, input and output, including cached ones.
        max_cost_usd: what it may cost, as the CLI reports it, or by the `prices` of the runtime.
        budget: what it may use together with other runs.
    """

    prompt: str = attrs.field(repr=lambda prompt: f"<{len(prompt)} characters>")
    session_id: str | None = attrs.field(default=None, kw_only=True)
    mcp_servers: Mapping[str, McpServerConfig] = attrs.field(
        factory=dict, converter=as_dict, kw_only=True, metadata=decoded_by(each_value(McpServerConfig.from_dict))
    )
    abort_signal: threading.Event | None = attrs.field(
        default=None, kw_only=True, repr=False, eq=False, metadata=TRANSIENT
    )
    working_directory: str | os.PathLike[str] | None = attrs.field(default=None, kw_only=True)
    env: Mapping[str, str | None] = attrs.field(factory=dict, converter=as_dict, kw_only=True, repr=False)
    system_prompt: str | None = attrs.field(default=None, kw_only=True, repr=False)
    model: str | None = attrs.field(default=None, kw_only=True)
    permission_mode: PermissionMode = attrs.field(default="default", kw_only=True)
    images: tuple[str | os.PathLike[str], ...] = attrs.field(default=(), converter=as_tuple, kw_only=True)
    extra_args: tuple[str, ...] = attrs.field(default=(), converter=as_tuple, kw_only=True, repr=False)
    deadline: float | None = attrs.field(default=None, kw_only=True)
    prompt_syntax: PromptSyntax | None = attrs.field(default=None, kw_only=True)
    tools: tuple[Any, ...] = attrs.field(
        default=(), converter=as_tuple, kw_only=True, repr=False, eq=False, metadata=TRANSIENT
    )
    approve: Approve | None = attrs.field(default=None, kw_only=True, repr=False, eq=False, metadata=TRANSIENT)
    output_type: Any = attrs.field(default=None, kw_only=True, repr=False, metadata=TRANSIENT)
    max_turns: int | None = attrs.field(default=None, kw_only=True)
    max_tool_calls: int | None = attrs.field(default=None, kw_only=True)
    max_tokens: int | None = attrs.field(default=None, kw_only=True)
    max_cost_usd: float | None = attrs.field(default=None, kw_only=True)
    budget: Budget | None = attrs.field(default=None, kw_only=True, repr=False, eq=False, metadata=TRANSIENT)

    def __attrs_post_init__(self) -> None:
        _check_mcp_servers(self.mcp_servers)
        check_text("prompt", self.prompt)
        if self.session_id is not None:
            _check_session_id(self.session_id)
        signal = self.abort_signal
        if signal is not None:
            _check_abort_signal(signal)
        if self.working_directory is not None:
            check_path("working_directory", self.working_directory)
        check_env("env", self.env, unset_ok=True)
        if self.system_prompt is not None:
            check_text("system_prompt", self.system_prompt)
        if self.model is not None:
            check_text("model", self.model)
        check_choice("permission_mode", self.permission_mode, get_args(PermissionMode))
        if not isinstance(self.images, tuple):
            raise TypeError(f"images must be a sequence of paths, not {type(self.images).__name__}")
        for index, image in enumerate(self.images):
            check_path(f"images[{index}]", image)
        check_strings("extra_args", self.extra_args)
        check_seconds("deadline", self.deadline)
        if self.prompt_syntax is not None:
            check_choice("prompt_syntax", self.prompt_syntax, get_args(PromptSyntax))
        if not isinstance(self.tools, tuple):
            raise TypeError(f"tools must be a sequence of functions, not {type(self.tools).__name__}")
        if self.approve is not None:
            _check_approve(self.approve)
        for name in ("max_turns", "max_tool_calls", "max_tokens"):
            check_limit(name, getattr(self, name))
        check_amount("max_cost_usd", self.max_cost_usd, none_ok=True)
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise TypeError(f"budget must be a Budget, not {type(self.budget).__name__}")


class AskFields(TypedDict, total=False):
    """The keywords of `ask`: the fields of `AgentExecuteParams`, except for the prompt and the type of the answer."""

    session_id: str | None
    mcp_servers: Mapping[str, McpServerConfig]
    abort_signal: threading.Event | None
    working_directory: str | os.PathLike[str] | None
    env: Mapping[str, str | None]
    system_prompt: str | None
    model: str | None
    permission_mode: PermissionMode
    images: Iterable[str | os.PathLike[str]]
    extra_args: Iterable[str]
    deadline: float | None
    prompt_syntax: PromptSyntax | None
    tools: Iterable[Any]
    approve: Approve | None
    max_turns: int | None
    max_tool_calls: int | None
    max_tokens: int | None
    max_cost_usd: float | None
    budget: Budget | None


class RunFields(AskFields, total=False):
    """The keywords of `execute`, `start` and `run`: the fields of `AgentExecuteParams`, except for the prompt."""

    output_type: Any


class LeaseFields(TypedDict, total=False):
    """The keywords of `SessionPool.session`: what applies to all turns of a session."""

    mcp_servers: Mapping[str, McpServerConfig]
    working_directory: str | os.PathLike[str] | None
    env: Mapping[str, str | None]
    system_prompt: str | None
    model: str | None
    permission_mode: PermissionMode
    extra_args: Iterable[str]
    tools: Iterable[Any]
    approve: Approve | None
    output_type: Any
    max_turns: int | None
    max_tool_calls: int | None
    max_tokens: int | None
    max_cost_usd: float | None
    budget: Budget | None


class SessionFields(LeaseFields, total=False):
    """The keywords of `open_session`: the same, plus which session to resume and how long an idle process is kept."""

    session_id: str | None
    idle_timeout: float | None


# The fields of `AgentExecuteParams` that belong to one turn. All others belong to its session.
TURN_FIELDS = frozenset(
    {
        "prompt",
        "images",
        "deadline",
        "abort_signal",
        "prompt_syntax",
        "output_type",
        "max_turns",
        "max_tool_calls",
        "max_tokens",
        "max_cost_usd",
        "budget",
    }
)


# --- what comes out ------------------------------------------------------------------------------------


@attrs.frozen
class AgentUsage(Value):
    """Tokens of one run, as the CLI counts them: for Gemini and Codex, input includes what was read from a cache; for
    Claude and OpenCode, it does not."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: AgentUsage) -> AgentUsage:
        return AgentUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


@attrs.frozen
class PermissionDenial(Value):
    """A tool call that was denied permission."""

    tool: str
    reason: str | None = None
    tool_id: str | None = None


@attrs.frozen(kw_only=True)
class AgentRunResult(Value):
    """Summary of a run that has ended. `error_subtype` is None exactly when the run succeeded.

    Args:
        text: the answer, all `text` events joined.
        session_id: what to resume with; None if there is nothing to resume.
        duration_ms: wall-clock time of the run.
        usage: tokens of this run, if the CLI reports them.
        aborted: the caller ended the run.
        total_cost_usd, api_duration_ms, num_turns, stop_reason: if the CLI reports them.
        error_subtype: the kind of failure ("auth", "timeout", ...; README lists them).
        permission_denials: tool calls that were refused.
        exit_code: the CLI's; negative for a signal, None if the CLI never started or had to be left.
        stderr: the last 64 KiB of the CLI's stderr, without known secrets.
        output: the answer as an instance of the requested `output_type`; None without one. `to_dict()` converts it to
            JSON, and `from_dict()` leaves it as JSON.
        retry_after: seconds until another try may succeed, if the vendor says so, after a rate limit or usage limit.
    """

    text: str = ""
    session_id: str | None = None
    duration_ms: float = 0.0
    usage: AgentUsage | None = attrs.field(default=None, metadata=decoded_by(AgentUsage.from_dict))
    aborted: bool = False
    total_cost_usd: float | None = None
    api_duration_ms: float | None = None
    num_turns: int | None = None
    stop_reason: str | None = None
    error_subtype: ErrorSubtype | None = None
    permission_denials: tuple[PermissionDenial, ...] = attrs.field(
        default=(), converter=tuple[PermissionDenial, ...], metadata=decoded_by(each(PermissionDenial.from_dict))
    )
    exit_code: int | None = None
    stderr: str = ""
    output: Any = None
    retry_after: float | None = None

    def to_dict(self) -> dict[str, Any]:
        if self.output is None:
            return Value.to_dict(self)
        from .schema.plain import plain  # Slow to import, and rarely needed.

        return attrs.evolve(self, output=None).to_dict() | {"output": plain(self.output)}

    @property
    def ok(self) -> bool:
        """Whether the run succeeded: the CLI said so, or exited with code 0 and an answer."""
        return self.error_subtype is None and not self.aborted


@attrs.frozen
class _Event(Value):
    type: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        return {"type": self.type, **Value.to_dict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        if data.get("type", cls.type) != cls.type:
            # Some events have the same fields: a "thinking" read as a "text" would become part of the answer.
            raise ValueError(f"type must be {cls.type!r} for {cls.__name__}, not {data['type']!r}")
        return super().from_dict(data)


@attrs.frozen
class AgentTextEvent(_Event):
    """A piece of the agent's answer. Joined, the pieces of a run are `result.text`."""

    type: ClassVar[Literal["text"]] = "text"
    text: str


@attrs.frozen
class AgentThinkingEvent(_Event):
    """A piece of the model's visible reasoning. Not part of the answer."""

    type: ClassVar[Literal["thinking"]] = "thinking"
    text: str


@attrs.frozen
class AgentToolUseEvent(_Event):
    """The agent calls a tool. `parent_tool_use_id` names the sub-agent call it belongs to, if any."""

    type: ClassVar[Literal["tool_use"]] = "tool_use"
    tool_name: str
    tool_id: str
    input: Mapping[str, Any] = attrs.field(factory=dict)
    parent_tool_use_id: str | None = None


@attrs.frozen
class AgentToolResultEvent(_Event):
    """The result of the tool call `tool_id`."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    tool_id: str
    output: str = ""
    is_error: bool = False
    parent_tool_use_id: str | None = None


@attrs.frozen
class AgentPermissionEvent(_Event):
    """The agent waits for a decision. `approve` is called next; without one, the answer is no."""

    type: ClassVar[Literal["permission"]] = "permission"
    request: PermissionRequest = attrs.field(metadata=decoded_by(PermissionRequest.from_dict))


@attrs.frozen
class AgentErrorEvent(_Event):
    """Something went wrong. CLIs survive many errors; only `done` says whether the run failed.

    `retry_after`: seconds until another try may succeed, if the vendor says so.
    """

    type: ClassVar[Literal["error"]] = "error"
    message: str
    code: str | None = None
    retry_after: float | None = attrs.field(default=None, kw_only=True)


@attrs.frozen
class AgentDoneEvent(_Event):
    """The last event of every run."""

    type: ClassVar[Literal["done"]] = "done"
    result: AgentRunResult = attrs.field(metadata=decoded_by(AgentRunResult.from_dict))


AgentEvent: TypeAlias = (
    AgentTextEvent
    | AgentThinkingEvent
    | AgentToolUseEvent
    | AgentToolResultEvent
    | AgentPermissionEvent
    | AgentErrorEvent
    | AgentDoneEvent
)

_EVENT_CLASSES: dict[str, type[AgentEvent]] = {cls.type: cls for cls in get_args(AgentEvent)}


def event_from_dict(data: Mapping[str, Any]) -> AgentEvent:
    """The event whose `to_dict()` returned this. Raises ValueError for an unknown `type`."""
    kind = data.get("type")
    if not isinstance(kind, str) or kind not in _EVENT_CLASSES:
        raise ValueError(f"type must be one of {', '.join(_EVENT_CLASSES)}, not {kind!r}")
    return _EVENT_CLASSES[kind].from_dict(data)


@runtime_checkable
class AgentRuntime(Protocol):
    """Anything that runs an agent and reports its work as events, the last of which is `done`."""

    def execute(self, params: AgentExecuteParams, /) -> Iterator[AgentEvent]:
        """Run the agent. Returns an iterator that blocks while waiting for the next event. Raises only for bad
        arguments."""


# --- delivery: what the agent said plus what its tools did -----------------------------------------------


@attrs.frozen
class McpMessageTarget(Value):
    """The recipient of a message that the agent sent through an MCP tool."""

    tool: str
    provider: str
    account_id: str | None = None
    to: str | None = None


@attrs.frozen
class McpSideEffects(Value):
    """What the agent's gateway tools did during a run."""

    sent_texts: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    sent_media_urls: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    sent_targets: tuple[McpMessageTarget, ...] = attrs.field(
        default=(), converter=as_tuple, metadata=decoded_by(each(McpMessageTarget.from_dict))
    )
    cron_adds: int = 0

    @property
    def did_send_via_mcp_tool(self) -> bool:
        """Whether the agent sent a message itself."""
        return bool(self.sent_targets)


@attrs.frozen
class ReplyButton(Value):
    """A button under a message: its label, and the data (at most 64 bytes) that identifies it when it is pressed."""

    label: str
    data: str


@attrs.frozen
class ReplyPayload(Value):
    """One message to deliver to a channel. Only questions from the agent have buttons."""

    text: str | None = None
    media_urls: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    is_error: bool = False
    buttons: tuple[ReplyButton, ...] = attrs.field(
        default=(), converter=as_tuple, metadata=decoded_by(each(ReplyButton.from_dict))
    )


@attrs.frozen
class AgentDeliveryResult(Value):
    """AgentRunResult (what the CLI said) + McpSideEffects (what its tools did) = what is delivered.

    Args:
        payloads: the messages to send, in order; they contain the answer once.
        run: how the run ended.
        mcp: what the agent itself sent and scheduled.
        error: why there is no (complete) answer, in words; None if all went well.
        warnings: what else went wrong, in words; above all, that the conversation will not be remembered.
        handled_as: "turn": the agent was asked. "steered": the message was added to the run of an earlier one, whose
            answer covers both. "answer": it answered a question from the agent. "rejected": a run was going on.
    """

    payloads: tuple[ReplyPayload, ...] = attrs.field(
        converter=as_tuple, metadata=decoded_by(each(ReplyPayload.from_dict))
    )
    run: AgentRunResult = attrs.field(metadata=decoded_by(AgentRunResult.from_dict))
    mcp: McpSideEffects = attrs.field(factory=McpSideEffects, metadata=decoded_by(McpSideEffects.from_dict))
    error: str | None = None
    warnings: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    handled_as: HandledAs = "turn"


@attrs.frozen
class ChannelMessage(Value):
    """A message from any chat channel, normalised.

    `provider` (the platform), `channel_id`, `sender` and `thread_id` tell conversations apart. `extra_context` is put
    before the text for the agent; `metadata` is for your own use.
    """

    text: str
    provider: str = attrs.field(default="", kw_only=True)
    channel_id: str = attrs.field(default="", kw_only=True)
    sender: str = attrs.field(default="", kw_only=True)
    thread_id: str | None = attrs.field(default=None, kw_only=True)
    id: str = attrs.field(default="", kw_only=True)
    timestamp: float = attrs.field(default=0.0, kw_only=True)
    reply_to_id: str | None = attrs.field(default=None, kw_only=True)
    media_urls: tuple[str, ...] = attrs.field(default=(), converter=as_tuple, kw_only=True)
    extra_context: str | None = attrs.field(default=None, kw_only=True)
    metadata: Mapping[str, Any] = attrs.field(factory=dict, converter=as_dict, kw_only=True)


@attrs.frozen
class BridgeCallbacks:
    """How a bridge reports while an agent is still working. Called in the thread that handles the message.

    `on_partial_reply` gets text as it arrives, `on_block_reply` finished blocks of it, `on_tool_result` the results of
    tools. If one raises, that is logged, and the run goes on.
    """

    on_partial_reply: Callable[[ReplyPayload], object] | None = None
    on_block_reply: Callable[[ReplyPayload], object] | None = None
    on_tool_result: Callable[[ReplyPayload], object] | None = None
