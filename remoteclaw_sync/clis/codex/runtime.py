"""Codex (`codex exec --json`, and for live sessions `codex app-server`, as of 0.169.0)."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack, get_args

from ... import errors
from ..._values import check_choice, check_flag
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
    AgentUsage,
    PromptSyntax,
)
from ..dialect import McpConfigMode, check_mcp_config
from ..mcp_entries import Servers, check_distinct
from ..shared import image_type, prompt_with_its_bom
from ..sharing import SharingRuntime
from . import mcp as codex_mcp
from .app_server import KEY_IN_MEMORY, SERVER_CONFIG, CodexLiveDialect, ThreadSettings
from .dialect import CodexDialect
from .facts import FACTS, codex_home
from .litter import absent_folders, remove_empty
from .mcp import inline_toml
from .portable import CodexSessions
from .rollout import ThreadCounter, read_record
from .switchboard import CodexSwitchboard

# Codex treats any other id as a thread's name and, if no thread has it, silently starts a new one.
THREAD_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

# `-s` is an option of `exec`, not of `resume`, and a resumed thread does not remember it.
SANDBOX_ARGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "read-only": ("--sandbox=read-only",),
    "accept-edits": ("--sandbox=workspace-write",),
    "bypass": ("--dangerously-bypass-approvals-and-sandbox",),
}

NO_ENDLESS_RETRIES = "features.unbounded_connection_retries=false"

# An outer Codex sets these for the commands it runs; they describe its thread, its call and its sandbox.
OUTER_RUN_VARIABLES = (
    "CODEX_THREAD_ID",
    "CODEX_SESSION_ID",
    "CODEX_TOOL_CALL_ID",
    "CODEX_PERMISSION_PROFILE",
    "CODEX_SANDBOX",
    "CODEX_SANDBOX_NETWORK_DISABLED",
    "CODEX_CI",
)

NO_PROFILE_FILES = (
    "codex was started again with its config.toml borrowed for the MCP servers: it knows no profile files, which came "
    "with 0.134.0"
)


class CodexOptions(CliOptions, total=False):
    """Keywords of the constructor."""

    wait_for_network: bool
    mcp_config: McpConfigMode


class CodexCliRuntime(SharingRuntime):
    """Runs the `codex` CLI.

    Args:
        command: the program: a name, a path, or a sequence (program and first arguments).
        timeout: seconds of silence after which the run is ended; lines that only report another retry do not count.
        prompt_syntax: as in AgentExecuteParams. The only syntax is `$name`, which adds the instructions of a skill;
            "text" prevents that in live runs and sessions, but nothing prevents it in `codex exec`.
        wait_for_network: whether Codex keeps trying while the server cannot be reached, until the timeout ends it
            (Codex's own default); if not, such a run fails after its few retries, with the cause.
        mcp_config: "inject" (none of the user's files is touched) or "merge-restore" (config.toml is borrowed).
        options: as in CLIRuntimeBase (`tool_timeout`, `linger`, `max_pending_bytes`, `max_line_bytes`).
    """

    cli_facts = FACTS
    provider = FACTS.name
    install_hint = FACTS.install_hint
    most_restarts = 2  # One without profile files, one without a server that fails.

    DIALECT = CodexDialect

    keeps_servers_apart = True

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
        self._used_before: AgentUsage | None = AgentUsage()  # In this thread; None if it is not known.
        self._instructions_ignored = False
        self._images: list[str] = []
        self._mcp_args: list[str] = []
        self._schema_file: str | None = None
        self._servers: Servers = {}
        self._failed_servers: set[str] = set()
        self._has_profile_files = True
        self._api_key: str | None = None

    def new_live_dialect(self) -> LiveDialect | None:
        return CodexLiveDialect(self.prompt_syntax)

    def new_switchboard(self) -> Switchboard:
        return CodexSwitchboard(self._api_key)

    def process_key(self, launch: Launch) -> Hashable:
        """Each thread has its own folder. The process's folder matters only if there are relative paths."""
        paths = (launch.argv[0] if os.sep in launch.argv[0] else "/", launch.env.get("CODEX_HOME") or "/")
        is_at_home = not all(map(os.path.isabs, paths))
        return super().process_key(launch), launch.cwd if is_at_home else None

    def local_sessions(self, params: AgentExecuteParams) -> LocalSessions:
        return CodexSessions(str(_codex_home(params)))

    # --- the command -----------------------------------------------------------------------------------------

    def check_params(self, params: AgentExecuteParams) -> None:
        """Raises ValueError for an image that cannot be shown: Codex would only mention that to the model."""
        codex_mcp.check_names(params.mcp_servers)
        check_distinct(params.mcp_servers)
        for index, image in enumerate(params.images):
            image_type(f"images[{index}]", image)

    def native_schema(self, schema: Mapping[str, Any], from_start: bool) -> dict[str, Any] | None:
        from .strict_schema import strict  # Most runs do not need it.

        return strict(schema)

    def enter_run(self, params: AgentExecuteParams, resources: RunResources) -> None:
        """Look up the thread to resume, make the images' paths safe, and add the MCP servers."""
        self._find_thread(params)
        if self.is_live:
            self._settle(params, resources)
            return
        self._images = _safe_image_paths(params, resources)
        if params.output_type is not None and params.output_type.native is not None:
            schema = json.dumps(params.output_type.native).encode()
            self._schema_file = resources.temporary_file(".json", schema)
        self._servers = {
            name: server for name, server in params.mcp_servers.items() if name not in self._failed_servers
        }
        self._mcp_args = []
        home = _codex_home(params)
        if isinstance(self.dialect, CodexDialect):
            self.dialect.counter = ThreadCounter(home)
            self.dialect.is_limited = limits_of(params) != NO_LIMITS
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

    def _settle(self, params: AgentExecuteParams, resources: RunResources) -> None:
        """Prepare what the app server is told about the thread on stdin; none of it is on the command line."""
        assert isinstance(self.dialect, CodexLiveDialect)
        cwd = os.path.abspath(params.working_directory or os.getcwd())
        tidy_up = functools.partial(remove_empty, absent_folders(cwd))
        resources.callback(tidy_up)
        resources.after_interrupt.append(tidy_up)
        self._api_key = _key(params)
        self.dialect.settings = ThreadSettings(
            cwd=cwd,
            model=params.model,
            mode=params.permission_mode,
            has_approver=params.approve is not None,
            instructions=params.system_prompt,
            config=self._thread_config(params, cwd),
            servers=codex_mcp.thread_entries(params.mcp_servers, _codex_home(params), tool_timeout=self.tool_timeout),
            logs_in=self._api_key is not None,
        )

    def stand_in(self, params: AgentExecuteParams) -> None:
        assert isinstance(self.dialect, CodexLiveDialect)
        self.dialect.settings = ThreadSettings(
            cwd="/",
            model=params.model,
            mode=params.permission_mode,
            has_approver=params.approve is not None,
            instructions=params.system_prompt,
        )

    def _thread_config(self, params: AgentExecuteParams, cwd: str) -> dict[str, Any]:
        """Keep Codex from recording trust in this folder in config.toml, as it does when it may write there."""
        env = {**host_environment(), **params.env}
        is_trusted = FACTS.trusts is not None and FACTS.trusts(env, cwd)
        if params.permission_mode in ("default", "read-only") or is_trusted:
            return {}
        return {"projects": {cwd: {"trust_level": "untrusted"}}}

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
        if self.is_live:
            return self._server_args(params)
        # Extra arguments come first: a variadic one (`-i FILE...`) at the end would swallow `resume`.
        args = ["exec", *params.extra_args, "--json", "--color=never", "--skip-git-repo-check"]
        if params.model is not None:
            args.append(f"--model={params.model}")
        args += SANDBOX_ARGS[params.permission_mode]
        args += [f"--config={override}" for override in self._config_overrides(params)]
        if self._schema_file is not None:
            args.append(f"--output-schema={self._schema_file}")
        args += [*self._mcp_args, *(f"--image={path}" for path in self._images)]
        if params.session_id is not None:
            return [*args, "resume", "--", params.session_id.lower(), "-"]
        return [*args, "--", "-"]

    def _server_args(self, params: AgentExecuteParams) -> list[str]:
        config = [*SERVER_CONFIG]
        if not self.wait_for_network:
            config.append(NO_ENDLESS_RETRIES)
        if _key(params) is not None:
            config.append(KEY_IN_MEMORY)
        return ["app-server", *(f"--config={setting}" for setting in config), *params.extra_args]

    def _config_overrides(self, params: AgentExecuteParams) -> Iterator[str]:
        """Settings for this run, on top of the user's files. Never a secret: other users can read arguments."""
        if params.system_prompt is not None:
            yield f"developer_instructions={inline_toml(params.system_prompt)}"
        if not self.wait_for_network:
            yield NO_ENDLESS_RETRIES

    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        return dict.fromkeys(OUTER_RUN_VARIABLES)

    def stdin_data(self, params: AgentExecuteParams) -> bytes:
        """The prompt; a leading byte order mark is doubled, because Codex removes one."""
        return prompt_with_its_bom(params.prompt)

    def facts(self) -> dict[str, Any]:
        dialect = self.dialect
        logs_in = isinstance(dialect, CodexLiveDialect) and dialect.settings.logs_in
        login = {"login": True} if logs_in else {}
        if self._asked_thread is None:
            return login
        return {
            **login,
            "thread_id": self._asked_thread,
            "used_before": None if self._used_before is None else self._used_before.to_dict(),
            "instructions_ignored": self._instructions_ignored,
        }

    def remedy(self, exit_code: int | None, said: str) -> AgentErrorEvent | None:
        """An MCP server that does not start ends Codex, so start again without it. (Otherwise Codex would not wait for
        any server.)

        Before 0.134 there are no profile files: start again with config.toml borrowed.
        """
        if self._has_profile_files and codex_mcp.profile_is_unknown(said, self._mcp_args):
            self._has_profile_files = False
            return AgentErrorEvent(NO_PROFILE_FILES, errors.CLI_WARNING)
        failed = codex_mcp.failed_servers(said, self._servers)
        if not failed:
            return None
        self._failed_servers |= set(failed)
        reasons = "; ".join(f"{reason:.300}" for reason in failed.values())
        return AgentErrorEvent(f"MCP server could not be used: {reasons}", errors.MCP_SERVER_FAILED)


def _codex_home(params: AgentExecuteParams) -> Path:
    """Where the CLI of this run keeps its threads."""
    return Path(params.working_directory or ".", codex_home({**host_environment(), **params.env}))


def _key(params: AgentExecuteParams) -> str | None:
    """The key in the environment: `exec` reads it itself, the app server does not."""
    env = {**host_environment(), **params.env}
    found = (env.get(name) for name in FACTS.key_variables)
    return next((key for key in found if key), None)


def _safe_image_paths(params: AgentExecuteParams, resources: RunResources) -> list[str]:
    """Absolute paths without commas, because `--image` splits its value at them."""
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
