"""User code that is type-checked (`mypy --strict`) and never run.

Every `assert_type` is a promise to users: an event narrows by its class and by `event.type`, and the results of the
three verbs need no cast.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypedDict, assert_never, assert_type

import attrs

from remoteclaw_sync import (
    SUPPORTED_PROVIDERS,
    AcpRuntime,
    AgentDeliveryResult,
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentOutputError,
    AgentPermissionEvent,
    AgentRun,
    AgentRunError,
    AgentRunResult,
    AgentRuntime,
    AgentSession,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    Allow,
    AskInChat,
    BridgeCallbacks,
    Budget,
    ChannelBridge,
    ChannelMessage,
    ChatQuestion,
    ClaudeCliRuntime,
    CLIRuntimeBase,
    CodexCliRuntime,
    Deny,
    FolderSessionStore,
    GeminiCliRuntime,
    LeaseFields,
    McpMessageTarget,
    McpServerConfig,
    McpSideEffects,
    OpenCodeCliRuntime,
    PermissionDenial,
    PermissionRequest,
    Price,
    ReplyPayload,
    SessionBusyError,
    SessionPool,
    SessionStore,
    SessionTransferError,
    StaleSessionError,
    StoredSession,
    UnsupportedOperationError,
    __version__,
    classify_error,
    create_cli_runtime,
    event_from_dict,
)

# --- narrowing -----------------------------------------------------------------------------------------------


def by_isinstance(event: AgentEvent) -> str | None:
    if isinstance(event, AgentTextEvent):
        return event.text
    if isinstance(event, AgentThinkingEvent):
        return event.text
    if isinstance(event, AgentToolUseEvent):
        assert_type(event.input, Mapping[str, Any])
        return event.tool_name
    if isinstance(event, AgentToolResultEvent):
        return event.output if event.is_error else event.tool_id
    if isinstance(event, AgentPermissionEvent):
        assert_type(event.request, PermissionRequest)
        return event.request.reason
    if isinstance(event, AgentErrorEvent):
        assert_type(event.code, str | None)
        return event.message
    assert_type(event, AgentDoneEvent)
    return event.result.session_id


def by_type(event: AgentEvent) -> str | None:
    if event.type == "text":
        assert_type(event, AgentTextEvent)
        return event.text
    if event.type == "thinking":
        assert_type(event, AgentThinkingEvent)
        return event.text
    if event.type == "tool_use":
        assert_type(event, AgentToolUseEvent)
        return event.parent_tool_use_id
    if event.type == "tool_result":
        assert_type(event, AgentToolResultEvent)
        return event.output
    if event.type == "permission":
        assert_type(event, AgentPermissionEvent)
        return event.request.tool_name
    if event.type == "error":
        assert_type(event, AgentErrorEvent)
        return event.message
    assert_type(event, AgentDoneEvent)
    assert_type(event.type, Literal["done"])
    return event.result.text


def by_match_on_type(event: AgentEvent) -> str:
    match event.type:
        case "text" | "thinking":
            return event.text
        case "tool_use":
            return event.tool_name
        case "tool_result":
            return event.output
        case "permission":
            return event.request.tool_name
        case "error":
            return event.message
        case "done":
            return event.result.text
        case never:
            assert_never(never)


def by_match_on_class(event: AgentEvent) -> str:
    match event:
        case AgentTextEvent(text) | AgentThinkingEvent(text):
            return text
        case AgentToolUseEvent(tool_name=name, tool_id=call):
            return name + call
        case AgentToolResultEvent(output=output):
            return output
        case AgentPermissionEvent(request):
            return request.tool_name
        case AgentErrorEvent(message, code):
            return message + (code or "")
        case AgentDoneEvent(result):
            return result.text
        case never:
            assert_never(never)


def the_type_is_a_literal_of_the_class() -> None:
    assert_type(AgentTextEvent.type, Literal["text"])
    assert_type(AgentThinkingEvent.type, Literal["thinking"])
    assert_type(AgentToolUseEvent.type, Literal["tool_use"])
    assert_type(AgentToolResultEvent.type, Literal["tool_result"])
    assert_type(AgentPermissionEvent.type, Literal["permission"])
    assert_type(AgentErrorEvent.type, Literal["error"])
    assert_type(AgentDoneEvent.type, Literal["done"])


def values_are_frozen(event: AgentTextEvent, result: AgentRunResult, params: AgentExecuteParams) -> None:
    event.text = "other"  # type: ignore[misc]
    event.type = "text"  # type: ignore[misc]
    result.aborted = True  # type: ignore[misc]
    params.prompt = "other"  # type: ignore[misc]


# --- the three verbs -----------------------------------------------------------------------------------------


def execute(runtime: CLIRuntimeBase, params: AgentExecuteParams) -> None:
    with closing(runtime.execute(params)) as events:
        assert_type(events, Generator[AgentEvent, None, None])
        for event in events:
            if event.type == "text":
                print(event.text)
    for event in runtime.execute("hi", working_directory=".", deadline=60):
        assert_type(event, AgentEvent)


def start(runtime: CLIRuntimeBase) -> None:
    with runtime.start("hi") as run:
        assert_type(run, AgentRun)
        assert_type(run.pid, int | None)
        threading.Timer(10, run.abort).start()
        for event in run:
            assert_type(event, AgentEvent)
        assert_type(run.result, AgentRunResult | None)


def run(runtime: CLIRuntimeBase) -> None:
    assert_type(runtime.run("hi"), AgentRunResult)
    result = runtime.run("hi", check=False, model="large")
    assert_type(result.ok, bool)
    assert_type(result.usage, AgentUsage | None)
    assert_type(result.permission_denials, tuple[PermissionDenial, ...])
    try:
        runtime.run(AgentExecuteParams("hi"))
    except AgentRunError as error:
        assert_type(error.result, AgentRunResult)
        assert_type(error.errors, tuple[AgentErrorEvent, ...])


@attrs.frozen
class Bug:
    title: str
    severity: Literal["low", "high"]


class Row(TypedDict):
    name: str


def ask(runtime: CLIRuntimeBase, conversation: AgentSession) -> None:
    assert_type(runtime.ask("Which bug?", Bug), Bug)
    assert_type(runtime.ask("Which bugs?", list[Bug], working_directory=".", deadline=60), list[Bug])
    assert_type(runtime.ask("Counts?", dict[str, int], repairs=0), dict[str, int])
    assert_type(runtime.ask("A row?", Row), Row)
    assert_type(runtime.ask("How many?", int), int)
    assert_type(runtime.ask("A schema?", {"type": "object", "properties": {}}), dict[str, Any])
    assert_type(conversation.ask("Which bug?", Bug).severity, Literal["low", "high"])
    assert_type(runtime.ask("Cheap?", int, max_tokens=9, max_cost_usd=0.5, budget=Budget(period="day")), int)
    assert_type(runtime.run("hi", max_turns=3).retry_after, float | None)
    create_cli_runtime("codex", prices={"*": Price(1.25, 10)})
    either: int | str = runtime.ask("Either?", int | str)
    word: Literal["yes", "no"] = conversation.ask("Yes?", Literal["yes", "no"])
    print(either, word, runtime.run("hi", output_type=Bug, repairs=2).output)
    try:
        runtime.ask("Which bug?", Bug, output_type=int)  # type: ignore[call-overload]
    except AgentOutputError as error:
        assert_type(error.text, str)


def session(runtime: CLIRuntimeBase) -> None:
    def approve(request: PermissionRequest) -> bool | Allow | Deny:
        if request.questions:
            return Allow(answers={"Which colour?": "blue"})
        return Allow(remember=True) if request.tool_name == "Read" else Deny("not now", stop=True)

    try:
        with runtime.open_session(working_directory=".", approve=approve, idle_timeout=None) as conversation:
            assert_type(conversation, AgentSession)
            conversation.warm()
            conversation.set_model("large")
            conversation.set_permission_mode("accept-edits")
            assert_type(conversation.run("hi", deadline=60), AgentRunResult)
            assert_type(conversation.session_id, str | None)
            with conversation.start("go on") as run:
                run.steer("and hurry")
                run.abort()
            answer(conversation, "hi")
    except (SessionBusyError, UnsupportedOperationError):
        pass
    runtime.run("hi", approve=lambda request: True)
    runtime.open_session(images=["a.png"])  # type: ignore[call-arg]
    conversation.set_permission_mode("readonly")  # type: ignore[arg-type]


def pool(runtime: CLIRuntimeBase, fields: LeaseFields) -> None:
    with SessionPool(runtime, max_warm=4, idle_timeout=None, spare=1, model="large") as sessions:
        with sessions.session("s1", **fields) as conversation:
            assert_type(conversation, AgentSession)
        assert_type(sessions.cool("s1"), bool)
        sessions.session(idle_timeout=3)  # type: ignore[call-arg]


def bridge(message: ChannelMessage) -> None:
    def ask(question: ChatQuestion) -> None:
        for payload in question.payloads:
            print(payload.text, [(button.label, button.data) for button in payload.buttons])

    how = AskInChat(ask, who={"u1"}, timeout=60)
    with ChannelBridge("claude", session_map="s.db", workspace_dir=".", warm=2, ask_in_chat=how) as chat:
        assert_type(chat.handle(message).handled_as, Literal["turn", "steered", "answer", "rejected"])
        assert_type(chat.answer("data", "u1"), bool)
    ChannelBridge("claude", session_map="s.db", workspace_dir=".", while_busy="drop")  # type: ignore[arg-type]


def a_misspelt_field_or_option_is_seen_before_the_run(runtime: CLIRuntimeBase) -> None:
    runtime.run("hi", permision_mode="read-only")  # type: ignore[call-arg]
    runtime.start("hi", permission_mode="readonly")  # type: ignore[arg-type]
    runtime.execute("hi", deadline="soon")  # type: ignore[arg-type]
    create_cli_runtime("claude", timeot=3)  # type: ignore[call-overload]
    create_cli_runtime("codex", trust_workspace=True)  # type: ignore[call-overload]
    create_cli_runtime("gemini", timeout="soon")  # type: ignore[call-overload]
    ClaudeCliRuntime(timeot=3)  # type: ignore[call-arg]
    CodexCliRuntime(wait_for_network="no")  # type: ignore[arg-type]


def the_kind_of_a_failure_is_one_of_a_few_words(result: AgentRunResult) -> bool:
    return result.error_subtype == "rate-limit"  # type: ignore[comparison-overlap]


# --- what goes in --------------------------------------------------------------------------------------------


def params_take_any_sequence_and_path() -> AgentExecuteParams:
    return AgentExecuteParams(
        "hi",
        session_id="abc",
        mcp_servers={
            "files": McpServerConfig("npx", ["-y", "server-files"], {"TOKEN": "t"}, trust=False),
            "web": McpServerConfig(url="https://example.org/mcp", headers={"Authorization": "Bearer t"}),
        },
        abort_signal=threading.Event(),
        working_directory=Path("."),
        env={"A": "1", "B": None},
        system_prompt="Be brief.",
        model="large",
        permission_mode="read-only",
        images=["a.png", Path("b.png")],
        extra_args=["--verbose"],
        deadline=60,
        prompt_syntax="cli",
    )


def a_wrong_permission_mode_is_seen_before_the_run() -> None:
    AgentExecuteParams("hi", permission_mode="readonly")  # type: ignore[arg-type]


# --- runtimes ------------------------------------------------------------------------------------------------


class EchoRuntime(CLIRuntimeBase):
    """Everything that a custom CLI needs."""

    def __init__(self) -> None:
        super().__init__("echo-agent", timeout=60.0)

    def reset_state(self) -> None:
        self.turns = 0

    def build_args(self, params: AgentExecuteParams) -> list[str]:
        return ["--json", *params.extra_args]

    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        return {"NO_COLOR": "1", "DEBUG": None}

    def extract_event(self, line: str) -> AgentEvent | Iterable[AgentEvent] | None:
        self.turns += 1
        return AgentTextEvent(line)


class NarrowerRuntime(EchoRuntime):
    """Hooks may promise more than the base class asks for."""

    def extract_event(self, line: str) -> list[AgentEvent]:
        return [AgentTextEvent(line)]

    @property
    def supports_stdin_prompt(self) -> bool:
        return False

    @property
    def ndjson_stream(self) -> Literal["stderr"]:
        return "stderr"


class ScriptedRuntime:
    """The protocol asks only for `execute`, and for no base class."""

    def execute(self, params: AgentExecuteParams) -> Iterator[AgentEvent]:
        yield AgentTextEvent(params.prompt)
        yield AgentDoneEvent(AgentRunResult(text=params.prompt))


def answer(runtime: AgentRuntime, prompt: str) -> str:
    return "".join(event.text for event in runtime.execute(AgentExecuteParams(prompt)) if event.type == "text")


def every_runtime_conforms_to_the_protocol(base: CLIRuntimeBase) -> list[AgentRuntime]:
    assert_type(create_cli_runtime("claude"), ClaudeCliRuntime)
    assert_type(create_cli_runtime("gemini", trust_workspace=False), GeminiCliRuntime)
    assert_type(create_cli_runtime("acp", command=["goose", "acp"]), AcpRuntime)
    assert_type(create_cli_runtime("qwen"), AcpRuntime)
    assert_type(create_cli_runtime("codex", wait_for_network=False), CodexCliRuntime)
    assert_type(create_cli_runtime("opencode", generate_title=True), OpenCodeCliRuntime)
    provider: str = "claude"
    assert_type(create_cli_runtime(provider, timeout=10.0), CLIRuntimeBase)
    assert_type(SUPPORTED_PROVIDERS, tuple[str, ...])
    answer(EchoRuntime(), "hi")
    return [
        base,
        EchoRuntime(),
        NarrowerRuntime(),
        ScriptedRuntime(),
        create_cli_runtime("codex", timeout=10.0),
        ClaudeCliRuntime(),
        GeminiCliRuntime(timeout=10.0),
        CodexCliRuntime("codex"),
        OpenCodeCliRuntime(["npx", "opencode-ai"]),
    ]


# --- values --------------------------------------------------------------------------------------------------


def from_dict_keeps_its_class(data: dict[str, Any]) -> None:
    assert_type(AgentTextEvent.from_dict(data), AgentTextEvent)
    assert_type(AgentRunResult.from_dict(data), AgentRunResult)
    assert_type(event_from_dict(data), AgentEvent)
    assert_type(AgentUsage(1, 2).to_dict(), dict[str, Any])
    assert_type(AgentUsage(1) + AgentUsage(2), AgentUsage)


def delivery(result: AgentRunResult, sent: list[str]) -> AgentDeliveryResult:
    effects = McpSideEffects(sent_texts=sent, sent_targets=[McpMessageTarget("message", "telegram")], cron_adds=1)
    assert_type(effects.did_send_via_mcp_tool, bool)
    delivered = AgentDeliveryResult([ReplyPayload("hi", ["https://example.org/a.png"])], result, effects)
    assert_type(delivered.payloads, tuple[ReplyPayload, ...])
    BridgeCallbacks(on_partial_reply=print, on_block_reply=lambda payload: payload.text)
    ChannelMessage("hi", provider="slack", channel_id="C1", sender="u", metadata={"ts": 1})
    return delivered


def sessions_that_move(runtime: CLIRuntimeBase, store: SessionStore) -> str:
    try:
        with store.lock("key", timeout=5.0):
            found = store.load("key", known=3)
            assert_type(found, StoredSession | None)
            data = runtime.export_session("id", working_directory=Path("."), env={"HOME": "/home/bot", "X": None})
            assert_type(store.save("key", data, after=found.generation if found else 0), int)
    except SessionTransferError as error:
        return error.reason
    except StaleSessionError as error:
        assert_type(error.generation, int)
    stores: list[SessionStore] = [FolderSessionStore("/mnt/sessions", retention=None, key=[b"k" * 32])]
    assert_type(stores[0].load("key"), StoredSession | None)
    return runtime.import_session(b"", working_directory="/srv", replace=True)


def classification() -> str:
    found = classify_error("HTTP 429", exit_code=1, provider="gemini")
    assert_type(found.retryable, bool)
    return found.error_subtype + __version__
