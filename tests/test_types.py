"""The value classes: what they reject, what they do not reveal, and that they survive a round trip through JSON."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import os
import pickle
import threading
import traceback
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest

import remoteclaw_sync
from remoteclaw_sync import (
    AgentDeliveryResult,
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentPermissionEvent,
    AgentRunError,
    AgentRunResult,
    AgentRuntime,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    Allow,
    BridgeCallbacks,
    BudgetSpent,
    ChannelMessage,
    CLIRuntimeBase,
    CronJob,
    Deny,
    McpMessageTarget,
    McpServerConfig,
    McpSideEffects,
    OutgoingMessage,
    PermissionDenial,
    PermissionRequest,
    Price,
    ReplyButton,
    ReplyPayload,
    event_from_dict,
)
from remoteclaw_sync._values import Value

NASTY = 'Grüße 🦀 \u2028\u0085\x0b\x1c "quoted" \\ \r\n\t end'

USAGE = AgentUsage(input_tokens=1, output_tokens=2, cache_read_tokens=3, cache_write_tokens=4)
FULL_RESULT = AgentRunResult(
    text=NASTY,
    session_id="s-1",
    duration_ms=12.5,
    usage=USAGE,
    aborted=True,
    total_cost_usd=0.25,
    api_duration_ms=7.5,
    num_turns=3,
    stop_reason="end_turn",
    error_subtype="permission",
    permission_denials=(PermissionDenial("Bash", NASTY, "call-1"), PermissionDenial("Edit")),
    exit_code=-15,
    stderr=NASTY,
)
STDIO_SERVER = McpServerConfig("npx", ("-y", "server"), {"TOKEN": "t"}, trust=False)
HTTP_SERVER = McpServerConfig(url="https://example.org/mcp", headers={"Authorization": "Bearer t"})
FULL_PARAMS = AgentExecuteParams(
    NASTY,
    session_id="s-1",
    mcp_servers={"files": STDIO_SERVER, "web 2": HTTP_SERVER},
    working_directory="/some/folder",
    env={"A": NASTY, "B": None, "C": ""},
    system_prompt=NASTY,
    model="large",
    permission_mode="read-only",
    images=("a.png", "b.png"),
    extra_args=("--flag", ""),
    deadline=1.5,
    prompt_syntax="cli",
)
SIDE_EFFECTS = McpSideEffects(
    sent_texts=(NASTY,),
    sent_media_urls=("https://example.org/a.png",),
    sent_targets=(McpMessageTarget("message", "telegram", "acc", "chat"), McpMessageTarget("send", "slack")),
    cron_adds=2,
)

PERMISSION_REQUEST = PermissionRequest(
    "r1",
    "Bash",
    "call-1",
    {"command": NASTY},
    NASTY,
    "s1",
    "parent",
    ({"question": NASTY, "options": [{"label": "a"}]},),
)

EVENTS: tuple[AgentEvent, ...] = (
    AgentTextEvent(NASTY),
    AgentThinkingEvent(NASTY),
    AgentToolUseEvent("Bash", "call-1", {"command": NASTY, "nested": {"list": [1, 2.5, None, True]}}, "parent"),
    AgentToolResultEvent("call-1", NASTY, True, "parent"),
    AgentPermissionEvent(PERMISSION_REQUEST),
    AgentErrorEvent(NASTY, "CLI_ERROR"),
    AgentDoneEvent(FULL_RESULT),
)
# Every field of every class has a value other than its default, so that a lost field would be noticed.
FULL_VALUES: tuple[Value, ...] = (
    *EVENTS,
    FULL_PARAMS,
    STDIO_SERVER,
    HTTP_SERVER,
    USAGE,
    PermissionDenial("Bash", NASTY, "call-1"),
    PERMISSION_REQUEST,
    Allow({"command": NASTY}, True, {"Which?": "this"}),
    Deny(NASTY, True),
    Price(1.5, 2, cache_read=0.1),
    BudgetSpent(tokens=3, cost_usd=0.5, runs=1, period="2026-11"),
    FULL_RESULT,
    McpMessageTarget("message", "telegram", "acc", "chat"),
    SIDE_EFFECTS,
    ReplyButton(NASTY, "token:yes"),
    ReplyPayload(NASTY, ("https://example.org/a.png",), True, (ReplyButton("Allow", "token:yes"),)),
    AgentDeliveryResult((ReplyPayload(NASTY), ReplyPayload(is_error=True)), FULL_RESULT, SIDE_EFFECTS, NASTY, (NASTY,)),
    ChannelMessage(
        NASTY,
        provider="slack",
        channel_id="C1",
        sender="u1",
        thread_id="t1",
        id="m1",
        timestamp=1.5,
        reply_to_id="m0",
        media_urls=("https://example.org/a.png",),
        extra_context=NASTY,
        metadata={"team": {"id": 1}},
    ),
    OutgoingMessage(
        text=NASTY,
        media_urls=("https://example.org/a.png",),
        provider="slack",
        to="C1",
        thread_id="t1",
        account_id="acc",
    ),
    CronJob(schedule="0 9 * * *", prompt=NASTY, name="morning", provider="slack", to="C1", thread_id="t1"),
)
# Fields that stay in this process and are not in any dict.
TRANSIENT_FIELDS = {"abort_signal", "tools", "approve", "output_type", "budget"}
MINIMAL_VALUES: tuple[Value, ...] = (
    AgentTextEvent(""),
    AgentThinkingEvent(""),
    AgentToolUseEvent("Bash", "call-1"),
    AgentToolResultEvent("call-1"),
    AgentPermissionEvent(PermissionRequest("r1", "Bash")),
    AgentErrorEvent(""),
    AgentDoneEvent(AgentRunResult()),
    AgentExecuteParams("hi"),
    PermissionRequest("r1", "Bash"),
    Allow(),
    Deny(),
    Price(1, 2),
    BudgetSpent(),
    McpServerConfig("npx"),
    AgentUsage(),
    PermissionDenial("Bash"),
    AgentRunResult(),
    McpMessageTarget("message", "telegram"),
    McpSideEffects(),
    ReplyButton("Allow", "token:yes"),
    ReplyPayload(),
    AgentDeliveryResult((), AgentRunResult()),
    ChannelMessage("hi"),
    OutgoingMessage(),
    CronJob(schedule="0 9 * * *", prompt="hi"),
)
ALL_VALUES = FULL_VALUES + MINIMAL_VALUES


def class_name(value: object) -> str:
    return type(value).__name__


each_value = pytest.mark.parametrize("value", ALL_VALUES, ids=class_name)


def public_value_classes() -> set[type]:
    members = (getattr(remoteclaw_sync, name) for name in remoteclaw_sync.__all__)
    return {member for member in members if isinstance(member, type) and issubclass(member, Value)}


def test_every_public_value_class_is_among_those_tested_here() -> None:
    assert {type(value) for value in FULL_VALUES} == public_value_classes()
    assert {type(value) for value in MINIMAL_VALUES} == public_value_classes()


# --- JSON, pickle, copy ----------------------------------------------------------------------------------------


@each_value
def test_a_value_survives_json(value: Value) -> None:
    sent = json.dumps(value.to_dict(), allow_nan=False)
    received = type(value).from_dict(json.loads(sent))
    assert received == value
    assert json.dumps(received.to_dict()) == sent


@each_value
def test_to_dict_holds_plain_json_types_and_every_field(value: Value) -> None:
    data = value.to_dict()
    assert json.loads(json.dumps(data)) == data
    names = {field.name for field in attrs.fields(type(value))} - TRANSIENT_FIELDS
    assert set(data) - {"type"} == names


@each_value
def test_a_value_survives_pickle_and_copies(value: Value) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.copy(value) == value
    assert copy.deepcopy(value) == value


@pytest.mark.parametrize("event", EVENTS, ids=class_name)
def test_an_event_is_found_again_by_its_type(event: AgentEvent) -> None:
    data = event.to_dict()
    assert data["type"] == event.type == type(event).type
    assert next(iter(data)) == "type"
    assert event_from_dict(json.loads(json.dumps(data))) == event


def test_a_lone_surrogate_in_an_event_survives_json() -> None:
    event = AgentTextEvent("half \ud83e of a crab")
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event


def test_to_dict_gives_copies_that_can_be_changed() -> None:
    params = AgentExecuteParams("hi", env={"A": "1"}, mcp_servers={"files": STDIO_SERVER})
    data = params.to_dict()
    data["env"]["A"] = "2"
    data["mcp_servers"]["files"]["args"].append("x")
    assert params.env == {"A": "1"}
    assert params.mcp_servers["files"].args == ("-y", "server")


def test_paths_become_strings_in_to_dict() -> None:
    params = AgentExecuteParams("hi", working_directory=Path("/some/folder"), images=[Path("a.png")])
    data = json.loads(json.dumps(params.to_dict()))
    assert (data["working_directory"], data["images"]) == (os.path.join("/some", "folder"), ["a.png"])
    assert AgentExecuteParams.from_dict(data).to_dict() == data


def test_the_abort_signal_stays_in_its_process() -> None:
    signal = threading.Event()
    params = AgentExecuteParams("hi", abort_signal=signal)
    assert "abort_signal" not in params.to_dict()
    assert AgentExecuteParams.from_dict({**params.to_dict(), "abort_signal": "x"}).abort_signal is None
    assert copy.copy(params).abort_signal is signal


def test_unknown_keys_of_a_newer_writer_are_ignored() -> None:
    assert AgentTextEvent.from_dict({"type": "text", "text": "a", "language": "en"}) == AgentTextEvent("a")
    assert AgentRunResult.from_dict({"usage": {"input_tokens": 1, "new_tokens": 2}}).usage == AgentUsage(1)


def test_a_missing_key_takes_its_default() -> None:
    assert AgentToolResultEvent.from_dict({"tool_id": "t"}) == AgentToolResultEvent("t")
    assert AgentDeliveryResult.from_dict({"payloads": [], "run": {}}).mcp == McpSideEffects()


def test_a_missing_key_without_a_default_is_named() -> None:
    with pytest.raises(TypeError, match="text"):
        AgentTextEvent.from_dict({"type": "text"})


@pytest.mark.parametrize("kind", ["", "Text", "result", None, 1, ["text"], {}])
def test_event_from_dict_refuses_a_type_that_is_none_of_ours(kind: object) -> None:
    with pytest.raises(
        ValueError, match="^type must be one of text, thinking, tool_use, tool_result, permission, error, done"
    ):
        event_from_dict({"type": kind, "text": "a"})
    with pytest.raises(ValueError, match="^type must be one of"):
        event_from_dict({"text": "a"})


def test_an_event_class_refuses_the_dict_of_another() -> None:
    """A "thinking" that is read as a "text" would become part of the answer."""
    with pytest.raises(ValueError, match="^type must be 'text' for AgentTextEvent, not 'thinking'"):
        AgentTextEvent.from_dict(AgentThinkingEvent("hm").to_dict())


def test_from_dict_checks_what_it_reads() -> None:
    with pytest.raises(ValueError, match="^session_id must not start with '-'"):
        AgentExecuteParams.from_dict({"prompt": "hi", "session_id": "--help"})


# --- frozen values ---------------------------------------------------------------------------------------------


@each_value
def test_a_value_is_frozen_and_takes_no_new_attribute(value: Value) -> None:
    for name in [field.name for field in attrs.fields(type(value))]:
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, name, None)
    with pytest.raises(AttributeError):
        value.surprise = 1  # type: ignore[attr-defined]
    assert not hasattr(value, "__dict__")


def test_each_event_has_its_literal_type_on_the_class() -> None:
    types = {event_class.__name__: event_class.type for event_class in get_args(AgentEvent)}
    assert types == {
        "AgentTextEvent": "text",
        "AgentThinkingEvent": "thinking",
        "AgentToolUseEvent": "tool_use",
        "AgentToolResultEvent": "tool_result",
        "AgentPermissionEvent": "permission",
        "AgentErrorEvent": "error",
        "AgentDoneEvent": "done",
    }


@pytest.mark.parametrize("event", EVENTS, ids=class_name)
def test_the_type_of_an_event_cannot_be_changed(event: AgentEvent) -> None:
    with pytest.raises(AttributeError):
        event.type = "text"  # type: ignore[misc]


def test_params_do_not_see_what_the_caller_changes_later() -> None:
    env: dict[str, str | None] = {"A": "1"}
    servers = {"files": STDIO_SERVER}
    extra_args = ["--flag"]
    params = AgentExecuteParams("hi", env=env, mcp_servers=servers, extra_args=extra_args)
    env["A"] = "2"
    servers.clear()
    extra_args.append("--other")
    assert (params.env, params.extra_args) == ({"A": "1"}, ("--flag",))
    assert params.mcp_servers == {"files": STDIO_SERVER}


def test_sequences_and_mappings_of_any_kind_are_taken() -> None:
    params = AgentExecuteParams(
        "hi",
        env=UserDict({"A": "1"}),
        images=iter(["a.png"]),
        extra_args=["--flag"],
    )
    assert (params.env, params.images, params.extra_args) == ({"A": "1"}, ("a.png",), ("--flag",))


def test_none_is_no_environment_and_no_servers() -> None:
    params = AgentExecuteParams("hi", env=None, mcp_servers=None)
    assert (params.env, params.mcp_servers) == ({}, {})


# --- results and delivery --------------------------------------------------------------------------------------


def test_a_result_is_ok_unless_it_failed_or_was_aborted() -> None:
    assert AgentRunResult(text="hi").ok
    assert not AgentRunResult(text="hi", error_subtype="auth").ok
    assert not AgentRunResult(text="hi", aborted=True).ok


def test_usage_adds_up_field_by_field() -> None:
    assert AgentUsage(1, 2, 3, 4) + AgentUsage(10, 20, 30, 40) == AgentUsage(11, 22, 33, 44)
    assert sum([AgentUsage(1), AgentUsage(2)], AgentUsage()) == AgentUsage(3)


def test_side_effects_start_at_zero() -> None:
    effects = McpSideEffects()
    assert effects.to_dict() == {"sent_texts": [], "sent_media_urls": [], "sent_targets": [], "cron_adds": 0}
    assert not effects.did_send_via_mcp_tool


def test_whether_a_tool_sent_something_follows_from_the_targets() -> None:
    assert McpSideEffects(sent_targets=[McpMessageTarget("message", "telegram")]).did_send_via_mcp_tool
    assert not McpSideEffects(sent_texts=["hi"]).did_send_via_mcp_tool


def test_a_delivery_without_side_effects_has_their_zero_value() -> None:
    assert AgentDeliveryResult([ReplyPayload("hi")], AgentRunResult(text="hi")).mcp == McpSideEffects()


def test_callbacks_are_optional_one_by_one() -> None:
    seen: list[ReplyPayload] = []
    callbacks = BridgeCallbacks(on_block_reply=seen.append)
    assert (callbacks.on_partial_reply, callbacks.on_tool_result) == (None, None)
    assert callbacks.on_block_reply is not None
    callbacks.on_block_reply(ReplyPayload("hi"))
    assert seen == [ReplyPayload("hi")]


# --- validation: the message begins with the field's name ------------------------------------------------------

NAN, INFINITY = math.nan, math.inf


class AwaitedEvent:
    """Its `wait` is a coroutine, as in trio and anyio."""

    def is_set(self) -> bool:
        return False

    async def wait(self) -> None:
        pass


class EndlessEvent:
    def is_set(self) -> bool:
        return False

    def wait(self) -> None:
        pass


REFUSED_PARAMS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("an empty prompt", {"prompt": ""}, ValueError, "prompt must not be empty"),
    ("a blank prompt", {"prompt": " \n\t\u3000"}, ValueError, "prompt must not be empty"),
    ("NUL in the prompt", {"prompt": "a\0b"}, ValueError, "prompt must not contain a NUL"),
    ("a surrogate in the prompt", {"prompt": "a\ud800"}, ValueError, "prompt contains a lone surrogate at position 1"),
    ("a prompt of bytes", {"prompt": b"hi"}, TypeError, "prompt must be a str, not bytes"),
    ("no prompt", {"prompt": None}, TypeError, "prompt must be a str, not NoneType"),
    ("a session id like a flag", {"session_id": "-x"}, ValueError, "session_id must not start with '-'"),
    ("an empty session id", {"session_id": ""}, ValueError, "session_id must not be empty"),
    ("NUL in the session id", {"session_id": "a\0"}, ValueError, "session_id must not contain a NUL"),
    ("a newline in the session id", {"session_id": "a\nb"}, ValueError, "session_id must not contain control"),
    ("a space before the session id", {"session_id": " -x"}, ValueError, "session_id must not contain .*spaces"),
    ("a session id that is a number", {"session_id": 7}, TypeError, "session_id must be a str, not int"),
    ("NUL in an env value", {"env": {"A": "x\0"}}, ValueError, r"env\['A'\] must not contain a NUL"),
    ("NUL in an env name", {"env": {"A\0": "x"}}, ValueError, "a key of env must not contain a NUL"),
    ("= in an env name", {"env": {"A=B": "x"}}, ValueError, "env: the name 'A'... must not contain '='"),
    ("an empty env name", {"env": {"": "x"}}, ValueError, "a key of env must not be empty"),
    ("a surrogate in an env value", {"env": {"A": "\udcff"}}, ValueError, r"env\['A'\] contains a lone surrogate"),
    ("a number as env value", {"env": {"A": 1}}, TypeError, r"env\['A'\] must be a str, not int"),
    ("a number as env name", {"env": {1: "x"}}, TypeError, "a key of env must be a str, not int"),
    ("env as a str", {"env": "A=1"}, TypeError, "env must be a mapping of str to str, not str"),
    ("env as a list", {"env": ["A=1"]}, TypeError, "env must be a mapping of str to str, not list"),
    ("an unnamed server", {"mcp_servers": {"": STDIO_SERVER}}, ValueError, "an mcp_servers name must not be empty"),
    (
        "NUL in a server name",
        {"mcp_servers": {"a\0": STDIO_SERVER}},
        ValueError,
        "an mcp_servers name must not contain",
    ),
    ("a control character", {"mcp_servers": {"a\x1b": STDIO_SERVER}}, ValueError, "mcp_servers name .* control"),
    ("a newline in a name", {"mcp_servers": {"a\nb": STDIO_SERVER}}, ValueError, "mcp_servers name .* control"),
    ("a name with a space around", {"mcp_servers": {" a": STDIO_SERVER}}, ValueError, "mcp_servers name .* spaces"),
    ("a server named like a flag", {"mcp_servers": {"-a": STDIO_SERVER}}, ValueError, "mcp_servers name '-a' .*'-'"),
    ("an endless server name", {"mcp_servers": {"a" * 129: STDIO_SERVER}}, ValueError, "mcp_servers name .* longer"),
    ("a number as server name", {"mcp_servers": {1: STDIO_SERVER}}, TypeError, "an mcp_servers name must be a str"),
    ("a dict as server", {"mcp_servers": {"a": {"command": "x"}}}, TypeError, r"mcp_servers\['a'\] must be an McpServ"),
    ("servers as a list", {"mcp_servers": [STDIO_SERVER]}, TypeError, "mcp_servers must be a mapping of names"),
    ("a str as abort signal", {"abort_signal": "stop"}, TypeError, "abort_signal must be a threading.Event, not str"),
    ("True as abort signal", {"abort_signal": True}, TypeError, "abort_signal must be a threading.Event, not bool"),
    (
        "the class Event",
        {"abort_signal": threading.Event},
        TypeError,
        "abort_signal must be a threading.Event, not typ",
    ),
    (
        "an asyncio.Event",
        {"abort_signal": asyncio.Event()},
        TypeError,
        "abort_signal must be .* not asyncio.locks.Event",
    ),
    ("an Event to await", {"abort_signal": AwaitedEvent()}, TypeError, "abort_signal must be .* not .*AwaitedEvent"),
    (
        "an Event without time-out",
        {"abort_signal": EndlessEvent()},
        TypeError,
        "abort_signal must be .* not .*EndlessEvent",
    ),
    ("a Condition", {"abort_signal": threading.Condition()}, TypeError, "abort_signal must be .* not Condition"),
    ("an empty folder name", {"working_directory": ""}, ValueError, "working_directory must not be empty"),
    ("NUL in the folder", {"working_directory": "/a\0"}, ValueError, "working_directory must not contain a NUL"),
    ("a folder of bytes", {"working_directory": b"/a"}, TypeError, "working_directory must be a str or a path"),
    ("an empty system prompt", {"system_prompt": " "}, ValueError, "system_prompt must not be empty"),
    ("NUL in the system prompt", {"system_prompt": "a\0"}, ValueError, "system_prompt must not contain a NUL"),
    ("an empty model", {"model": ""}, ValueError, "model must not be empty"),
    ("a model that is a number", {"model": 5}, TypeError, "model must be a str, not int"),
    (
        "a permission typo",
        {"permission_mode": "readonly"},
        ValueError,
        "permission_mode must be one of 'default', 'read",
    ),
    ("no permission mode", {"permission_mode": None}, ValueError, "permission_mode must be one of"),
    ("images as a str", {"images": "a.png"}, TypeError, "images must be a sequence of paths, not str"),
    ("an image that is no path", {"images": ["a.png", 3]}, TypeError, r"images\[1\] must be a str or a path, not int"),
    ("an empty image path", {"images": [""]}, ValueError, r"images\[0\] must not be empty"),
    ("extra_args as a str", {"extra_args": "--a --b"}, TypeError, "extra_args must be a sequence of str, not str"),
    ("a number in extra_args", {"extra_args": ["-n", 3]}, TypeError, r"extra_args\[1\] must be a str, not int"),
    ("NUL in extra_args", {"extra_args": ["a\0"]}, ValueError, r"extra_args\[0\] must not contain a NUL"),
    ("a deadline of zero", {"deadline": 0}, ValueError, "deadline must be a positive number of seconds"),
    ("a negative deadline", {"deadline": -1.0}, ValueError, "deadline must be a positive number of seconds"),
    ("a deadline that is no number", {"deadline": NAN}, ValueError, "deadline must be a positive number of seconds"),
    ("an endless integer deadline", {"deadline": 10**400}, ValueError, "deadline is too large a number of seconds"),
    ("a deadline of True", {"deadline": True}, TypeError, "deadline must be a number of seconds or None, not bool"),
    ("a deadline as text", {"deadline": "10"}, TypeError, "deadline must be a number of seconds or None, not str"),
    ("an unknown prompt syntax", {"prompt_syntax": "shell"}, ValueError, "prompt_syntax must be one of 'text', 'cli'"),
]


def refused(cases: Iterable[tuple[Any, ...]]) -> pytest.MarkDecorator:
    cases = list(cases)
    return pytest.mark.parametrize(
        ("fields", "error", "message"), [case[1:] for case in cases], ids=[case[0].replace(" ", "-") for case in cases]
    )


@refused(REFUSED_PARAMS)
def test_params_refuse(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        AgentExecuteParams(**{"prompt": "hi", **fields})


REFUSED_SERVERS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("neither command nor url", {}, ValueError, "McpServerConfig needs either command or url"),
    ("command and url", {"command": "x", "url": "y"}, ValueError, "McpServerConfig needs either command or url"),
    ("an empty command", {"command": " "}, ValueError, "command must not be empty"),
    ("NUL in the command", {"command": "a\0"}, ValueError, "command must not contain a NUL"),
    ("a command as a list", {"command": ["npx", "-y"]}, TypeError, "command must be a str, not list"),
    ("an empty url", {"url": ""}, ValueError, "url must not be empty"),
    ("args as a str", {"command": "x", "args": "-y server"}, TypeError, "args must be a sequence of str, not str"),
    ("NUL in args", {"command": "x", "args": ["\0"]}, ValueError, r"args\[0\] must not contain a NUL"),
    ("an env value of None", {"command": "x", "env": {"A": None}}, TypeError, r"env\['A'\] must be a str, not None"),
    ("= in an env name", {"command": "x", "env": {"A=": ""}}, ValueError, "env: the name 'A'... must not contain '='"),
    ("NUL in a header", {"url": "u", "headers": {"A": "\0"}}, ValueError, r"headers\['A'\] must not contain a NUL"),
    ("headers as a str", {"url": "u", "headers": "A: b"}, TypeError, "headers must be a mapping"),
    ("trust as text", {"command": "x", "trust": "false"}, TypeError, "trust must be True or False, not 'false'"),
]


@refused(REFUSED_SERVERS)
def test_an_mcp_server_refuses(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        McpServerConfig(**fields)


class EventLookAlike:
    """What multiprocessing's Event has in common with threading's."""

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        return False


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "--help"},
        {"prompt": "-"},
        {"prompt": "  kept as it is\n"},
        {"session_id": "a-b/c:d e"},
        {"mcp_servers": {"größe 2.0": STDIO_SERVER, "a" * 128: HTTP_SERVER}},
        {"env": {"A": "", "B": "x=y\n", "lower.case": None}},
        {"deadline": 0.001},
        {"deadline": INFINITY},
        {"abort_signal": threading.Event()},
        {"abort_signal": EventLookAlike()},
        {"working_directory": "no/such/folder"},
        {"extra_args": [""]},
    ],
    ids=repr,
)
def test_params_take_what_a_cli_could_take(fields: dict[str, Any]) -> None:
    params = AgentExecuteParams(**{"prompt": "hi", **fields})
    for name, value in fields.items():
        expected = tuple(value) if isinstance(value, list) else value
        assert getattr(params, name) == expected


class QuietRuntime(CLIRuntimeBase):
    """The smallest possible runtime. Never run here."""

    def build_args(self, params: AgentExecuteParams) -> list[str]:
        return []

    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        return {}

    def extract_event(self, line: str) -> AgentEvent | None:
        return None


REFUSED_OPTIONS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("a timeout of zero", {"timeout": 0}, ValueError, "timeout must be a positive number of seconds"),
    ("a negative timeout", {"timeout": -0.5}, ValueError, "timeout must be a positive number of seconds"),
    ("a timeout that is no number", {"timeout": NAN}, ValueError, "timeout must be a positive number of seconds"),
    ("a timeout as text", {"timeout": "300"}, TypeError, "timeout must be a number of seconds or None, not str"),
    ("a timeout of True", {"timeout": True}, TypeError, "timeout must be a number of seconds or None, not bool"),
    ("an endless integer timeout", {"timeout": 10**400}, ValueError, "timeout is too large a number of seconds"),
    ("a negative tool_timeout", {"tool_timeout": -1}, ValueError, "tool_timeout must be a positive number"),
    ("a negative linger", {"linger": -1}, ValueError, "linger must be a positive number"),
    ("no pending bytes", {"max_pending_bytes": 0}, ValueError, "max_pending_bytes must be positive"),
    ("pending bytes as a float", {"max_pending_bytes": 1e6}, TypeError, "max_pending_bytes must be an int"),
    ("a negative line limit", {"max_line_bytes": -1}, ValueError, "max_line_bytes must be positive"),
    ("an empty command", {"command": ""}, ValueError, "command must not be empty"),
    ("an empty sequence as command", {"command": []}, ValueError, "command must not be empty"),
    ("NUL in the command", {"command": ["a", "b\0"]}, ValueError, r"command\[1\] must not contain a NUL"),
]


@refused(REFUSED_OPTIONS)
def test_a_runtime_refuses(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        QuietRuntime(**{"command": "x", **fields})


def test_none_and_infinity_are_no_limit() -> None:
    runtime = QuietRuntime("x", timeout=None, tool_timeout=INFINITY)
    assert (runtime.timeout, runtime.tool_timeout) == (None, INFINITY)


@pytest.mark.parametrize("verb", ["execute", "start", "run"])
def test_bad_fields_are_refused_by_the_call_itself(verb: str) -> None:
    call: Callable[..., object] = getattr(QuietRuntime("no-such-program"), verb)
    with pytest.raises(ValueError, match="^prompt must not be empty"):
        call("")
    with pytest.raises(ValueError, match="^session_id must not start with '-'"):
        call("hi", session_id="-x")
    with pytest.raises(ValueError, match="^deadline must be"):
        call(AgentExecuteParams("hi"), deadline=-1)
    with pytest.raises(TypeError, match="modell"):
        call("hi", modell="typo")
    with pytest.raises(TypeError, match="^params must be an AgentExecuteParams or a prompt, not dict"):
        call({"prompt": "hi"})


def test_a_runtime_is_an_agent_runtime_and_so_is_anything_that_executes() -> None:
    class Scripted:
        def execute(self, params: AgentExecuteParams) -> Iterable[AgentEvent]:
            return iter([AgentDoneEvent(AgentRunResult())])

    assert isinstance(QuietRuntime("x"), AgentRuntime)
    assert isinstance(Scripted(), AgentRuntime)
    assert not isinstance(object(), AgentRuntime)


# --- secrets ---------------------------------------------------------------------------------------------------

SECRET = "sk-very-secret-0123456789"


def test_no_repr_shows_a_secret() -> None:
    servers = {
        "files": McpServerConfig("npx", (), {"TOKEN": SECRET}),
        "web": McpServerConfig(url=f"https://user:{SECRET}@example.org/mcp?key={SECRET}", headers={"A": SECRET}),
    }
    params = AgentExecuteParams(
        f"my password is {SECRET}",
        env={"API_KEY": SECRET},
        mcp_servers=servers,
        system_prompt=f"the key is {SECRET}",
        extra_args=["--key", SECRET],
    )
    for shown in (repr(params), str(params), f"{params}", repr(servers), repr([params])):
        assert SECRET not in shown
    assert "https://example.org/mcp" in repr(servers["web"])
    assert "prompt=<40 characters>" in repr(params)


LEAKY_FIELDS: list[Mapping[str, Any]] = [
    {"prompt": f"{SECRET}\0"},
    {"prompt": f"{SECRET}\ud800"},
    {"prompt": [SECRET]},
    {"system_prompt": f"{SECRET}\0"},
    {"env": {"API_KEY": f"{SECRET}\0"}},
    {"env": {"API_KEY": f"{SECRET}\ud800"}},
    {"env": {"API_KEY": SECRET.encode()}},
    {"env": {f"API_KEY={SECRET}": ""}},
    {"env": f"API_KEY={SECRET}"},
    {"env": [f"API_KEY={SECRET}"]},
    {"extra_args": SECRET},
    {"extra_args": [f"{SECRET}\0"]},
    {"mcp_servers": {"a": {"env": {"TOKEN": SECRET}}}},
]


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, chain=True)) + repr(error)


@pytest.mark.parametrize("fields", LEAKY_FIELDS)
def test_no_message_of_params_shows_a_secret(fields: Mapping[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        AgentExecuteParams(**{"prompt": SECRET, **fields})
    assert SECRET not in printed(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"env": {"TOKEN": f"{SECRET}\0"}},
        {"env": {f"TOKEN={SECRET}": ""}},
        {"headers": {"Authorization": f"{SECRET}\0"}},
        {"headers": {"Authorization": f"{SECRET}\ud800"}},
        {"headers": f"Authorization: {SECRET}"},
        {"url": f"https://example.org/?key={SECRET}", "command": "both"},
    ],
)
def test_no_message_of_a_server_shows_a_secret(fields: Mapping[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        McpServerConfig(**{"url": "https://example.org/", **fields})
    assert SECRET not in printed(caught.value)


def test_a_failed_run_shows_its_cause_and_keeps_its_evidence() -> None:
    error = AgentRunError(FULL_RESULT, [AgentErrorEvent("no permission", "CLI_ERROR")])
    assert str(error) == "no permission [permission]"
    assert error.result is FULL_RESULT


@pytest.mark.parametrize("depth", [600, 5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_an_input_nested_deeper_than_python_recurses_has_a_plain_form(depth: int) -> None:
    inner: Any = ("bottom",)
    for _ in range(depth):
        inner = {"x": (inner,)}
    data = AgentToolUseEvent("t", "1", {"deep": inner}).to_dict()
    reached = event_from_dict(data).input["deep"]  # type: ignore[union-attr]
    for _ in range(depth):
        reached = reached["x"][0]
    assert reached == ["bottom"]


def test_a_value_that_occurs_twice_is_not_one_that_contains_itself() -> None:
    shared = {"a": [1]}
    event = AgentToolUseEvent("t", "1", {"one": shared, "two": [shared, shared]})
    assert event.to_dict()["input"] == {"one": {"a": [1]}, "two": [{"a": [1]}, {"a": [1]}]}


def test_a_value_that_contains_itself_is_refused_in_words() -> None:
    around: dict[str, Any] = {}
    around["x"] = [around]
    with pytest.raises(ValueError, match="contains itself"):
        AgentToolUseEvent("t", "1", around).to_dict()


@pytest.mark.parametrize(
    "url",
    [
        "https://user:sk-0123456789@example.com/mcp",
        "https://user:p@ss-sk-0123456789@example.com/mcp",
        "https://user:p/sk-0123456789@example.com/mcp",
        "https://example.com/mcp?key=sk-0123456789",
        "https://example.com/mcp#sk-0123456789",
        "https://example.com/s/sk-0123456789abcdef/mcp",
    ],
)
def test_the_repr_of_a_server_shows_no_key_of_its_url(url: str) -> None:
    shown = repr(McpServerConfig(url=url))
    assert "example.com/" in shown
    assert "0123456789" not in shown
