"""Codex (`codex exec --json`, as of 0.169.0)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack, get_args

import attrs

from ... import errors
from ..._values import check_choice, check_flag
from ...engine.classify import classify_error
from ...engine.interpreter import Extracted
from ...engine.resources import RunResources
from ...process.environment import host_environment
from ...runtime import DEFAULT_TIMEOUT, CliOptions, RuntimeOptions
from ...types import (
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    AgentUsage,
    ErrorSubtype,
    PermissionDenial,
    PromptSyntax,
)
from ...wire.fields import Message, items, mapping, text, wording
from ..dialect import DialectRuntime, McpConfigMode, check_mcp_config
from ..mcp_entries import Servers, check_distinct
from ..shared import image_type, prompt_with_its_bom
from . import mcp as codex_mcp
from . import stderr as codex_stderr
from .facts import FACTS, codex_home
from .items import TOOL_ITEMS, ToolItem, Utterance, denial_reason, todo_output
from .mcp import inline_toml
from .rollout import read_record, usage_of

# Codex takes any other id for a thread's name and, finding none, quietly starts a new thread.
THREAD_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

# A retry that Codex makes by itself. Every other `error` line is followed by the turn's failure.
RETRY_PREFIX = "Reconnecting..."
RETRY_WORD = RETRY_PREFIX.encode()
RETRIES_BYTES = 8_192  # Retries come one by one. (To look through each full chunk takes 0.05 us a line.)
RETRY_LINE = re.compile(rb'\{"type":"error","message":"Reconnecting\.\.\.')

# `-s` is an option of `exec`, not of `resume`, and a resumed thread does not remember it.
SANDBOX_ARGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "read-only": ("--sandbox=read-only",),
    "accept-edits": ("--sandbox=workspace-write",),
    "bypass": ("--dangerously-bypass-approvals-and-sandbox",),
}

# Set by an outer Codex for the commands it runs; they tell of its thread, its call and its sandbox.
OUTER_RUN_VARIABLES = (
    "CODEX_THREAD_ID",
    "CODEX_SESSION_ID",
    "CODEX_TOOL_CALL_ID",
    "CODEX_PERMISSION_PROFILE",
    "CODEX_SANDBOX",
    "CODEX_SANDBOX_NETWORK_DISABLED",
    "CODEX_CI",
)

# What the general table of failures does not know.
EXIT_SUBTYPES: dict[str, ErrorSubtype] = {
    "Missing optional dependency": "cli_missing",  # The npm package without the program it starts.
    "already has an active writer": "overloaded",  # Another run is in this thread; later it will be free.
}

NO_PROFILE_FILES = (
    "codex was started again with its config.toml borrowed for the MCP servers: it knows no profile files, which came "
    "with 0.134.0"
)
NO_MESSAGE = "codex reported an error without a message"
UNFINISHED = "(no result: the turn ended before the call did)"


class CodexOptions(CliOptions, total=False):
    """Keywords of the constructor."""

    wait_for_network: bool
    mcp_config: McpConfigMode


class CodexCliRuntime(DialectRuntime):
    """Runs the `codex` CLI.

    Args:
        command: the program: a name, a path, or a sequence (program and first arguments).
        timeout: seconds of silence after which the run is ended; lines that only tell of another retry are silence.
        prompt_syntax: as in AgentExecuteParams; `codex exec` knows no syntax in prompts, so both mean the same.
        wait_for_network: whether Codex keeps trying while the server cannot be reached, until the timeout ends it (its
            own way); if not, such a run fails after its few retries, with the cause.
        mcp_config: "inject" (no file of the user's is touched) or "merge-restore" (config.toml is borrowed).
        options: as in CLIRuntimeBase (`tool_timeout`, `linger`, `max_pending_bytes`, `max_line_bytes`).
    """

    cli_facts = FACTS
    provider = FACTS.name
    install_hint = FACTS.install_hint
    most_restarts = 2  # Without profile files, then without a server that fails.

    HANDLERS = {
        "thread.started": "_on_thread_started",
        "turn.started": "_on_turn_started",
        "turn.completed": "_on_turn_completed",
        "turn.failed": "_on_turn_failed",
        "item.started": "_on_item",
        "item.updated": "_on_item",
        "item.completed": "_on_item",
        "error": "_on_error",
    }

    def __init__(
        self,
        command: str | os.PathLike[str] | Sequence[str] = "codex",
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        prompt_syntax: PromptSyntax = "text",
        wait_for_network: bool = True,
        mcp_config: McpConfigMode = "inject",
        **options: Unpack[RuntimeOptions],
    ) -> None:
        check_choice("prompt_syntax", prompt_syntax, get_args(PromptSyntax))
        check_mcp_config(mcp_config)
        check_flag("wait_for_network", wait_for_network)
        super().__init__(command, timeout, **options)
        self.mcp_config = mcp_config
        self.prompt_syntax = prompt_syntax
        self.wait_for_network = wait_for_network

    def reset_state(self) -> None:
        self._asked_thread: str | None = None
        self._used_before: AgentUsage | None = AgentUsage()  # In this thread; None if that is not known.
        self._instructions_ignored = False
        self._images: list[str] = []
        self._mcp_args: list[str] = []
        self._servers: Servers = {}
        self._failed_servers: set[str] = set()
        self._has_profile_files = True
        self._in_wrong_thread = False
        self._utterances: dict[str, Utterance] = {}
        self._last_said: dict[str, str] = {}  # Item type -> the last whole text since the model was last asked.
        self._completed: set[str] = set()  # Ids of texts that are complete: said again, they are not told.
        self._said_before_cut: dict[str, str] = {}
        self._open_tools: dict[str, ToolItem] = {}
        self._closed_tools: set[str] = set()
        self._plans: dict[str, list[str]] = {}
        self._failure_told: str | None = None

    # --- the command -----------------------------------------------------------------------------------------

    def check_params(self, params: AgentExecuteParams) -> None:
        """Raises ValueError for an image that cannot be shown: Codex would only tell the model, and go on."""
        codex_mcp.check_names(params.mcp_servers)
        check_distinct(params.mcp_servers)
        for index, image in enumerate(params.images):
            image_type(f"images[{index}]", image)

    def enter_run(self, params: AgentExecuteParams, resources: RunResources) -> None:
        """Look up the thread that is to be resumed, make the images' paths safe, and bring the MCP servers in."""
        self._images = _safe_image_paths(params, resources)
        self._find_thread(params)
        self._servers = {
            name: server for name, server in params.mcp_servers.items() if name not in self._failed_servers
        }
        self._mcp_args = []
        home = _codex_home(params)
        codex_mcp.tidy_up(home)
        if self._servers:
            borrow = self.mcp_config == "merge-restore" or not self._has_profile_files
            self._mcp_args = codex_mcp.inject(
                self._servers,
                home,
                resources,
                borrow_config=borrow,
                extra_args=params.extra_args,
                tool_timeout=self.tool_timeout,
            )

    def _find_thread(self, params: AgentExecuteParams) -> None:
        if params.session_id is None:
            return
        if not THREAD_ID.fullmatch(params.session_id):
            message = f"no Codex thread has the id {params.session_id!r}: it is not a UUID"
            raise errors.RunSetupError(errors.SESSION_NOT_FOUND, message)
        self._asked_thread = params.session_id.lower()
        record = read_record(_codex_home(params), self._asked_thread)
        self._used_before = record.tokens_so_far
        self._instructions_ignored = bool(record.instructions) and not record.began_with(params.system_prompt)

    def build_args(self, params: AgentExecuteParams) -> list[str]:
        # Extra arguments first: a variadic one (`-i FILE...`) at their end would swallow `resume`.
        args = ["exec", *params.extra_args, "--json", "--color=never", "--skip-git-repo-check"]
        if params.model is not None:
            args.append(f"--model={params.model}")
        args += SANDBOX_ARGS[params.permission_mode]
        args += [f"--config={override}" for override in self._config_overrides(params)]
        args += [*self._mcp_args, *(f"--image={path}" for path in self._images)]
        if params.session_id is not None:
            return [*args, "resume", "--", params.session_id.lower(), "-"]
        return [*args, "--", "-"]

    def _config_overrides(self, params: AgentExecuteParams) -> Iterator[str]:
        """Settings for this run, on top of the user's files. Never a secret: other users can read arguments."""
        if params.system_prompt is not None:
            yield f"developer_instructions={inline_toml(params.system_prompt)}"
        if not self.wait_for_network:
            yield "features.unbounded_connection_retries=false"

    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        return dict.fromkeys(OUTER_RUN_VARIABLES)

    def stdin_data(self, params: AgentExecuteParams) -> bytes:
        """The prompt; with a second byte order mark before a first, because Codex takes one away."""
        return prompt_with_its_bom(params.prompt)

    def facts(self) -> dict[str, Any]:
        if self._asked_thread is None:
            return {}
        return {
            "thread_id": self._asked_thread,
            "used_before": None if self._used_before is None else self._used_before.to_dict(),
            "instructions_ignored": self._instructions_ignored,
        }

    def recall(self, facts: Mapping[str, Any]) -> None:
        self._asked_thread = text(facts, "thread_id") or None
        if self._asked_thread is not None:
            used = mapping(facts, "used_before")
            self._used_before = AgentUsage.from_dict(used) if used else None
            self._instructions_ignored = facts.get("instructions_ignored") is True

    # --- what the CLI says -----------------------------------------------------------------------------------

    def is_life(self, chunk: bytes) -> bool:
        """Retries alone are silence: without network Codex prints one a minute, for ever."""
        if len(chunk) > RETRIES_BYTES or RETRY_WORD not in chunk:
            return True
        lines = [line for line in chunk.split(b"\n") if line.strip()]
        return not lines or not all(RETRY_LINE.match(line) for line in lines)

    def may_run_tool(self, chunk: bytes) -> bool:
        return b'"item.started"' in chunk

    def _on_thread_started(self, line: Message) -> AgentEvent | None:
        thread_id = text(line, "thread_id")
        asked = self._asked_thread
        if asked is not None and thread_id.lower() != asked:
            # Not asked for, so neither its answer nor its id is wanted.
            self._in_wrong_thread = True
            self.outcome.fail("session_not_found")
            return AgentErrorEvent(f"codex did not resume thread {asked} but began another", errors.SESSION_NOT_FOUND)
        self.outcome.session_id = thread_id or None
        if self._instructions_ignored:
            message = "codex keeps the instructions its thread began with: system_prompt is ignored when it is resumed"
            return AgentErrorEvent(message, errors.CLI_WARNING)
        return None

    def _on_turn_started(self, line: Message) -> None:
        if not self._in_wrong_thread:
            self.outcome.reopen()
        self._utterances.clear()
        self._completed.clear()
        self._forget_words()
        self._closed_tools.clear()

    def _on_turn_completed(self, line: Message) -> list[AgentEvent]:
        if self._in_wrong_thread:
            return []
        self.outcome.usage = _used_by_this_run(line, self._used_before)
        self.outcome.succeed()
        return self._close_open_tools()

    def _on_turn_failed(self, line: Message) -> list[AgentEvent]:
        if self._in_wrong_thread:
            return []
        failure = self._failure(wording(line.get("error")) or "the turn failed")
        return [*self._close_open_tools(), *failure]

    def _on_error(self, line: Message) -> list[AgentEvent]:
        if self._in_wrong_thread:
            return []
        message = wording(line.get("message")) or wording(line.get("error")) or NO_MESSAGE
        if message.startswith(RETRY_PREFIX):
            self._said_before_cut = dict(self._last_said)
            return [AgentErrorEvent(message, errors.CLI_WARNING)]
        failure = self._failure(message)
        self.outcome.terminal = None  # `turn.failed` has the last word.
        return failure

    def _failure(self, message: str) -> list[AgentEvent]:
        """A failure comes twice, as `error` and as `turn.failed`; it is told once."""
        words, code = codex_stderr.unpack_api_error(message)
        self.outcome.fail(_subtype_of_failure(words, code))
        if message == self._failure_told:
            return []
        self._failure_told = message
        return [AgentErrorEvent(words, code or errors.CLI_ERROR)]

    # --- items -----------------------------------------------------------------------------------------------

    def _on_item(self, line: Message) -> Extracted:
        item, is_final = line.get("item"), line.get("type") == "item.completed"
        if type(item) is not dict or self._in_wrong_thread:
            return None
        kind = item.get("type")
        if kind == "agent_message":
            new = self._new_words(kind, item, is_final)
            return AgentTextEvent(new) if new else None
        if kind == "reasoning":
            new = self._new_words(kind, item, is_final)
            return AgentThinkingEvent(new) if new else None
        if kind == "error":
            # Despite its name: a deprecation, an unknown model, a change of transport. The run goes on.
            message = wording(item.get("message")) or NO_MESSAGE
            return AgentErrorEvent(message, errors.CLI_WARNING) if is_final else None
        if kind == "todo_list":
            return self._on_plan(item)
        tool = TOOL_ITEMS.get(text(item, "type"))
        return None if tool is None else self._on_tool(tool, item, is_final)

    def _new_words(self, kind: str, item: Message, is_final: bool) -> str:
        whole, item_id = item.get("text"), item.get("id")
        if type(whole) is not str or type(item_id) is not str:
            whole, item_id = text(item, "text"), text(item, "id")
        if item_id in self._completed:
            return ""
        if is_final:
            self._last_said[kind] = whole
            if item_id:
                self._completed.add(item_id)
            if not self._utterances and not self._said_before_cut:
                return whole  # As 0.166.0 prints it: once, and whole.
        utterance = self._utterances.pop(item_id, None) or Utterance(self._said_before_cut.pop(kind, ""))
        if not is_final:
            self._utterances[item_id] = utterance
        return utterance.grow(whole, is_final=is_final)

    def _forget_words(self) -> None:
        self._last_said.clear()
        self._said_before_cut.clear()

    def _on_tool(self, tool: ToolItem, item: Message, is_final: bool) -> list[AgentEvent]:
        # After a tool the model is asked anew, and what it says then is no second attempt. (A web_search item has
        # two keys "id"; the last, which the parser keeps, is the same in all its lines.)
        self._forget_words()
        item_id = text(item, "id")
        if item_id in self._closed_tools:
            return []
        events: list[AgentEvent] = []
        if item_id not in self._open_tools:
            self._open_tools[item_id] = tool
            events.append(AgentToolUseEvent(tool.name(item), item_id, tool.input(item)))
        if not is_final:
            return events
        del self._open_tools[item_id]
        self._closed_tools.add(item_id)
        reason = denial_reason(item)
        if reason is not None:
            self.outcome.permission_denials.append(PermissionDenial(tool.name(item), reason, item_id))
        events.append(AgentToolResultEvent(item_id, tool.output(item), tool.failed(item)))
        return events

    def _on_plan(self, item: Message) -> Sequence[AgentEvent]:
        """A plan is one item for the whole turn; each of its states is a call of its own, done at once.

        Left open until the turn's end it would pass for a tool that is running all the time.
        """
        item_id, plan = text(item, "id"), todo_output(item)
        states = self._plans.setdefault(item_id, [])
        if states and states[-1] == plan:
            return ()
        states.append(plan)
        call_id = item_id if len(states) == 1 else f"{item_id}.{len(states)}"
        use = AgentToolUseEvent("todo_list", call_id, {"items": items(item, "items")})
        return use, AgentToolResultEvent(call_id, plan)

    def _close_open_tools(self) -> list[AgentEvent]:
        """A command that goes on in the background has no `item.completed`; Codex ends it when it exits."""
        unfinished, self._open_tools = self._open_tools, {}
        return [AgentToolResultEvent(item_id, UNFINISHED, is_error=True) for item_id in unfinished]

    # --- what it says on stderr ------------------------------------------------------------------------------

    def warnings_in(self, stderr: str) -> Iterable[AgentErrorEvent]:
        """Tool calls that Codex refused have no item, only a line in its log."""
        for refusal in codex_stderr.refused_calls(stderr):
            if refusal.is_denial:
                self.outcome.permission_denials.append(PermissionDenial(refusal.tool, refusal.reason))
            yield AgentErrorEvent(f"a tool call was not made: {refusal.reason}", errors.CLI_WARNING)

    def remedy(self, exit_code: int | None, stderr: str) -> AgentErrorEvent | None:
        """A server that does not start ends Codex, which would otherwise not wait for any: start again without it.

        Before 0.134 there are no profile files: start again with config.toml borrowed.
        """
        if self._has_profile_files and codex_mcp.profile_is_unknown(stderr, self._mcp_args):
            self._has_profile_files = False
            return AgentErrorEvent(NO_PROFILE_FILES, errors.CLI_WARNING)
        failed = codex_mcp.failed_servers(stderr, self._servers)
        if not failed:
            return None
        self._failed_servers |= set(failed)
        reasons = "; ".join(f"{reason:.300}" for reason in failed.values())
        return AgentErrorEvent(f"MCP server could not be used: {reasons}", errors.MCP_SERVER_FAILED)

    def explain_exit(self, exit_code: int | None, stderr: str) -> AgentErrorEvent | None:
        """Codex tells of a bad command line, configuration or thread on stderr alone."""
        if exit_code is None or exit_code <= 0:
            return None
        sentence = codex_stderr.last_words(stderr)
        if sentence is None:
            return None
        for words, kind in EXIT_SUBTYPES.items():
            if words in sentence and self.outcome.terminal is None:
                self.outcome.error_subtype = kind
        return AgentErrorEvent(sentence, errors.CLI_EXIT_ERROR)

    def enrich_result(self, result: AgentRunResult) -> AgentRunResult:
        return attrs.evolve(result, stderr=codex_stderr.without_excerpt(result.stderr))


def _codex_home(params: AgentExecuteParams) -> Path:
    """Where the CLI of this run keeps its threads."""
    return Path(params.working_directory or ".", codex_home({**host_environment(), **params.env}))


def _safe_image_paths(params: AgentExecuteParams, resources: RunResources) -> list[str]:
    """Absolute paths without a comma: `--image` splits its value there."""
    paths = [os.path.abspath(image) for image in params.images]
    if not any("," in path for path in paths):
        return paths
    folder = resources.temporary_folder()
    return [_without_comma(path, folder, number) for number, path in enumerate(paths)]


def _without_comma(path: str, folder: str, number: int) -> str:
    if "," not in path:
        return path
    link = os.path.join(folder, f"{number}{os.path.splitext(path)[1].replace(',', '')}")
    os.symlink(path, link)
    return link


def _used_by_this_run(line: Message, before: AgentUsage | None) -> AgentUsage | None:
    """`usage` counts from the thread's beginning. None if it is not known how much of it is older."""
    counts = mapping(line, "usage")
    if not counts or before is None:
        return None
    total = usage_of(counts)
    used = AgentUsage(
        total.input_tokens - before.input_tokens,
        total.output_tokens - before.output_tokens,
        total.cache_read_tokens - before.cache_read_tokens,
        total.cache_write_tokens - before.cache_write_tokens,
    )
    return used if min(used.to_dict().values()) >= 0 else None


def _subtype_of_failure(message: str, code: str | None) -> ErrorSubtype:
    if message.startswith("Incomplete response returned"):
        return "incomplete"
    # The address at the end of some messages is no evidence: its port may look like a status.
    return classify_error(message.partition(", url: ")[0], code=code).error_subtype
