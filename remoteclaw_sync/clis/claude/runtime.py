"""Claude Code, as of 2.1.326."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack, get_args

from ... import errors, files
from ..._values import check_choice
from ...config_files.private_file import PrivateFile
from ...engine.interpreter import Extracted
from ...engine.resources import RunResources
from ...runtime import DEFAULT_TIMEOUT, RuntimeOptions
from ...types import (
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    PermissionDenial,
    PermissionMode,
    PromptSyntax,
)
from ...wire.fields import Message, integer, items, mapping, number, plain_text, strings, text
from ..dialect import DialectRuntime
from ..mcp_entries import Hideaway, Servers, check_distinct, tool_prefix_name
from .facts import FACTS
from .mcp import claude_entries
from .messages import (
    StreamedBlock,
    failure_code,
    failure_message,
    failure_subtype,
    image_media_type,
    is_failed_server_result,
    process_usage,
    readable_stderr,
    recent_usage,
    retry_warning,
    turn_usage,
    user_line,
)

# Claude waits 5 s after its last word for a shell it left in the background, and may then begin another turn.
LINGER_WITH_SHELLS = 7.0

OUTPUT_ARGS = ("-p", "--output-format=stream-json", "--verbose", "--include-partial-messages")

# "read-only" is not Claude's plan mode: there, shell commands still run that a rule in the user's settings allows.
# Tools that do not exist cannot be allowed. Glob and Grep are off by default, since the shell can do as much.
READ_ONLY_TOOLS = "Read,Glob,Grep,WebFetch,WebSearch,Agent,Skill"
PERMISSION_ARGS: Mapping[PermissionMode, tuple[str, ...]] = {
    "default": (),
    "read-only": ("--permission-mode=default", f"--tools={READ_ONLY_TOOLS}"),
    "accept-edits": ("--permission-mode=acceptEdits",),
    "bypass": ("--permission-mode=bypassPermissions",),
}

# What a Claude tells the programs it starts. Inherited by another Claude they make it a child session (which is not
# stored, so it cannot be resumed), or connect it to the outer one's editor.
NESTING_VARIABLES = (
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_CODE_CHILD_SESSION",
    "CLAUDE_CODE_EXECPATH",
    "CLAUDE_CODE_SSE_PORT",
    "CLAUDE_CODE_RESUME_INTERRUPTED_TURN",
    "CLAUDE_EFFORT",
    "AI_AGENT",
)

CONFIG_READ = b'"subtype":"init"'  # Printed when the MCP servers of the configuration have been started.
MCP_FAILED = ("failed", "needs-auth", "disabled")

SYNTHETIC_MODEL = "<synthetic>"  # Claude's own words in the place of an answer: API errors, output of /commands.
TOLD_BLOCKS = frozenset({"text", "thinking"})
TOOL_BLOCKS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
# As a type: every line has a "parent_tool_use_id", and every usage a "server_tool_use".
TOOL_CALL = re.compile(rb'"type": ?"(?:server_|mcp_)?tool_use"')
KNOWN_BLOCKS = TOLD_BLOCKS | TOOL_BLOCKS
# Between the texts of two turns there is no other event that would keep their words apart.
TURN_BREAK = "\n\n"
# What a call gets of a tool that "read-only" leaves out: Claude 2.1.197, 2.1.326.
TOOL_DISABLED = ("exists but is not enabled in this context", "is disabled for this session")
SHELL_TASK = "local_bash"  # A background task for which Claude does not hold back the end of its run.
CUT_OFF = "the model's answer broke off and was asked for again; the text so far is not part of the answer"
ROOT_HINT = "run as another user, or set IS_SANDBOX=1 in `env` if this is a container made for it"


class ClaudeCliRuntime(DialectRuntime):
    """Runs Claude Code (`claude -p`).

    Args:
        command: the program, a name on PATH, a path, or a sequence (program and first arguments).
        timeout: seconds of silence after which the run is ended; None for no limit.
        prompt_syntax: "text" (a prompt `/clear` or `@file` reaches the model as written) or "cli" (Claude runs
            /commands and reads @files); a run's own `prompt_syntax` goes before it.
        options: those of `CLIRuntimeBase`; `linger` is at least 7 s while a background shell runs. Claude 2.1.197
            ends such a shell after 5 s, 2.1.326 waits for it as long as it is let.
    """

    cli_facts = FACTS
    provider = FACTS.name
    install_hint = FACTS.install_hint
    HANDLERS = {
        "stream_event": "on_stream_event",
        "assistant": "on_assistant",
        "user": "on_user",
        "system": "on_system",
        "result": "on_result",
    }

    def __init__(
        self,
        command: str | os.PathLike[str] | Sequence[str] = "claude",
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        prompt_syntax: PromptSyntax = "text",
        **options: Unpack[RuntimeOptions],
    ) -> None:
        check_choice("prompt_syntax", prompt_syntax, get_args(PromptSyntax))
        self.prompt_syntax: PromptSyntax = prompt_syntax
        super().__init__(command, timeout, **options)

    def reset_state(self) -> None:
        self._system_prompt_file: str | None = None
        self._mcp_args: tuple[str, ...] = ()
        self._mcp_env: dict[str, str] = {}
        self._mcp_names: set[str] = set()  # Servers of the caller's whose state has not been told yet.
        # The message that is being streamed; its blocks by their index.
        self._message_id: object = None
        self._blocks: dict[object, StreamedBlock] = {}
        self._in_stream = False
        self._last_words = ""  # Of the answer.
        self._turn_ended = False  # They were those of an earlier turn.
        self._tool_names: dict[str, str] = {}  # Tool calls told of, by id.
        self._tool_failures: dict[str, str] = {}
        self._api_error_kind = ""
        self._usage = AgentUsage()
        self._agents: set[str] = set()  # Sub-agents at work, for which Claude does not end.
        self._shells: set[str] = set()  # Shells at work, for which it waits a little.
        self._success_held = False

    # --- the command line -----------------------------------------------------------------------------------

    def check_params(self, params: AgentExecuteParams) -> None:
        check_distinct(params.mcp_servers)
        for image in params.images:
            image_media_type(image)

    def enter_run(self, params: AgentExecuteParams, resources: RunResources) -> None:
        if params.system_prompt is not None:
            # In a file, because a command line ends at 128 KiB and every user of the machine can read it.
            self._system_prompt_file = resources.temporary_file(".txt", params.system_prompt.encode())
        if params.mcp_servers:
            self._inject_mcp(params.mcp_servers, resources)

    def _inject_mcp(self, servers: Servers, resources: RunResources) -> None:
        """In a private file and not in the arguments, because of the secrets; gone when Claude has read it."""
        hide = Hideaway("${", "${{{}}}")
        config = json.dumps({"mcpServers": claude_entries(servers, hide)}).encode()
        file = PrivateFile(files.temporary_folder(), ".mcp.json", config, CONFIG_READ)
        resources.borrow(file)
        trusted = [f"mcp__{tool_prefix_name(name)}" for name, server in servers.items() if server.trust]
        allow = (f"--allowedTools={','.join(trusted)}",) if trusted else ()
        self._mcp_args = (f"--mcp-config={file.path}", *allow)
        # Otherwise a server that takes over 2 s is missing in the first request.
        self._mcp_env = {"MCP_CONNECTION_NONBLOCKING": "0", **hide.variables}
        self._mcp_names = set(servers)

    def build_args(self, params: AgentExecuteParams) -> list[str]:
        # `--flag=value` throughout: no value can be taken for a flag. (MCP's flags are variadic: `=` is a must.)
        args = [*OUTPUT_ARGS]
        if self._structured(params):
            args.append("--input-format=stream-json")
        if params.session_id is not None:
            args.append(f"--resume={params.session_id}")
        if params.model is not None:
            args.append(f"--model={params.model}")
        if self._system_prompt_file is not None:
            args.append(f"--append-system-prompt-file={self._system_prompt_file}")
        elif params.system_prompt is not None:
            args.append(f"--append-system-prompt={params.system_prompt}")
        return [*args, *PERMISSION_ARGS[params.permission_mode], *self._mcp_args, *params.extra_args]

    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        return {**dict.fromkeys(NESTING_VARIABLES), **self._mcp_env}

    def stdin_data(self, params: AgentExecuteParams) -> bytes:
        if self._structured(params):
            return user_line(params.prompt, params.images, as_text=self._as_text(params))
        return params.prompt.encode()

    def _as_text(self, params: AgentExecuteParams) -> bool:
        return (params.prompt_syntax or self.prompt_syntax) == "text"

    def _structured(self, params: AgentExecuteParams) -> bool:
        """Whether the prompt has to be sent as a JSON line: for images, and where Claude would see syntax."""
        looks_like_syntax = params.prompt.startswith("/") or "@" in params.prompt
        return bool(params.images) or (looks_like_syntax and self._as_text(params))

    def facts(self) -> dict[str, Any]:
        return {"mcp_servers": sorted(self._mcp_names)} if self._mcp_names else {}

    def recall(self, facts: Mapping[str, Any]) -> None:
        self._mcp_names = set(strings(facts, "mcp_servers"))

    # --- streamed messages ----------------------------------------------------------------------------------

    def may_run_tool(self, chunk: bytes) -> bool:
        return TOOL_CALL.search(chunk) is not None

    def on_stream_event(self, line: Message) -> AgentEvent | None:
        event = line.get("event")
        if type(event) is not dict or line.get("parent_tool_use_id") is not None:
            return None  # A sub-agent's says nothing new: its tool calls come as `assistant` lines.
        kind = event.get("type")
        if kind == "content_block_delta":
            return self._on_delta(event)
        if kind == "content_block_start":
            return self._on_block_start(event)
        if kind == "content_block_stop":
            return self._on_block_stop(event)
        if kind == "message_start":
            return self._on_message_start(mapping(event, "message"))
        if kind == "message_stop":
            self._in_stream = False
        return None

    def _on_message_start(self, message: Message) -> AgentEvent | None:
        warning = self._cut_off()
        self._message_id = message.get("id")
        self._blocks = {}
        self._in_stream = True
        return warning

    def _on_block_start(self, event: Message) -> AgentEvent | None:
        start = mapping(event, "content_block")
        kind = text(start, "type")
        block = self._blocks[_index(event)] = StreamedBlock(kind, start)
        piece = text(start, kind) if kind in TOLD_BLOCKS else ""
        block.length = len(piece)
        if not piece:
            return None
        return self._answer(piece) if kind == "text" else AgentThinkingEvent(piece)

    def _on_delta(self, event: Message) -> AgentEvent | None:
        """A further piece of a block. Text and thinking are told at once, if they are what the block is.

        Any other delta (a signature, citations, whatever a newer Claude has) is not: what matters of it comes once
        more, in the whole message.
        """
        delta, index = event.get("delta"), event.get("index")
        if type(delta) is not dict:
            return None
        block = self._blocks.get(index if type(index) is int else None)
        name = delta.get("type")
        if name == "text_delta":
            kind = "text"
        elif name == "thinking_delta":
            kind = "thinking"
        else:
            if name == "input_json_delta" and block is not None:
                block.input_parts.append(text(delta, "partial_json"))
            return None
        piece = delta.get(kind)
        if type(piece) is not str or not piece:
            return None
        if block is None or block.kind != kind:
            block = self._unannounced(event, block, kind)
            if block is None:
                return None
        block.length += len(piece)
        return self._answer(piece) if kind == "text" else AgentThinkingEvent(piece)

    def _unannounced(self, event: Message, block: StreamedBlock | None, kind: str) -> StreamedBlock | None:
        """The block that a delta belongs to, if that was not announced, or by a name that we do not know: then its
        deltas say what it is. None for one that is known to be something else."""
        if block is None:
            block = self._blocks[_index(event)] = StreamedBlock(kind, {})
        elif block.kind in KNOWN_BLOCKS or text(block.start, kind):
            return None
        block.kind = kind
        return block

    def _on_block_stop(self, event: Message) -> AgentEvent | None:
        block = self._blocks.get(_index(event))
        if block is None or block.kind not in TOOL_BLOCKS:
            return None
        return self._tool_use(block.start, None, block.tool_input)

    def _answer(self, words: str) -> AgentEvent:
        """A piece of the answer."""
        if self._turn_ended:
            self._turn_ended = False
            if not (self._last_words[-1].isspace() or words[0].isspace()):
                words = TURN_BREAK + words
        self._last_words = words
        return AgentTextEvent(words)

    def _cut_off(self) -> AgentEvent | None:
        """A warning, if the message that was being streamed is given up half-told."""
        half_told = self._in_stream and any(
            block.kind == "text" and block.length and not block.told_whole for block in self._blocks.values()
        )
        self._in_stream = False
        return AgentErrorEvent(CUT_OFF, errors.CLI_WARNING) if half_told else None

    # --- whole messages -------------------------------------------------------------------------------------

    def on_assistant(self, line: Message) -> list[AgentEvent]:
        """A block that is complete: text and thinking as far as they were not streamed, and tool calls.

        Most lines repeat what has been streamed. After a stream that was cut or idle Claude asks again without
        streaming, and the answer comes in this form only, under a new message id.
        """
        message = mapping(line, "message")
        parent = text(line, "parent_tool_use_id") or None
        if message.get("model") == SYNTHETIC_MODEL:
            if parent is None:
                self._in_stream = False
                self._api_error_kind = text(line, "error")
            return []
        message_id = message.get("id")
        warning = self._cut_off() if parent is None and not self._is_streamed(message_id) else None
        events = [] if warning is None else [warning]
        for block in items(message, "content"):
            event = self._whole_block(block, message_id, parent) if isinstance(block, dict) else None
            if event is not None:
                events.append(event)
        return events

    def _whole_block(self, block: Message, message_id: object, parent: str | None) -> AgentEvent | None:
        kind = text(block, "type")
        if kind in TOOL_BLOCKS:
            return self._tool_use(block, parent, lambda: mapping(block, "input"))
        if kind.endswith("_tool_result"):
            content = block.get("content")
            tool_id = text(block, "tool_use_id")
            return AgentToolResultEvent(tool_id, plain_text(content), is_failed_server_result(content), parent)
        if parent is not None or kind not in TOLD_BLOCKS:
            return None  # What a sub-agent says is not the agent's answer.
        rest = self._not_streamed(message_id, kind, text(block, kind))
        if not rest:
            return None
        return self._answer(rest) if kind == "text" else AgentThinkingEvent(rest)

    def _not_streamed(self, message_id: object, kind: str, whole: str) -> str:
        if self._is_streamed(message_id):
            for block in self._blocks.values():
                if block.kind == kind and not block.told_whole:
                    block.told_whole = True
                    return whole[block.length :]
        return whole

    def _is_streamed(self, message_id: object) -> bool:
        """Whether this is the message that is being streamed. One without an id is taken for it: an answer that is
        told twice is worse than one that a cut stream leaves without its beginning."""
        return message_id == self._message_id or message_id is None or self._message_id is None

    def _tool_use(self, block: Message, parent: str | None, get_input: Callable[[], Message]) -> AgentEvent | None:
        tool_id, name = text(block, "id"), text(block, "name")
        if tool_id in self._tool_names:
            return None  # Told of already: once streamed, once whole.
        self._tool_names[tool_id] = name
        return AgentToolUseEvent(name, tool_id, get_input(), parent)

    def on_user(self, line: Message) -> list[AgentEvent]:
        """Tool results. Other user lines are prompts of sub-agents and Claude's notes to the model."""
        results: list[AgentEvent] = []
        parent = text(line, "parent_tool_use_id") or None
        for block in items(mapping(line, "message"), "content"):
            if not isinstance(block, dict) or block.get("type") != "tool_result":
                continue
            tool_id, output = text(block, "tool_use_id"), plain_text(block.get("content"))
            failed = bool(block.get("is_error"))
            if failed:
                self._tool_failures[tool_id] = output
                if any(words in output for words in TOOL_DISABLED):
                    self._deny(self._tool_names.get(tool_id, ""), tool_id)
            results.append(AgentToolResultEvent(tool_id, output, failed, parent))
        return results

    # --- the run --------------------------------------------------------------------------------------------

    def on_system(self, line: Message) -> Extracted:
        match line.get("subtype"):
            case "init":
                # Again before each further turn, which a background task that ended has begun.
                self.outcome.session_id = text(line, "session_id") or self.outcome.session_id
                self._success_held = False
                self._turn_ended = bool(self._last_words)
                if self.outcome.terminal is not None:
                    self.outcome.reopen()
                return self._mcp_failures(line)
            case "api_retry":
                return retry_warning(line)
            case "model_fallback":
                models = f"{text(line, 'original_model')} to {text(line, 'fallback_model')}"
                return AgentErrorEvent(f"Claude changed the model from {models}", errors.CLI_WARNING)
            case "task_started":
                at_work = self._shells if line.get("task_type") == SHELL_TASK else self._agents
                at_work.add(text(line, "task_id"))
            case "task_notification":
                self._agents.discard(text(line, "task_id"))
                self._shells.discard(text(line, "task_id"))
        return None

    def _mcp_failures(self, line: Message) -> list[AgentEvent]:
        """Warnings for those of the caller's servers that Claude could not start or connect to."""
        failed: list[AgentEvent] = []
        for server in items(line, "mcp_servers"):
            name = server.get("name") if isinstance(server, dict) else None
            if name in self._mcp_names and server.get("status") in MCP_FAILED:
                self._mcp_names.discard(name)
                message = f"MCP server {name!r} could not be used ({server['status']})"
                failed.append(AgentErrorEvent(message, errors.MCP_SERVER_FAILED))
        return failed

    def on_result(self, line: Message) -> AgentEvent | None:
        """The end of a turn, mostly the last; further turns follow where background tasks were started."""
        self._account(line)
        for denial in items(line, "permission_denials"):
            if isinstance(denial, dict):
                self._deny(text(denial, "tool_name"), text(denial, "tool_use_id"))
        if line.get("is_error") or line.get("subtype") not in ("success", None):
            return self._fail(line)
        self.outcome.session_id = text(line, "session_id") or self.outcome.session_id
        if self._shells:
            self.linger = max(self.linger, LINGER_WITH_SHELLS)
        if self._agents:
            self._success_held = True  # Not the end: Claude waits for them, minutes if need be.
        else:
            self.outcome.succeed()
        # The output of a /command comes as no message of the model.
        unsaid = "" if self._last_words else text(line, "result")
        return self._answer(unsaid) if unsaid else None

    def _account(self, line: Message) -> None:
        outcome = self.outcome
        cost, api_duration = number(line, "total_cost_usd"), number(line, "duration_api_ms")
        recent = recent_usage(line)
        if recent is not None:
            self._usage += recent[0]
            outcome.usage, cost = self._usage, (outcome.total_cost_usd or 0.0) + recent[1]
        else:
            self._usage += turn_usage(line)
            # The process's own total is right also where the turns' numbers leave out sub-agents and fallbacks.
            total = process_usage(line)
            outcome.usage = total if total != AgentUsage() else self._usage
        outcome.total_cost_usd = outcome.total_cost_usd if cost is None else cost
        outcome.api_duration_ms = outcome.api_duration_ms if api_duration is None else api_duration
        outcome.num_turns = (outcome.num_turns or 0) + integer(line, "num_turns")
        outcome.stop_reason = text(line, "stop_reason") or outcome.stop_reason

    def _deny(self, tool: str, tool_id: str) -> None:
        denials = self.outcome.permission_denials
        if not any(denial.tool_id == tool_id for denial in denials):
            denials.append(PermissionDenial(tool, self._tool_failures.get(tool_id), tool_id))

    def _fail(self, line: Message) -> AgentEvent:
        # The id on this line is not kept: after a failed resume it is a new one that leads nowhere.
        kind, message = self._api_error_kind, failure_message(line)
        self.outcome.fail(failure_subtype(line, kind, message))
        return AgentErrorEvent(message, failure_code(line, kind))

    def explain_exit(self, exit_code: int | None, stderr: str) -> AgentErrorEvent | None:
        if self._success_held and exit_code == 0:
            self.outcome.succeed()  # It gave up waiting for its sub-agents.
            return None
        said = readable_stderr(stderr)
        if not said or exit_code is None or exit_code < 0:
            return None
        if "cannot be used with root" in said:
            self.outcome.error_subtype = "permission"
            said = f"{said}; {ROOT_HINT}"
        return AgentErrorEvent(said, errors.CLI_EXIT_ERROR)


def _index(event: Message) -> object:
    index = event.get("index")
    return index if type(index) is int else None
