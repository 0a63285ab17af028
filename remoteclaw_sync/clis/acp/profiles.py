"""What is known about agents that speak ACP. Where nothing is known, the protocol's own rules apply (`Profile()`)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

import attrs

from ...types import ErrorSubtype, PermissionMode

# Agents' names for modes that do what one of our modes asks for. The first one that an agent offers is used.
USUAL_MODES: Mapping[PermissionMode, tuple[str, ...]] = {
    "default": (),  # Whatever mode the agent starts in.
    "read-only": ("plan", "read-only", "read_only", "readonly"),
    "accept-edits": ("accept-edits", "acceptEdits", "accept_edits", "auto-edit", "autoEdit", "auto_edit"),
    "bypass": ("bypassPermissions", "bypass", "yolo", "full-access", "agent-full-access", "auto-approve"),
}


@attrs.frozen(kw_only=True)
class Profile:
    """One agent.

    Args:
        name: the name to ask for it by, and the name of its program.
        title: what its makers call it.
        command: how it is started.
        install: the command that installs it; "" if that is not known.
        login: what a user who is not logged in has to do.
        arguments: added after the command, unless they are already there.
        env: variables that are set for it; None removes one.
        password_variable: the variable for the password that protects a port it opens.
        modes: names of modes, instead of the usual ones.
        opening: characters that make a prompt a command if it begins with one of them.
        takes_paths: it also takes a path at the beginning for a command.
        looks_at_last_block: it looks for a command in the last block too, not only in the first.
        expands_at: it replaces an `@name` in a prompt with the content of that file.
        name_in_id: a pattern for the ids of tool calls; one of its groups (name, named) is the tool's name.
        one_by_one: it makes the calls of one message one by one, so the end of one says nothing about the rest.
        first_call: for such an agent, a pattern for the id of the first call of a message.
        title_is_name: the first title of a call is the tool's name.
        empty_subject: the beginning of a thought that has no subject.
        mode_notice: a pattern for text chunks that are not the model's words.
        failed: a pattern for the whole output of a failed command that the agent reports as completed.
        denied: a pattern for the output of a call that was refused by a rule.
        results_as_objects: see `with_results_as_objects`.
        shares: one process may serve several sessions.
        resumes: `session/resume` works, if the agent says that it does.
        replays_late: history may still arrive after the agent has said that the session is loaded.
        forgets_cancelled: it keeps nothing of a cancelled turn without tool calls, not even the prompt.
        shells_survive: commands continue after their turn was cancelled.
        exits_at_eof: it exits when its stdin is closed.
        usage_is_certain: an answer without usage was cut off.
        usage_of_session: it reports the usage of the whole session so far.
        max_tokens_means: what kind of failure the stop reason "max_tokens" is.
        system_prompt_field: `session/new` takes additional instructions in `_meta.systemPrompt`.
    """

    name: str = ""
    title: str = ""
    command: tuple[str, ...] = ()
    install: str = ""
    login: str = ""
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str | None] = attrs.field(factory=dict)
    password_variable: str = ""
    modes: Mapping[PermissionMode, tuple[str, ...]] = attrs.field(factory=dict)
    opening: str = "/"
    takes_paths: bool = False
    looks_at_last_block: bool = False
    expands_at: bool = False
    name_in_id: re.Pattern[str] | None = None
    one_by_one: bool = False
    first_call: re.Pattern[str] | None = None
    title_is_name: bool = False
    empty_subject: str = ""
    mode_notice: re.Pattern[str] | None = None
    failed: re.Pattern[str] | None = None
    denied: re.Pattern[str] | None = None
    results_as_objects: bool = False
    shares: bool = False
    resumes: bool = True
    replays_late: bool = False
    forgets_cancelled: bool = False
    shells_survive: bool = False
    exits_at_eof: bool = True
    usage_is_certain: bool = False
    usage_of_session: bool = False
    max_tokens_means: ErrorSubtype = "incomplete"
    system_prompt_field: bool = False

    def modes_for(self, mode: PermissionMode) -> tuple[str, ...]:
        """The agent's names for this mode."""
        return self.modes.get(mode, USUAL_MODES[mode])


UNKNOWN = Profile()

