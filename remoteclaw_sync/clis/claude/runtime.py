"""Claude Code, as of 2.1.326."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack, get_args

from ... import files
from ..._values import check_choice
from ...config_files.private_file import PrivateFile
from ...engine.live_dialect import LiveDialect
from ...engine.resources import RunResources
from ...portable.local import LocalSessions
from ...process.environment import host_environment
from ...runtime import DEFAULT_TIMEOUT, RuntimeOptions
from ...types import AgentExecuteParams, PermissionMode, PromptSyntax
from ..dialect import DialectRuntime
from ..mcp_entries import EnvReferences, Servers, check_distinct, tool_prefix_name
from .dialect import ClaudeDialect
from .facts import FACTS, state_folder
from .live import LIVE_ARGS, LIVE_ENV, ClaudeLiveDialect
from .mcp import claude_entries
from .messages import answer_schema, image_media_type, looks_like_syntax, user_line
from .portable import ClaudeSessions

OUTPUT_ARGS = ("-p", "--output-format=stream-json", "--verbose", "--include-partial-messages")

# "read-only" is not Claude's plan mode, which still runs shell commands that a rule in the user's settings allows.
# Tools that do not exist cannot be allowed. Glob and Grep are off by default, since the shell can do as much.
READ_ONLY_TOOLS = "Read,Glob,Grep,WebFetch,WebSearch,Agent,Skill"
PERMISSION_ARGS: Mapping[PermissionMode, tuple[str, ...]] = {
    "default": (),
    "read-only": ("--permission-mode=default", f"--tools={READ_ONLY_TOOLS}"),
    "accept-edits": ("--permission-mode=acceptEdits",),
    "bypass": ("--permission-mode=bypassPermissions",),
}

# Claude passes these to the programs it starts. If another Claude inherits them, they make it a child session (which is
# not stored, so it cannot be resumed), or connect it to the outer one's editor.
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

MAX_SCHEMA_ARGUMENT = 100_000  # Characters; Linux accepts no argument over 128 KiB.
CONFIG_READ = b'"subtype":"init"'  # Printed when the MCP servers of the configuration have been started.


class ClaudeCliRuntime(DialectRuntime):
    """Runs Claude Code (`claude -p`).

    Args:
        command: the program, a name on PATH, a path, or a sequence (program and first arguments).
        timeout: seconds of silence after which the run is ended; None for no limit.
        prompt_syntax: "text" (a prompt `/clear` or `@file` reaches the model as written) or "cli" (Claude runs
            /commands and reads @files); a run's own `prompt_syntax` takes precedence.
        options: those of `CLIRuntimeBase`; `linger` is at least 7 s while a background shell runs. Claude 2.1.197
            ends such a shell after 5 s, 2.1.326 waits as long as `linger` allows.
    """

    cli_facts = FACTS
    provider = FACTS.name
    install_hint = FACTS.install_hint
    DIALECT = ClaudeDialect

    # The state of one run, set in its copy by `enter_run`.
    _system_prompt_file: str | None = None
    _mcp_args: tuple[str, ...] = ()
    _mcp_env: Mapping[str, str] = {}
    _mcp_names: tuple[str, ...] = ()
    _has_limits = False

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

    def new_live_dialect(self) -> LiveDialect | None:
        return ClaudeLiveDialect(self.prompt_syntax)

    def native_schema(self, schema: Mapping[str, Any], from_start: bool) -> dict[str, Any] | None:
        if not from_start:
            return None  # A process has one schema for all its turns, or none.
        from .answer_schema import accepted  # Most runs do not need it.

        made = accepted(schema)
        return None if made is None or len(json.dumps(made)) > MAX_SCHEMA_ARGUMENT else made

    def local_sessions(self, params: AgentExecuteParams) -> LocalSessions | None:
        cwd = os.path.abspath(params.working_directory or os.getcwd())
        return ClaudeSessions(os.path.join(cwd, state_folder({**host_environment(), **params.env})), cwd)

    # --- the command line -----------------------------------------------------------------------------------

    def check_params(self, params: AgentExecuteParams) -> None:
        if params.mcp_servers:
            check_distinct(params.mcp_servers)
        for image in params.images:
            image_media_type(image)

    def enter_run(self, params: AgentExecuteParams, resources: RunResources) -> None:
        if params.system_prompt is not None:
            # In a file, because an argument may not exceed 128 KiB and every user of the machine can read it.
            self._system_prompt_file = resources.temporary_file(".txt", params.system_prompt.encode())
        self._has_limits = not self.is_live and bool(_limit_args(params))
        if params.mcp_servers:
            self._inject_mcp(params.mcp_servers, resources)

    def _inject_mcp(self, servers: Servers, resources: RunResources) -> None:
        """Pass them in a private file, not as arguments, because of secrets; removed once Claude has read it."""
        hide = EnvReferences("${", "${{{}}}")
        config = json.dumps({"mcpServers": claude_entries(servers, hide)}).encode()
        file = PrivateFile(files.temporary_folder(), ".mcp.json", config, CONFIG_READ)
        resources.borrow(file)
        trusted = [f"mcp__{tool_prefix_name(name)}" for name, server in servers.items() if server.trust]
        allow = (f"--allowedTools={','.join(trusted)}",) if trusted else ()
        self._mcp_args = (f"--mcp-config={file.path}", *allow)
        # Otherwise a server that takes over 2 s is missing from the first request.
        self._mcp_env = {"MCP_CONNECTION_NONBLOCKING": "0", **hide.variables}
        self._mcp_names = tuple(sorted(servers))

    def build_args(self, params: AgentExecuteParams) -> list[str]:
        # `--flag=value` throughout: no value can be taken for a flag. (The MCP flags are variadic, so `=` is required.)
        args = [*OUTPUT_ARGS]
        if self.is_live:
            args.extend(LIVE_ARGS)
        elif self._structured(params):
            args.append("--input-format=stream-json")
        if params.session_id is not None:
            args.append(f"--resume={params.session_id}")
        if params.model is not None:
            args.append(f"--model={params.model}")
        if self._system_prompt_file is not None:
            args.append(f"--append-system-prompt-file={self._system_prompt_file}")
        elif params.system_prompt is not None:
            args.append(f"--append-system-prompt={params.system_prompt}")
        if not self.is_live:  # There they would count for the process, and not for the turn.
            args.extend(_limit_args(params))
        schema = answer_schema(params)
        if schema is not None and not self.is_live:
            args.append(f"--json-schema={json.dumps(schema)}")
        return [*args, *PERMISSION_ARGS[params.permission_mode], *self._mcp_args, *params.extra_args]

    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        return {**dict.fromkeys(NESTING_VARIABLES), **self._mcp_env, **(LIVE_ENV if self.is_live else {})}

    def stdin_data(self, params: AgentExecuteParams) -> bytes:
        if self._structured(params):
            return user_line(params.prompt, params.images, as_text=self._as_text(params))
        return params.prompt.encode()

    def _as_text(self, params: AgentExecuteParams) -> bool:
        return (params.prompt_syntax or self.prompt_syntax) == "text"

    def _structured(self, params: AgentExecuteParams) -> bool:
        """Whether the prompt has to be sent as a JSON line: for images, or if Claude would see syntax in it."""
        return bool(params.images) or (looks_like_syntax(params.prompt) and self._as_text(params))

    def facts(self) -> dict[str, Any]:
        servers = {"mcp_servers": [*self._mcp_names]} if self._mcp_names else {}
        return {**servers, **({"limits": True} if self._has_limits else {})}


def _limit_args(params: AgentExecuteParams) -> list[str]:
    """Limits that Claude enforces itself: it knows its costs better than its lines show."""
    turns = [] if params.max_turns is None else [f"--max-turns={params.max_turns}"]
    return turns if params.max_cost_usd is None else [*turns, f"--max-budget-usd={params.max_cost_usd:.10f}"]
