"""Gemini CLI, as of 0.61.0."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack, get_args

from ... import errors, files
from ..._values import check_choice, check_flag
from ...config_files.borrowed import BorrowedConfig, ConfigFile, repair
from ...engine.live_dialect import LiveDialect
from ...engine.meter import NO_LIMITS, limits_of
from ...engine.resources import RunResources
from ...engine.switchboard import Switchboard
from ...portable.local import LocalSessions
from ...process.environment import host_environment
from ...process.launch import Launch
from ...runtime import DEFAULT_TIMEOUT, CliOptions, RuntimeOptions
from ...types import (
    AgentErrorEvent,
    AgentExecuteParams,
    PermissionMode,
    PromptSyntax,
)
from ...versions import Standing, standing
from ..acp.dialect import AcpSettings
from ..acp.profiles import GEMINI
from ..acp.switchboard import AcpSwitchboard
from ..mcp_entries import EnvReferences, Servers, check_distinct
from ..shared import check_is_file
from ..sharing import SharingRuntime
from .dialect import GeminiDialect
from .facts import FACTS, home_folder, settings_file, state_folder, trusts
from .failures import (
    policy_flag_is_unknown,
)
from .live import GeminiLiveDialect
from .mcp import gemini_entries, live_entries, missing_programs
from .policy import rule_for_plan_mode
from .portable import GeminiSessions
from .prompt import Workspace, escape_at_names, mention, without_command
from .record import ChatRecord
from .sessions import LiveSessionGuard, SessionGuard

MAX_PROMPT_BYTES = 8 * 1024 * 1024  # The CLI cuts its stdin here, with a warning only on stderr.
MAX_IMAGE_BYTES = 20 * 1024 * 1024  # A larger file is left out, with a note to the model in its place.
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".heic", ".heif"})

PERMISSION_ARGS: Mapping[PermissionMode, tuple[str, ...]] = {
    "default": (),
    "read-only": ("--approval-mode=plan",),
    "accept-edits": ("--approval-mode=auto_edit",),
    "bypass": ("--approval-mode=yolo",),
}

# In headless mode the CLI approves every plan itself and continues in yolo mode: the model need only write a plan and
# call exit_plan_mode, from plan mode or (after enter_plan_mode) from any other. So we block the exit from plan mode.
DENIED_TOOLS: Mapping[PermissionMode, tuple[str, ...]] = {
    "default": ("enter_plan_mode", "exit_plan_mode"),
    "read-only": ("exit_plan_mode", "run_shell_command", "write_file", "replace"),
    "accept-edits": ("enter_plan_mode", "exit_plan_mode"),
    "bypass": (),
}
POLICY = """\
[[rule]]
toolName = [{tools}]
decision = "deny"
priority = 999
"""
POLICY_TOO_OLD = (
    "this gemini has no --admin-policy: nothing keeps the model from leaving its permission mode by way of plan mode"
)
CONFIG_READ = b'"type":"init"'  # By then the settings have been read and the MCP servers started.

# Another gemini sets these for the programs it starts; a run inside it must not inherit them.
NESTING_VARIABLES = ("GEMINI_CLI", "GEMINI_CLI_WORKTREE_HANDLED")

# In an untrusted folder Gemini silently leaves out the servers.
NOT_STARTED = "nobody has trusted this folder, and with trust_workspace=False gemini starts no servers in it"

INCLUDE_FLAG = "--include-directories"
SYSTEM_PROMPT = "<system_instructions>\n{instructions}\n</system_instructions>\n\n{prompt}"


class GeminiOptions(CliOptions, total=False):
    """Keywords of the constructor."""

    trust_workspace: bool


class GeminiCliRuntime(SharingRuntime):
    """Runs Gemini CLI (`gemini --output-format=stream-json`).

    Thoughts, costs, the stop reason and what sub-agents do are not in its output, so they are not in ours.

    Args:
        command: the program, a name on PATH, a path, or a sequence (program and first arguments).
        timeout: seconds of silence after which the run is ended; None for no limit.
        trust_workspace: work in a folder that nobody has trusted yet, because the caller named it; its settings and
            its `.env` are read. False leaves that to the CLI, which refuses (`untrusted_directory`).
        prompt_syntax: "text" (a prompt `/clear` or `@file` reaches the model as written) or "cli" (the CLI runs
            /commands and reads @files); a run's own `prompt_syntax` takes precedence.
        options: those of `CLIRuntimeBase`.
    """

    cli_facts = FACTS
    provider = FACTS.name
    install_hint = FACTS.install_hint
    DIALECT = GeminiDialect

    def __init__(
        self,
        command: str | os.PathLike[str] | Sequence[str] = "gemini",
        *,
        timeout: float | None = DEFAULT_TIMEOUT,
        trust_workspace: bool = True,
        prompt_syntax: PromptSyntax = "text",
        **options: Unpack[RuntimeOptions],
    ) -> None:
        check_flag("trust_workspace", trust_workspace)
        check_choice("prompt_syntax", prompt_syntax, get_args(PromptSyntax))
        self.trust_workspace = trust_workspace
        self.prompt_syntax: PromptSyntax = prompt_syntax
        super().__init__(command, timeout, **options)

    def reset_state(self) -> None:
        self._resumed_id: str | None = None
        self._mcp_env: dict[str, str] = {}
        self._mcp_names: tuple[str, ...] = ()
        self._policy_file: str | None = None
        self._policy_unsupported = False
        self._images: list[str] = []  # Our copies, where the CLI may read them.
        self._read_only = False

    def local_sessions(self, params: AgentExecuteParams) -> LocalSessions:
        cwd = os.path.abspath(params.working_directory or os.getcwd())
        return GeminiSessions(os.path.join(cwd, state_folder({**host_environment(), **params.env})), cwd)

    def new_live_dialect(self) -> LiveDialect | None:
        return GeminiLiveDialect(self.prompt_syntax)

    def new_switchboard(self) -> Switchboard:
        return AcpSwitchboard()

    def process_key(self, launch: Launch) -> Hashable:
        """Includes the folder and the servers: a folder's `.env` and a grant for an MCP tool reach a whole process."""
        # A pool asks before there is a session.
        servers = self.dialect.settings.servers if isinstance(self.dialect, GeminiLiveDialect) else ()
        return super().process_key(launch), launch.cwd, json.dumps(servers)

    # --- the command line -----------------------------------------------------------------------------------

    def check_params(self, params: AgentExecuteParams) -> None:
        check_distinct(params.mcp_servers)
        size = len(params.prompt.encode()) + len((params.system_prompt or "").encode())
        if size > MAX_PROMPT_BYTES:
            raise ValueError(f"prompt is {size} bytes long (with system_prompt): gemini reads {MAX_PROMPT_BYTES}")
        for index, image in enumerate(params.images):
            _check_image(f"images[{index}]", Path(image))

    def enter_run(self, params: AgentExecuteParams, resources: RunResources) -> None:
        self._resumed_id = params.session_id
        self._read_only = params.permission_mode == "read-only"
        if params.session_id is not None and (params.session_id == "latest" or params.session_id.isdecimal()):
            message = (
                f"{params.session_id!r} is not a session id: gemini would read it as a position in its list of sessions"
            )
            raise errors.RunSetupError(errors.SESSION_NOT_FOUND, message)
        project = os.path.abspath(params.working_directory or os.getcwd())
        settings = settings_file(project)
        if self.is_live:
            repair(settings, project)
            self._guard_live_session(params, project, resources)
            self._settle(params, project)
            if resources.functions:
                rule = rule_for_plan_mode(resources.functions)
                self._policy_file = resources.temporary_file(".toml", rule.encode())
                _check_no_comma(self._policy_file)
            return
        if not params.mcp_servers:
            repair(settings, project)  # Must come first: it needs the folder's lock, which the guard takes.
        self._guard_session(params, project, resources)
        if isinstance(self.dialect, GeminiDialect):
            self.dialect.record = ChatRecord({**host_environment(), **params.env}, project)
            self.dialect.is_limited = limits_of(params) != NO_LIMITS
        if params.mcp_servers:
            self._inject_mcp(params.mcp_servers, project, settings, resources)
        denied = DENIED_TOOLS[params.permission_mode]
        if not denied and not params.images:
            return
        folder = resources.temporary_folder()
        _check_no_comma(folder)
        if denied:
            self._policy_file = os.path.join(folder, "policy.toml")
            tools = ", ".join(f'"{tool}"' for tool in denied)
            Path(self._policy_file).write_text(POLICY.format(tools=tools), encoding="utf-8")
        if params.images:
            self._images = _copied(params.images, os.path.join(folder, "images"))

    def _guard_session(self, params: AgentExecuteParams, project: str, resources: RunResources) -> None:
        """Comes before the loan of the settings: the end of one loan ends them all, and the guard must see it first."""
        guard = SessionGuard({**host_environment(), **params.env}, project)
        resources.callback(guard.close)
        resources.borrow(guard)
        guard.put_right()
        if not params.mcp_servers:  # Borrowing the settings also lets only one run start at a time.
            guard.wait_for_turn(resources.pause)
        if params.session_id is not None:
            guard.protect(params.session_id)

    def _guard_live_session(self, params: AgentExecuteParams, project: str, resources: RunResources) -> None:
        guard = LiveSessionGuard({**host_environment(), **params.env}, project)
        resources.callback(guard.close)
        resources.borrow(guard)
        guard.put_right()
        guard.wait_for_turn(resources.pause)
        if params.session_id is not None:
            guard.protect(params.session_id)
            if not guard.has_conversation:
                # We do not even ask for it: Gemini would create a file of that name.
                message = f"gemini has no session {params.session_id}"
                raise errors.RunSetupError(errors.SESSION_NOT_FOUND, message)

    def _settle(self, params: AgentExecuteParams, project: str) -> None:
        """Prepare what Gemini is told about the session on stdin; none of it is on the command line."""
        assert isinstance(self.dialect, GeminiLiveDialect)
        self._mcp_names = tuple(sorted(params.mcp_servers))
        environ = {name: value for name, value in {**host_environment(), **params.env}.items() if value is not None}
        if self.trust_workspace or trusts(environ, project):
            failed = missing_programs(params.mcp_servers, environ.get("PATH"))
        else:
            failed = dict.fromkeys(params.mcp_servers, NOT_STARTED)
        # The path without links, as a one-shot process sees it: sessions belong to a folder by its name.
        self.dialect.settings = self._live_settings(params, os.path.realpath(project), failed)
        self.dialect.record = ChatRecord(environ, project)

    def _live_settings(self, params: AgentExecuteParams, cwd: str, missing: Mapping[str, str]) -> AcpSettings:
        return AcpSettings(
            cwd=cwd,
            session_id=params.session_id,
            model=params.model,
            mode=params.permission_mode,
            servers=live_entries(params.mcp_servers),
            trusted=frozenset(name for name, server in params.mcp_servers.items() if server.trust),
            failed_servers=missing,
            instructions=params.system_prompt,
        )

    def stand_in(self, params: AgentExecuteParams) -> None:
        assert isinstance(self.dialect, GeminiLiveDialect)
        self.dialect.settings = self._live_settings(params, "/", {})

    def _inject_mcp(self, servers: Servers, project: str, settings: str, resources: RunResources) -> None:
        """Gemini has no flag for servers, so we borrow the workspace's settings until Gemini has read them."""
        hide = EnvReferences("$", "${{{}}}")
        entries = gemini_entries(servers, hide)
        loan = BorrowedConfig(ConfigFile(settings, "json", "mcpServers", entries, CONFIG_READ, project=project))
        loan.take(resources.pause)
        resources.borrow(loan)
        self._mcp_env = hide.variables
        self._mcp_names = tuple(sorted(servers))

    def build_args(self, params: AgentExecuteParams) -> list[str]:
        if self.is_live:
            policy = [] if self._policy_file is None else [f"--admin-policy={self._policy_file}"]
            return ["--acp", *policy, *params.extra_args]
        # `--flag=value` throughout: no value can be taken for a flag.
        args = ["--output-format=stream-json"]
        if params.session_id is not None:
            args.append(f"--resume={params.session_id}")
        if params.model is not None:
            args.append(f"--model={params.model}")
        args += PERMISSION_ARGS[params.permission_mode]
        if self._policy_file is not None and not self._policy_unsupported:
            args.append(f"--admin-policy={self._policy_file}")
        if self._images:
            args.append(f"{INCLUDE_FLAG}={os.path.dirname(self._images[0])}")
        return [*args, *params.extra_args]

    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        return {
            **dict.fromkeys(NESTING_VARIABLES),
            # Its launcher swallows SIGTERM, and when killed leaves the real process behind, holding the pipes.
            "GEMINI_CLI_NO_RELAUNCH": "true",
            **(GEMINI.env if self.is_live else {}),
            "GEMINI_CLI_TRUST_WORKSPACE": "true" if self.trust_workspace else None,
            **self._mcp_env,
        }

    def stdin_data(self, params: AgentExecuteParams) -> bytes:
        prompt = params.prompt
        if (params.prompt_syntax or self.prompt_syntax) == "text":
            prompt = self._as_text(params, prompt)
        if params.system_prompt is not None:
            # The CLI can replace its system prompt by a file (GEMINI_SYSTEM_MD), but cannot add to it for one run.
            instructions = self._without_at_names(params, params.system_prompt)
            prompt = SYSTEM_PROMPT.format(instructions=instructions, prompt=prompt)
        if self._images:
            prompt = f"{prompt}\n\n{' '.join(map(mention, self._images))}"
        data = prompt.encode()
        if len(data) > MAX_PROMPT_BYTES:
            message = (
                f"with what has to be added to it, the prompt is longer than gemini reads ({MAX_PROMPT_BYTES} bytes)"
            )
            raise errors.RunSetupError(errors.UNSUPPORTED_OPTION, message)
        return data

    def _as_text(self, params: AgentExecuteParams, prompt: str) -> str:
        return without_command(self._without_at_names(params, prompt))

    def _without_at_names(self, params: AgentExecuteParams, prompt: str) -> str:
        if "@" not in prompt:
            return prompt
        if self._images:
            # If one name is expanded (an image), the CLI rewrites the text around all of them.
            return escape_at_names(prompt, lambda name: True)
        return escape_at_names(prompt, _workspace(params).would_expand)

    def facts(self) -> dict[str, Any]:
        known = {"session_id": self._resumed_id, "mcp_servers": [*self._mcp_names]}
        return {name: value for name, value in known.items() if value}

    def remedy(self, exit_code: int | None, said: str) -> AgentErrorEvent | None:
        # Not for "read-only": better no run than one that can write. Not with images: such a CLI (0.20) loses them
        # without a word. And not if it is known to be too old: its shell tool refuses most commands.
        if self._policy_unsupported or self._read_only or self._images or not policy_flag_is_unknown(said):
            return None
        if standing(FACTS, self.cli_version()) is Standing.TOO_OLD:
            return None
        self._policy_unsupported = True
        return AgentErrorEvent(POLICY_TOO_OLD, errors.CLI_WARNING)