GEMINI = Profile(  # 0.61.0
    name="gemini",
    title="Gemini CLI",
    command=("gemini", "--acp"),
    install="npm install -g @google/gemini-cli",
    login="set GEMINI_API_KEY, or start gemini once and log in",
    # The launcher swallows SIGTERM. With its terminal emulation, shell commands have no output.
    env={"GEMINI_CLI_NO_RELAUNCH": "true", "GEMINI_PTY_INFO": "child_process"},
    modes={
        "default": ("default",),
        "read-only": ("plan",),
        "accept-edits": ("autoEdit",),
        "bypass": ("yolo",),
    },
    opening="/$",
    # If the model's API gives the call an id, that id follows the name.
    name_in_id=re.compile(r"(?P<name>.+?)__(?P=name)_\d+_\d+|(?P<named>mcp_.+(?=__.)|.+?)(?:__.+|-\d{13,})"),
    one_by_one=True,
    first_call=re.compile(r".+_\d{13,}_0"),
    empty_subject="****\n",
    mode_notice=re.compile(r"\[MODE_UPDATE\] \w+"),
    failed=re.compile(r"Command (?:exited with code: [1-9]\d*|terminated by signal: .*|failed: .*)", re.DOTALL),
    denied=re.compile(r"denied by policy", re.IGNORECASE),
    results_as_objects=True,
    shares=True,
    replays_late=True,
    forgets_cancelled=True,
    exits_at_eof=False,
    usage_is_certain=True,
    max_tokens_means="context_window",
)

KNOWN: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        GEMINI,
        Profile(  # 1.18.33
            name="opencode",
            title="OpenCode",
            command=("opencode", "acp"),
            install="npm install -g opencode-ai",
            login="run `opencode auth login`",
            # Everybody who can connect to its server has a shell on the machine, and the user's configuration may make
            # it listen on the whole network.
            arguments=("--hostname=127.0.0.1", "--mdns=false"),
            env={"OPENCODE_SERVER_USERNAME": None},
            password_variable="OPENCODE_SERVER_PASSWORD",
            takes_paths=True,  # It ignores such a prompt: the turn ends at once.
            title_is_name=True,
            shares=True,
        ),
        Profile(  # 0.24.4
            name="qwen",
            title="Qwen Code",
            command=("qwen", "--acp"),
            install="npm install -g @qwen-code/qwen-code",
            login="start qwen once and log in",
            one_by_one=True,
            resumes=False,  # It says that it does, and answers "method not found".
        ),
        Profile(  # 0.20.1
            name="goose",
            title="Goose",
            command=("goose", "acp"),
            install="npm install -g @aaif/goose",
            login="run `goose configure`",
            shells_survive=True,
            exits_at_eof=False,
        ),
        Profile(  # 3.0.2
            name="vibe-acp",
            title="Mistral Vibe",
            command=("vibe-acp",),
            install="pip install mistral-vibe",
            login="start vibe once and log in",
            shells_survive=True,
            usage_of_session=True,
        ),
        Profile(  # 0.99.1
            name="claude-agent-acp",
            title="Claude Code, by its ACP adapter",
            command=("claude-agent-acp",),
            install="npm install -g @agentclientprotocol/claude-agent-acp",
            login="run `claude /login`",
            looks_at_last_block=True,
            expands_at=True,
            system_prompt_field=True,
        ),
        Profile(  # 2.6.0
            name="codex-acp",
            title="Codex, by its ACP adapter",
            command=("codex-acp",),
            install="npm install -g @agentclientprotocol/codex-acp",
            login="run `codex login`",
            opening="",
            shells_survive=True,
        ),
    )
}
OTHER_NAMES: Mapping[str, str] = {"mistral-vibe": "vibe-acp", "vibe": "vibe-acp"}


def profile_named(name: str) -> Profile | None:
    """The profile of this name."""
    return KNOWN.get(OTHER_NAMES.get(name, name))


def profile_of(command: Sequence[str]) -> Profile:
    """The profile of the agent that this command starts: any word may name it (`npx goose`, `node .../qwen`)."""
    for word in command:
        stem = os.path.basename(word).partition("@")[0] or os.path.basename(word)
        found = profile_named(stem) or profile_named(os.path.splitext(stem)[0])
        if found is not None:
            return found
    return UNKNOWN
