"""OpenCode (`opencode run --format json`, as of 1.18.33)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Unpack, get_args

import attrs

from ... import errors, files
from ..._values import check_choice, check_flag
from ...engine.resources import RunResources
from ...process.child import ChildProcess
from ...process.environment import host_environment
from ...process.launch import Launch, Setup
from ...runtime import DEFAULT_TIMEOUT, CliOptions, RuntimeOptions
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
    PromptSyntax,
)
from ...wire.fields import Message, integer, items, mapping, number, strings, text
from ..dialect import DialectRuntime, McpConfigMode, check_mcp_config
from ..shared import check_is_file, prompt_with_its_bom
from . import config as opencode_config
from . import errors as reported
from . import mcp as opencode_mcp
from . import stderr as opencode_stderr
from . import two as opencode_two
from .config import CONFIG_VARIABLE, PERMISSION_VARIABLE
from .facts import FACTS
from .store import SessionStore

# Set by an outer OpenCode for what it starts: they name its process, its kind of client and its workspace.
OUTER_RUN_VARIABLES = ("OPENCODE", "OPENCODE_PID", "OPENCODE_CLIENT", "OPENCODE_WORKSPACE_ID", "OPENCODE_TERMINAL")

# Some causes ("Model not found") are in the log only; on stdout it is "Unexpected server error".
LOG_VARIABLES = {"OPENCODE_PRINT_LOGS": "1", "OPENCODE_LOG_LEVEL": "ERROR"}
# That an MCP server does not work is said nowhere but there.
MCP_LOG_VARIABLES = {**LOG_VARIABLES, "OPENCODE_LOG_LEVEL": "WARN"}

# Reasons of a step's end after which OpenCode goes on, or has yet to say what went wrong.
NOT_THE_LAST_WORD = frozenset({"tool-calls", "unknown", "error", "content-filter"})

AUTO = "--auto"  # In 1.17.18, not in 1.17.11.
OLD_AUTO = "--dangerously-skip-permissions"  # In 1.15.13, not in 1.3.2, which has neither.
BYPASS_BY_RULES = (
    "with rules that allow what it asks for by default (folders outside, repeated calls), and what your config asks "
    "for is still refused"
)

REJECTED = "rejected permission"  # Nobody could answer: OpenCode ends the turn.
RULED_OUT = "specified a rule which prevents"  # A rule of the user's config: it goes on.
INVALID_TOOL = "invalid"


class OpenCodeOptions(CliOptions, total=False):
    """Keywords of the constructor."""

    generate_title: bool
    mcp_config: McpConfigMode


class OpenCodeCliRuntime(DialectRuntime):
    """Runs the `opencode` CLI.

    Args:
        command: the program: a name, a path, or a sequence (program and first arguments).
        timeout: seconds of silence after which the run is ended. OpenCode is silent for about 70 s of retries.
        prompt_syntax: as in AgentExecuteParams; OpenCode knows no syntax in a prompt that comes on stdin, so both mean
            the same.
        generate_title: let OpenCode ask its model for a title of each new session, a request that is in no usage and
            no cost. Otherwise the title is the beginning of the prompt.
        mcp_config: "inject" (no file of the user's is touched) or "merge-restore" (.opencode/opencode.json of the
            working directory is borrowed).
        options: as in CLIRuntimeBase (`tool_timeout`, `linger`, `max_pending_bytes`, `max_line_bytes`).
    """

    cli_facts = FACTS
    provider = FACTS.name
    install_hint = FACTS.install_hint
    most_restarts = 2  # The database, then the flag.

    HANDLERS = {
        "step_start": "_on_step_start",
        "text": "_on_text",
        "reasoning": "_on_reasoning",
        "tool_use": "_on_tool_use",
        "step_finish": "_on_step_finish",
        "error": "_on_error",
    }

    def __init__(
        self,
        command: str | os.PathLike[str] | Sequence[str] = "opencode",
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        prompt_syntax: PromptSyntax = "text",
        generate_title: bool = False,
        mcp_config: McpConfigMode = "inject",
        **options: Unpack[RuntimeOptions],
    ) -> None:
        check_choice("prompt_syntax", prompt_syntax, get_args(PromptSyntax))
        check_mcp_config(mcp_config)
        check_flag("generate_title", generate_title)
        super().__init__(command, timeout, **options)
        self.mcp_config = mcp_config
        self.prompt_syntax = prompt_syntax
        self.generate_title = generate_title

    def reset_state(self) -> None:
        self._store: SessionStore | None = None
        self._instructions: str | None = None
        self._servers: Collection[str] = ()  # The names of the caller's.
        self._mcp_env: dict[str, str] = {}
        self._step_message: str | None = None
        self._parts_seen: set[str] = set()
        self._summaries: dict[str, bool] = {}
        self._messages_with_tools: set[str] = set()
        self._rejections: list[PermissionDenial] = []
        self._doubtful_error: Message | None = None
        self._bypass_flag: str | None = AUTO
        self._bypasses = False
        self._is_two = False
        self._read_only = False

    # --- the command -----------------------------------------------------------------------------------------

    def check_params(self, params: AgentExecuteParams) -> None:
        """Raises ValueError for an image that is no file, and for servers that OpenCode cannot tell apart."""
        opencode_mcp.check_names(params.mcp_servers)
        for index, image in enumerate(params.images):
            check_is_file(f"images[{index}]", image)

    def prepare(self, params: AgentExecuteParams, resources: RunResources) -> Launch:
        environment = _environment(params)
        self._store = SessionStore(environment)
        self._is_two = self._is_two or opencode_two.is_installed(self.command[0], environment.get("PATH"))
        self._read_only = params.permission_mode == "read-only"
        if self._is_two and self._read_only:
            raise errors.RunSetupError(errors.UNSUPPORTED_OPTION, opencode_two.NO_READ_ONLY)
        params = self._in_folder_of_session(params)
        if params.system_prompt is not None:
            self._instructions = os.path.join(resources.temporary_folder(), "instructions.md")
            with open(self._instructions, "xb", opener=files.private) as file:
                file.write(params.system_prompt.encode())
        # The caller's variables come after ours, so those of them that are merged with ours are replaced here.
        ours = self.build_env(params)
        env = {**params.env, **{name: ours[name] for name in params.env if name in ours and _is_merged(name)}}
        return super().prepare(attrs.evolve(params, env=env), resources)

    def enter_run(self, params: AgentExecuteParams, resources: RunResources) -> None:
        self._servers = params.mcp_servers
        self._bypasses = params.permission_mode == "bypass"
        project = os.path.abspath(params.working_directory or os.getcwd())
        if params.mcp_servers and self._borrows_config(params):
            self._mcp_env = opencode_mcp.borrow_config(params.mcp_servers, project, resources)
        else:
            opencode_mcp.repair_config(project)

    def _borrows_config(self, params: AgentExecuteParams) -> bool:
        return opencode_mcp.borrows_config(self.mcp_config, _environment(params))

    def _in_folder_of_session(self, params: AgentExecuteParams) -> AgentExecuteParams:
        """Go where the session was begun: resumed anywhere else, OpenCode works on, prints nothing and never ends."""
        if params.session_id is None or self._store is None:
            return params
        home = self._store.directory_of(params.session_id)
        if home is None:
            return params  # OpenCode says itself that it does not know the session.
        if params.working_directory is None:
            return attrs.evolve(params, working_directory=home)
        if os.path.realpath(params.working_directory) != os.path.realpath(home):
            message = f"session {params.session_id} belongs to the folder {home} and can only be continued there"
            raise errors.RunSetupError(errors.SESSION_NOT_FOUND, message)
        return params

    def build_args(self, params: AgentExecuteParams) -> list[str]:
        # `--file` takes all words that follow it, so a flag does.
        args = ["run", *(f"--file={os.path.abspath(image)}" for image in params.images)]
        args += opencode_two.place_args(params, is_two=self._is_two)
        if params.model is not None:
            args.append(f"--model={params.model}")
        if params.session_id is not None:
            args.append(f"--session={params.session_id}")
        elif not self.generate_title and not _has_flag(params.extra_args, "--title"):
            args.append("--title=")
        if params.permission_mode == "bypass" and self._bypass_flag is not None:
            args.append(self._bypass_flag)
        return [*args, "--thinking", "--format=json", *params.extra_args]

    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        logs = MCP_LOG_VARIABLES if params.mcp_servers else LOG_VARIABLES
        env: dict[str, str | None] = {**dict.fromkeys(OUTER_RUN_VARIABLES), **logs, **self._mcp_env}
        current = _environment(params)
        config = opencode_config.config_overlay(params, self._instructions)
        config |= opencode_mcp.settings(params.mcp_servers, self.tool_timeout)
        if params.mcp_servers and not self._borrows_config(params):
            config["mcp"] = opencode_mcp.entries(params.mcp_servers)
        rules = opencode_config.permission_overlay(params)
        if params.permission_mode == "bypass" and self._bypass_flag is None:
            rules = {**opencode_config.BYPASS_RULES, **rules}
        overlays = {CONFIG_VARIABLE: config, PERMISSION_VARIABLE: rules}
        for name, overlay in overlays.items():
            if overlay:
                env[name] = opencode_config.overlaid(name, current.get(name), overlay)
        return env

    def new_child(self, setup: Setup) -> ChildProcess:
        return ToolAwareChild(setup, self._runs_tool)

    def _runs_tool(self) -> bool:
        """Asked by the watchdog, in its thread."""
        store, message_id = self._store, self._step_message
        return store is not None and message_id is not None and store.runs_tool(message_id)

    def stdin_data(self, params: AgentExecuteParams) -> bytes:
        """The prompt; with a second byte order mark before a first, because OpenCode takes one away."""
        return prompt_with_its_bom(params.prompt)

    # --- what the CLI says -----------------------------------------------------------------------------------

    def may_run_tool(self, chunk: bytes) -> bool:
        """A step has begun that the store (see `_runs_tool`) cannot be asked about before its line has been read."""
        return b'"step_start"' in chunk

    def _on_step_start(self, line: Message) -> AgentEvent | None:
        self._note_session(line)
        self._go_on()
        self._step_message = text(mapping(line, "part"), "messageID") or None
        survived, self._doubtful_error = self._doubtful_error, None
        return None if survived is None else AgentErrorEvent(reported.message_of(survived), errors.CLI_WARNING)

    def _on_text(self, line: Message) -> AgentEvent | None:
        part = self._new_part(line)
        if part.get("synthetic"):
            # OpenCode speaking to its model after a compaction: there is another step to come.
            self._go_on()
            return None
        words = part.get("text")
        return AgentTextEvent(words) if type(words) is str and words and not self._is_summary(part) else None

    def _on_reasoning(self, line: Message) -> AgentEvent | None:
        part = self._new_part(line)
        words = text(part, "text")
        return AgentThinkingEvent(words) if words and not self._is_summary(part) else None

    def _on_tool_use(self, line: Message) -> Iterable[AgentEvent]:
        """A tool that has ended; nothing is said when it begins."""
        part = self._new_part(line)
        state = mapping(part, "state")
        # A later compaction shortens old results, and prints them again.
        if not state or "compacted" in mapping(state, "time"):
            return ()
        self._note_tool(part, state)
        tool_id = opencode_two.call_id(part)
        name, arguments = text(part, "tool"), mapping(state, "input")
        if name == INVALID_TOOL:
            name = text(arguments, "tool") or name
        use = AgentToolUseEvent(name, tool_id, arguments)
        result = AgentToolResultEvent(tool_id, _output_of(state), _has_failed(part, state))
        return use, result

    def _note_tool(self, part: Message, state: Message) -> None:
        # What the provider ran itself, or an interruption cut off, does not make OpenCode ask the model again.
        interrupted = mapping(state, "metadata").get("interrupted")
        if not opencode_two.is_provider_executed(part, state) and not interrupted:
            self._messages_with_tools.add(text(part, "messageID"))
        reason = text(state, "error")
        rejected = REJECTED in reason or opencode_two.DECLINED in reason
        if not rejected and RULED_OUT not in reason and not reason.startswith(opencode_two.BLOCKED):
            return
        denial = PermissionDenial(text(part, "tool"), reason, opencode_two.call_id(part) or None)
        self.outcome.permission_denials.append(denial)
        if rejected:
            self._rejections.append(denial)

    def _on_step_finish(self, line: Message) -> None:
        part = self._new_part(line)
        if not part:
            return
        self._count(part)
        self._step_message = None
        reason = text(part, "reason")
        self.outcome.stop_reason = reason or None
        # "stop" after tool calls is a slip of some providers: OpenCode asks again.
        called_tools = text(part, "messageID") in self._messages_with_tools
        if reason and reason not in NOT_THE_LAST_WORD and not called_tools and not self._is_summary(part):
            self.outcome.succeed()

    def _on_error(self, line: Message) -> AgentEvent | None:
        self._note_session(line)
        error = line.get("error")
        if type(error) is not dict:
            error = {"message": error}
        if not reported.is_fatal(error):
            self._doubtful_error = self._doubtful_error or error
            return None
        if self.outcome.terminal == "failure":
            return None
        self._doubtful_error = None
        event = AgentErrorEvent(reported.message_of(error), reported.code_of(error))
        self.outcome.fail(reported.subtype_of(error, event))
        return event

    def _go_on(self) -> None:
        if self.outcome.terminal is not None:
            self.outcome.reopen()

    def _note_session(self, line: Message) -> None:
        self.outcome.session_id = text(line, "sessionID") or self.outcome.session_id

    def _new_part(self, line: Message) -> Message:
        """The line's `part`, unless it has been there before: OpenCode prints every later change of one, too."""
        if line.get("sessionID") != self.outcome.session_id:
            self._note_session(line)
        part = line.get("part")
        if type(part) is not dict:
            return {}
        part_id = opencode_two.part_id(part)
        if part_id:
            if part_id in self._parts_seen:
                return {}
            self._parts_seen.add(part_id)
        return part

    def _is_summary(self, part: Message) -> bool:
        """Whether this belongs to OpenCode's summary of a conversation that became too long. Lines do not say so."""
        message_id = part.get("messageID")
        if type(message_id) is not str:
            return False
        known = self._summaries.get(message_id)
        if known is None:
            known = self._store is not None and message_id != "" and self._store.is_summary(message_id)
            self._summaries[message_id] = known
            if known:
                self.learn(self.facts())
        return known

    def _count(self, part: Message) -> None:
        tokens = mapping(part, "tokens")
        cache = mapping(tokens, "cache")
        used = AgentUsage(
            integer(tokens, "input"), integer(tokens, "output"), integer(cache, "read"), integer(cache, "write")
        )
        outcome = self.outcome
        outcome.usage = (outcome.usage or AgentUsage()) + used
        outcome.total_cost_usd = (outcome.total_cost_usd or 0.0) + (number(part, "cost") or 0.0)
        outcome.num_turns = (outcome.num_turns or 0) + 1

    def facts(self) -> dict[str, Any]:
        summaries = [message_id for message_id, is_summary in self._summaries.items() if is_summary]
        known = {"mcp_servers": [*self._servers], "summaries": summaries}
        return {name: values for name, values in known.items() if values}

    def recall(self, facts: Mapping[str, Any]) -> None:
        self._servers = strings(facts, "mcp_servers")
        self._summaries = dict.fromkeys(strings(facts, "summaries"), True)

    # --- the end ---------------------------------------------------------------------------------------------

    def remedy(self, exit_code: int | None, stderr: str) -> AgentErrorEvent | None:
        """The first runs of all, when they are several at once, fail over the database that each wants to make. Before
        1.17.18 there is no `--auto`, and OpenCode 2 has no `--dir`."""
        if not self._is_two and opencode_two.refuses_dir(stderr):
            if self._read_only:
                return None  # Better no run than one that can write.
            self._is_two = True
            return AgentErrorEvent(opencode_two.STARTED_AGAIN, errors.CLI_WARNING)
        is_first = self._bypasses and self._bypass_flag == AUTO
        if is_first and opencode_stderr.refused_arguments(stderr) and not opencode_stderr.lists_flag(stderr, AUTO):
            return self._bypass_in_another_way(stderr)
        if not opencode_stderr.is_database_race(stderr):
            return None
        message = "opencode was started again: another of its processes was making its database"
        return AgentErrorEvent(message, errors.CLI_WARNING)

    def _bypass_in_another_way(self, help_text: str) -> AgentErrorEvent:
        has_old_flag = opencode_stderr.lists_flag(help_text, OLD_AUTO)
        self._bypass_flag = OLD_AUTO if has_old_flag else None
        how = f"with {OLD_AUTO}" if has_old_flag else BYPASS_BY_RULES
        return AgentErrorEvent(f"opencode was started again {how}: it has no {AUTO}", errors.CLI_WARNING)

    def explain_exit(self, exit_code: int | None, stderr: str) -> AgentErrorEvent | None:
        if self._doubtful_error is not None:
            return self._explain_error(self._doubtful_error, stderr)
        asked = opencode_stderr.rejected_permissions(stderr)
        if self._rejections or (self._is_two and asked and self.outcome.terminal is None):
            self.outcome.error_subtype = "permission"
            what = f": {', '.join(asked)}" if asked else ""
            message = f"opencode stopped because nobody could grant a permission it asked for{what}"
            return AgentErrorEvent(message, errors.CLI_ERROR)
        if exit_code is None or exit_code <= 0:
            return None
        if not self._is_two and self._read_only and opencode_two.refuses_dir(stderr):
            self.outcome.error_subtype = "config"
            return AgentErrorEvent(opencode_two.NO_READ_ONLY, errors.UNSUPPORTED_OPTION)
        said = opencode_stderr.failure(stderr)
        if said is None:
            return None
        if opencode_stderr.is_about_settings(said):
            self.outcome.error_subtype = "config"
        return AgentErrorEvent(said, errors.CLI_EXIT_ERROR)

    def _explain_error(self, error: Message, stderr: str) -> AgentErrorEvent:
        cause = opencode_stderr.logged_cause(stderr, text(mapping(error, "data"), "ref"))
        event = AgentErrorEvent(cause or reported.message_of(error), reported.code_of(error))
        self.outcome.error_subtype = reported.subtype_of(error, event)
        return event

    def warnings_in(self, stderr: str) -> Iterable[AgentErrorEvent]:
        for name, trouble in opencode_mcp.failures(stderr, self._servers).items():
            yield AgentErrorEvent(f"MCP server {name!r} {trouble}", errors.MCP_SERVER_FAILED)

    def presentable(self, stderr: str) -> str:
        return opencode_stderr.without_warnings(opencode_stderr.without_secrets(stderr))


