"""OpenCode (`opencode run --format json`, and for live sessions the server of `opencode acp`, as of 1.18.33)."""

from __future__ import annotations

import functools
import os
import secrets
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Unpack, get_args

import attrs

from ... import errors, files
from ..._values import check_choice, check_flag
from ...engine.live_dialect import LiveDialect
from ...engine.resources import RunResources
from ...engine.transport import Transport
from ...portable.local import LocalSessions
from ...process.child import ChildProcess
from ...process.environment import host_environment
from ...process.host import host_identity
from ...process.launch import Setup
from ...runtime import DEFAULT_TIMEOUT, MARKER_PREFIX, CliOptions, RuntimeOptions
from ...types import (
    AgentErrorEvent,
    AgentExecuteParams,
    PromptSyntax,
)
from ..dialect import DialectRuntime, McpConfigMode, check_mcp_config
from ..shared import check_is_file, image_type, prompt_with_its_bom
from . import config as opencode_config
from . import mcp as opencode_mcp
from . import stderr as opencode_stderr
from . import two as opencode_two
from .config import CONFIG_VARIABLE, PERMISSION_VARIABLE
from .dialect import OpenCodeDialect
from .facts import FACTS
from .http_backend import HttpBackend
from .http_client import HOST, Door
from .live import OpenCodeLiveDialect
from .live_settings import SessionSettings, split_arguments
from .portable import OpenCodeSessions
from .store import SessionStore

# An outer OpenCode sets these for what it starts: they name its process, its kind of client and its workspace.
OUTER_RUN_VARIABLES = ("OPENCODE", "OPENCODE_PID", "OPENCODE_CLIENT", "OPENCODE_WORKSPACE_ID", "OPENCODE_TERMINAL")

# Some causes ("Model not found") are only in the log; stdout has "Unexpected server error" instead.
LOG_VARIABLES = {"OPENCODE_PRINT_LOGS": "1", "OPENCODE_LOG_LEVEL": "ERROR"}
# Only the log reports that an MCP server does not work, as a warning.
MCP_LOG_VARIABLES = {**LOG_VARIABLES, "OPENCODE_LOG_LEVEL": "WARN"}

AUTO = "--auto"  # In 1.17.18, not in 1.17.11.
OLD_AUTO = "--dangerously-skip-permissions"  # In 1.15.13, not in 1.3.2, which has neither.
BYPASS_BY_RULES = (
    "with rules that allow what it asks for by default (folders outside, repeated calls), and what your config asks "
    "for is still refused"
)
DATABASE_RACE = "opencode was started again: another of its processes was making its database"
PORT_TAKEN = "opencode was started again: another program had taken its port"

QUESTION_VARIABLE = "OPENCODE_ENABLE_QUESTION_TOOL"  # Without someone to ask, a question would wait forever.


class OpenCodeOptions(CliOptions, total=False):
    """Keywords of the constructor."""

    generate_title: bool
    mcp_config: McpConfigMode