def _check_no_comma(path: str) -> None:
    if "," in path:
        message = f"gemini cannot be given a path with a comma ({path}): set TMPDIR"
        raise errors.RunSetupError(errors.UNSUPPORTED_OPTION, message)


def _check_image(field: str, path: Path) -> None:
    check_is_file(field, path)
    if path.suffix.lower() not in IMAGE_SUFFIXES:
        known = ", ".join(sorted(IMAGE_SUFFIXES))
        raise ValueError(f"{field}: gemini recognises an image by its suffix, which must be one of {known}: {path}")
    if path.stat().st_size > MAX_IMAGE_BYTES:
        raise ValueError(f"{field}: gemini takes no image of over {MAX_IMAGE_BYTES} bytes: {path}")


def _copied(images: Sequence[str | os.PathLike[str]], folder: str) -> list[str]:
    """Copies under plain names, because the CLI reads no files outside its folders and none that git ignores."""
    os.mkdir(folder, 0o700)
    copies = []
    for number, image in enumerate(images, 1):
        copies.append(os.path.join(folder, f"image-{number}{Path(image).suffix.lower()}"))
        Path(copies[-1]).write_bytes(files.read_regular(image, MAX_IMAGE_BYTES, follow=True))
    return copies


def _workspace(params: AgentExecuteParams) -> Workspace:
    here = os.path.abspath(params.working_directory or os.getcwd())
    environ = {**host_environment(), **params.env}
    included = [os.path.join(here, folder) for folder in _included_folders(params.extra_args)]
    return Workspace([here, *included], home_folder(environ))


def _included_folders(arguments: Sequence[str]) -> Iterator[str]:
    for argument, following in itertools.pairwise([*arguments, ""]):
        if argument == INCLUDE_FLAG:
            yield from following.split(",")
        elif argument.startswith(f"{INCLUDE_FLAG}="):
            yield from argument.removeprefix(f"{INCLUDE_FLAG}=").split(",")