class ToolAwareChild(ChildProcess):
    """Finds out whether a tool runs: OpenCode says so only when it has ended, which may be long after `timeout`."""

    def __init__(self, setup: Setup, runs_tool: Callable[[], bool]) -> None:
        self._runs_tool = runs_tool
        super().__init__(setup)

    @property
    def tools_outstanding(self) -> bool:
        """Asked only when a clock is looked at."""
        return self._outstanding or self._runs_tool()

    @tools_outstanding.setter
    def tools_outstanding(self, outstanding: bool) -> None:
        self._outstanding = outstanding


def _environment(params: AgentExecuteParams) -> dict[str, str]:
    """The host's variables with the caller's."""
    both = {**host_environment(), **params.env}
    return {name: value for name, value in both.items() if value is not None}


def _is_merged(name: str) -> bool:
    return name in (CONFIG_VARIABLE, PERMISSION_VARIABLE)


def _has_flag(arguments: Sequence[str], flag: str) -> bool:
    return any(argument == flag or argument.startswith(f"{flag}=") for argument in arguments)


def _output_of(state: Message) -> str:
    output = text(state, "output") or text(state, "error")
    attached = [f"[{text(file, 'mime') or 'file'}]" for file in items(state, "attachments") if isinstance(file, dict)]
    return "\n".join([output, *attached] if output else attached)


def _has_failed(part: Message, state: Message) -> bool:
    tool = text(part, "tool")
    if state.get("status") == "error" or tool == INVALID_TOOL:
        return True
    # A command that failed has still "completed"; one that ran out of time has no exit code.
    told, exit_code = opencode_two.exit_code(part, state)
    return told and exit_code != 0
