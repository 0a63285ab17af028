"""Any agent that speaks the Agent Client Protocol, version 1."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Unpack, get_args

from ..._values import check_choice
from ...engine.live_dialect import LiveDialect
from ...engine.resources import RunResources
from ...engine.switchboard import Switchboard
from ...errors import UnsupportedOperationError
from ...process.environment import host_environment
from ...process.launch import Launch
from ...runtime import DEFAULT_TIMEOUT, CliOptions, RuntimeOptions
from ...types import AgentExecuteParams, PromptSyntax
from ..facts import home_of
from ..mcp_entries import check_distinct, with_results_as_objects
from ..shared import check_is_file
from ..sharing import SharingRuntime
from .dialect import AcpDialect, AcpSettings
from .mcp import acp_entries
from .profiles import KNOWN, Profile, profile_named, profile_of
from .prompt import media_type
from .switchboard import AcpSwitchboard

NEEDS_COMMAND = 'command is missing: what starts the agent, such as ["goose", "acp"]; or a profile: {}'


class AcpOptions(CliOptions, total=False):
    """Keywords of the constructor."""

    profile: str | None


class AcpRuntime(SharingRuntime):
    """Runs an agent that speaks ACP on its stdin and stdout.

    `execute`, `start` and `run` are live sessions of one turn: the protocol knows nothing else.

    Args:
        command: the program and its arguments: a name, a path, or a sequence. None: the profile's command.
        profile: the name of a known agent (see the topic `acp`); None: the name of the program. For an unknown agent,
            the rules of the protocol apply.
        timeout: seconds of silence after which the run is ended; None for no limit.
        prompt_syntax: "text" (a prompt `/clear` or `@file` reaches the model as written) or "cli" (the agent may take
            it for a command); a run's own `prompt_syntax` takes precedence.
        options: those of `CLIRuntimeBase`.
    """

    provider = "acp"
    DIALECT = AcpDialect

    def __init__(
        self,
        command: str | os.PathLike[str] | Sequence[str] | None = None,
        *,
        profile: str | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        prompt_syntax: PromptSyntax = "text",
        **options: Unpack[RuntimeOptions],
    ) -> None:
        check_choice("prompt_syntax", prompt_syntax, get_args(PromptSyntax))
        if options.get("transport") == "oneshot":
            raise UnsupportedOperationError("ACP has no other than live runs: transport must be 'auto' or 'live'")
        known = _checked_profile(profile)
        if command is None:
            if known is None:
                raise ValueError(NEEDS_COMMAND.format(", ".join(sorted(KNOWN))))
            command = known.command
        super().__init__(command, timeout, **options)
        self.profile = known or profile_of(self.command)
        self.prompt_syntax: PromptSyntax = prompt_syntax
        self.share_process = self.share_process and self.profile.shares
        self._password = secrets.token_urlsafe(32)  # One for all its processes, which sessions may share.
        if self.profile.install:
            self.install_hint = f"install it with: {self.profile.install}"  # type: ignore[misc]

    @property
    def program(self) -> str:
        return self.profile.name or os.path.basename(self.command[0])

    def reset_state(self) -> None:
        self._resumed_id: str | None = None

    def new_live_dialect(self) -> LiveDialect | None:
        return AcpDialect(self.profile, self.program, self.prompt_syntax)

    def new_switchboard(self) -> Switchboard:
        return AcpSwitchboard()

    def process_key(self, launch: Launch) -> Hashable:
        """Includes the folder and the servers: agents do not keep their grants and settings apart."""
        assert isinstance(self.dialect, AcpDialect)
        return super().process_key(launch), launch.cwd, json.dumps(self.dialect.settings.servers)

    def _goes_live(self, params: AgentExecuteParams) -> bool:
        return True

    def session_store(self, params: AgentExecuteParams) -> str | None:
        home = home_of({**host_environment(), **params.env})
        return f"{self.program} {os.path.realpath(home)}"

    # --- the command ------------------------------------------------------------------------------------------

    def check_params(self, params: AgentExecuteParams) -> None:
        check_distinct(params.mcp_servers)
        for index, image in enumerate(params.images):
            check_is_file(f"images[{index}]", image)
            try:
                media_type(image)
            except ValueError as error:
                raise ValueError(f"images[{index}]: {error}") from None

    def enter_run(self, params: AgentExecuteParams, resources: RunResources) -> None:
        self._settle(params, os.path.abspath(params.working_directory or os.getcwd()))

    def stand_in(self, params: AgentExecuteParams) -> None:
        self._settle(params, "/")

    def _settle(self, params: AgentExecuteParams, cwd: str) -> None:
        """Prepare what the agent is told about the session on stdin; none of it is on the command line."""
        assert isinstance(self.dialect, AcpDialect)
        self._resumed_id = params.session_id
        servers = params.mcp_servers
        self.dialect.settings = AcpSettings(
            cwd=cwd,
            session_id=params.session_id,
            model=params.model,
            mode=params.permission_mode,
            servers=acp_entries(with_results_as_objects(servers) if self.profile.results_as_objects else servers),
            trusted=frozenset(name for name, server in servers.items() if server.trust),
            instructions=params.system_prompt,
        )

    def build_args(self, params: AgentExecuteParams) -> list[str]:
        given = {argument.partition("=")[0] for argument in (*self.command, *params.extra_args)}
        ours = [argument for argument in self.profile.arguments if argument.partition("=")[0] not in given]
        return [*ours, *params.extra_args]

    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        variable = self.profile.password_variable
        return {**self.profile.env, **({variable: self._password} if variable else {})}

    def facts(self) -> dict[str, Any]:
        return {} if self._resumed_id is None else {"session_id": self._resumed_id}

    def recall(self, facts: Mapping[str, Any]) -> None:
        self.dialect.recall(facts)


def _checked_profile(name: str | None) -> Profile | None:
    if name is None:
        return None
    found = profile_named(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"profile must be one of {', '.join(sorted(KNOWN))}, not {name!r}")
    return found