class OpenCodeCliRuntime(DialectRuntime):
    """Runs the `opencode` CLI.

    Args:
        command: the program: a name, a path, or a sequence (program and first arguments).
        timeout: seconds of silence after which the run is ended. OpenCode is silent for about 70 s of retries.
        prompt_syntax: as in AgentExecuteParams; OpenCode has no syntax in a prompt on stdin, so both values mean the
            same.
        generate_title: let OpenCode ask its model for a title of each new session, a request that is missing from usage
            and cost. Otherwise the title is the beginning of the prompt.
        mcp_config: "inject" (none of the user's files is touched) or "merge-restore" (.opencode/opencode.json of the
            working directory is borrowed).
        options: as in CLIRuntimeBase (`tool_timeout`, `linger`, `max_pending_bytes`, `max_line_bytes`).
    """

    cli_facts = FACTS
    provider = FACTS.name
    install_hint = FACTS.install_hint
    most_restarts = 2  # One for the database, one for the flag.

    DIALECT = OpenCodeDialect
    dialect: OpenCodeDialect

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
        self._servers: Collection[str] = ()  # Names of the caller's MCP servers.
        self._mcp_env: dict[str, str] = {}
        self._bypass_flag: str | None = AUTO
        self._bypasses = False
        self._is_two = False
        self._read_only = False
        self._door = Door(0, "")

    def new_live_dialect(self) -> LiveDialect | None:
        return OpenCodeLiveDialect()

    def connect(self, setup: Setup) -> Transport:
        if not self.is_live:
            return super().connect(setup)
        return ChildProcess(setup, functools.partial(HttpBackend, door=lambda: self._door))

    def local_sessions(self, params: AgentExecuteParams) -> LocalSessions | None:
        if opencode_two.is_installed(self.command[0], _environment(params).get("PATH")):
            return None  # OpenCode 2 has other tables, and its export is untested.
        return OpenCodeSessions(
            command=self.command,
            env=self._launched_env,
            cwd=os.path.abspath(params.working_directory or os.getcwd()),
            new_marker=lambda: (MARKER_PREFIX + os.urandom(8).hex(), host_identity()),
        )

    # --- the command -----------------------------------------------------------------------------------------

    def check_params(self, params: AgentExecuteParams) -> None:
        """Raises ValueError for an image that is not a file, and for server names that OpenCode would confuse."""
        opencode_mcp.check_names(params.mcp_servers)
        for index, image in enumerate(params.images):
            check_is_file(f"images[{index}]", image)
            if self.is_live:
                image_type(f"images[{index}]", image)

    def resolve(self, params: AgentExecuteParams) -> AgentExecuteParams:
        environment = _environment(params)
        self._store = self.dialect.store = SessionStore(environment)
        self._is_two = self._is_two or opencode_two.is_installed(self.command[0], environment.get("PATH"))
        self._read_only = params.permission_mode == "read-only"
        if self._is_two and self.is_live:
            raise errors.RunSetupError(errors.UNSUPPORTED_OPTION, opencode_two.NO_LIVE_SESSIONS)
        if self._is_two and self._read_only:
            raise errors.RunSetupError(errors.UNSUPPORTED_OPTION, opencode_two.NO_READ_ONLY)
        return self._in_folder_of_session(params)

    def enter_run(self, params: AgentExecuteParams, resources: RunResources) -> None:
        if self.is_live:
            self._settle(params)
            return
        if params.system_prompt is not None:
            self._instructions = os.path.join(resources.temporary_folder(), "instructions.md")
            with open(self._instructions, "xb", opener=files.private) as file:
                file.write(params.system_prompt.encode())
        self._servers = params.mcp_servers
        self._bypasses = params.permission_mode == "bypass"
        project = os.path.abspath(params.working_directory or os.getcwd())
        if params.mcp_servers and self._borrows_config(params):
            self._mcp_env = opencode_mcp.borrow_config(params.mcp_servers, project, resources)
        else:
            opencode_mcp.repair_config(project)

    def _settle(self, params: AgentExecuteParams) -> None:
        """Prepare what the server is told about the session over HTTP; none of it is on the command line."""
        assert isinstance(self.dialect, OpenCodeLiveDialect)
        folder = os.path.abspath(params.working_directory or os.getcwd())
        opencode_mcp.repair_config(folder)
        self._servers = params.mcp_servers
        self._door = Door(_free_port(), secrets.token_urlsafe(32))
        self.dialect.settings = self._live_settings(params, folder)

    def stand_in(self, params: AgentExecuteParams) -> None:
        assert isinstance(self.dialect, OpenCodeLiveDialect)
        self.dialect.settings = self._live_settings(params, "/")

    def _live_settings(self, params: AgentExecuteParams, folder: str) -> SessionSettings:
        fields, _ = split_arguments(params.extra_args)
        agent = fields.get("agent")
        return SessionSettings(
            directory=folder,
            session_id=params.session_id,
            model=params.model,
            # The rules of "read-only" are set on one agent, so no other may be used, even if the session had another.
            agent=agent or (opencode_config.DEFAULT_AGENT if self._read_only else None),
            variant=fields.get("variant"),
            title=fields.get("title"),
            generates_title=self.generate_title,
            system=params.system_prompt,
            mode=params.permission_mode,
            asks=opencode_config.asks(params),
            servers=tuple(params.mcp_servers),
        )

    def _borrows_config(self, params: AgentExecuteParams) -> bool:
        return opencode_mcp.borrows_config(self.mcp_config, _environment(params))

    def _in_folder_of_session(self, params: AgentExecuteParams) -> AgentExecuteParams:
        """Run in the session's own folder: resumed elsewhere, OpenCode works, prints nothing and never exits."""
        if params.session_id is None or self._store is None:
            return params
        home = self._store.directory_of(params.session_id)
        if home is None:
            return params  # OpenCode itself reports an unknown session.
        if params.working_directory is None:
            return attrs.evolve(params, working_directory=home)
        if os.path.realpath(params.working_directory) != os.path.realpath(home):
            message = f"session {params.session_id} belongs to the folder {home} and can only be continued there"
            raise errors.RunSetupError(errors.SESSION_NOT_FOUND, message)
        return params

    def build_args(self, params: AgentExecuteParams) -> list[str]:
        if self.is_live:
            # Flags, because a user's configuration may make the server listen on the whole network.
            server = ["--hostname=127.0.0.1", f"--port={self._door.port}", "--mdns=false"]
            return ["acp", *server, *split_arguments(params.extra_args)[1]]
        # `--file` takes all words that follow it, so a flag must come next.
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
        if self.is_live:
            return self._live_env(params)
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

    def _live_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        env: dict[str, str | None] = {**dict.fromkeys(OUTER_RUN_VARIABLES), **self._server_variables()}
        if params.approve is not None:
            env[QUESTION_VARIABLE] = "1"
        overlays = opencode_config.live_overlays(params)
        overlays[CONFIG_VARIABLE] |= opencode_mcp.settings(params.mcp_servers, self.tool_timeout)
        if params.mcp_servers:
            overlays[CONFIG_VARIABLE]["mcp"] = opencode_mcp.entries(params.mcp_servers)
        current = _environment(params)
        for name, overlay in overlays.items():
            if overlay:
                env[name] = opencode_config.overlaid(name, current.get(name), overlay)
        return env

    def _server_variables(self) -> dict[str, str | None]:
        """Variables that let nobody but us talk to the server."""
        return {"OPENCODE_SERVER_PASSWORD": self._door.password, "OPENCODE_SERVER_USERNAME": None}

    def overriding_env(self, params: AgentExecuteParams) -> Mapping[str, str | None]:
        """Variables that the caller may also set: our values combine the caller's with what the run adds."""
        ours = self.build_env(params)
        merged = {name: ours[name] for name in params.env if name in ours and _is_merged(name)}
        return {**merged, **(self._server_variables() if self.is_live else {})}

    def stdin_data(self, params: AgentExecuteParams) -> bytes:
        """The prompt; a leading byte order mark is doubled, because OpenCode removes one."""
        return prompt_with_its_bom(params.prompt)

    def facts(self) -> dict[str, Any]:
        known = {"mcp_servers": [*self._servers], "is_two": self._is_two, "read_only": self._read_only}
        return {name: value for name, value in known.items() if value}

    # --- the end ---------------------------------------------------------------------------------------------

    def remedy(self, exit_code: int | None, said: str) -> AgentErrorEvent | None:
        """If the very first runs start at the same time, they fail because each tries to create the database. Before
        1.17.18 there is no `--auto`, and OpenCode 2 has no `--dir`."""
        if self.is_live:
            return self._live_remedy(said)
        if not self._is_two and opencode_two.refuses_dir(said):
            if self._read_only:
                return None  # Better no run than one that can write.
            self._is_two = True
            return AgentErrorEvent(opencode_two.STARTED_AGAIN, errors.CLI_WARNING)
        is_first = self._bypasses and self._bypass_flag == AUTO
        if is_first and opencode_stderr.refused_arguments(said) and not opencode_stderr.lists_flag(said, AUTO):
            return self._bypass_in_another_way(said)
        if not opencode_stderr.is_database_race(said):
            return None
        return AgentErrorEvent(DATABASE_RACE, errors.CLI_WARNING)

    def _live_remedy(self, said: str) -> AgentErrorEvent | None:
        if opencode_stderr.is_database_race(said):
            return AgentErrorEvent(DATABASE_RACE, errors.CLI_WARNING)
        return AgentErrorEvent(PORT_TAKEN, errors.CLI_WARNING) if opencode_stderr.is_port_taken(said) else None

    def _bypass_in_another_way(self, help_text: str) -> AgentErrorEvent:
        has_old_flag = opencode_stderr.lists_flag(help_text, OLD_AUTO)
        self._bypass_flag = OLD_AUTO if has_old_flag else None
        how = f"with {OLD_AUTO}" if has_old_flag else BYPASS_BY_RULES
        return AgentErrorEvent(f"opencode was started again {how}: it has no {AUTO}", errors.CLI_WARNING)


def _free_port() -> int:
    """A local port that nobody listens on. (`opencode acp` does not report a port that it chooses itself.)"""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _environment(params: AgentExecuteParams) -> dict[str, str]:
    """The host's variables, updated with the caller's."""
    both = {**host_environment(), **params.env}
    return {name: value for name, value in both.items() if value is not None}


def _is_merged(name: str) -> bool:
    return name in (CONFIG_VARIABLE, PERMISSION_VARIABLE)


def _has_flag(arguments: Sequence[str], flag: str) -> bool:
    return any(argument == flag or argument.startswith(f"{flag}=") for argument in arguments)
