"""The differences between the CLIs in tests of what live sessions promise on all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from remoteclaw_sync import SessionFields, create_cli_runtime
from remoteclaw_sync.runtime import CliOptions, CLIRuntimeBase
from tests.real_clis import scenarios_codex, scenarios_gemini, scenarios_opencode
from tests.real_clis.bench import Bench
from tests.real_clis.clis import ALL_CLIS, RealCli
from tests.real_clis.model_server import ModelRequest
from tests.real_clis.script import HttpError, Reply, ToolCall, Turn

INNER_TASK = "the inner task"
OTHER_MODEL = {"provider": {"bench": {"models": {"other": {"name": "Other", "tool_call": True}}}}}


@dataclass(frozen=True)
class LiveCli:
    """One CLI with live sessions.

    Attributes:
        env: what every session needs here.
        few_retries: fields of a session in which the CLI soon gives up.
        prepare: makes the CLI give up soon, if its settings decide that.
        gives_up: options of a runtime whose CLI does not wait for the network to come back.
        changes_input: whether an approval may change the arguments of a call.
        tells_cost: whether it reports what a turn costs.
        takes_words: whether a running turn accepts further words; otherwise it has to be interrupted for them.
        takes_reasons: whether the model learns why a call was refused; otherwise there is a warning.
        asks_for_agents: whether a sub-agent may be started, and its calls are asked about.
        marks_retries: whether it reports that it asks for an answer again after it has printed a part of the first.
        vague: HTTP statuses that it reports as another status.
        agent_call: the model starts a sub-agent with the inner task.
        other_model: a model that the CLI knows, in a session with `other_fields`.
        unknown_session: an id of the right form.
    """

    cli: RealCli
    agent_call: Callable[[], ToolCall]
    other_model: str
    unknown_session: str
    other_fields: SessionFields = field(default_factory=lambda: SessionFields())
    env: dict[str, str] = field(default_factory=dict)
    few_retries: SessionFields = field(default_factory=lambda: SessionFields())
    prepare: Callable[[Bench], None] = lambda bench: None
    gives_up: dict[str, object] = field(default_factory=dict)
    changes_input: bool = False
    tells_cost: bool = True
    takes_words: bool = True
    takes_reasons: bool = True
    asks_for_agents: bool = True
    marks_retries: bool = True
    vague: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        return self.cli.name

    def runtime(self, **options: object) -> CLIRuntimeBase:
        given: CliOptions = {**options}  # type: ignore[typeddict-item]
        runtime = create_cli_runtime(self.name, **given)
        assert isinstance(runtime, CLIRuntimeBase)
        return runtime

    def shell(self, command: str, call_id: str) -> ToolCall:
        return self.cli.shell_call(command, call_id)

    def failing(self, status: int) -> HttpError:
        """An error of the model's API that asks for no pause before the retry."""
        return HttpError(status=status, retry_after=scenarios_opencode.AT_ONCE if self.name == "opencode" else None)

    def delegating(self, bench: Bench, inner: Reply) -> Callable[[ModelRequest], Reply]:
        """A model that gives a task to a sub-agent, and waits for it."""

        def respond(request: ModelRequest) -> Reply:
            if request.prompt == INNER_TASK:
                return inner
            if request.prompt == "delegate" and not request.tool_results:
                return Turn(tool_calls=[self.agent_call()])
            waits = self.name == "codex" and request.prompt == "delegate"
            return scenarios_codex.wait_for_agent(request) if waits else Turn(text="outer answer")

        return respond


def _claude_agent() -> ToolCall:
    return ToolCall(
        "Agent", {"description": "a sub task", "prompt": INNER_TASK, "subagent_type": "general-purpose"}, "call_agent"
    )


LIVE_CLIS: dict[str, LiveCli] = {
    live.name: live
    for live in (
        LiveCli(
            ALL_CLIS["claude"],
            agent_call=_claude_agent,
            other_model="claude-haiku-4-5",
            unknown_session="00000000-0000-4000-8000-000000000000",
            env={"IS_SANDBOX": "1"},  # Otherwise root may not use "bypass".
            few_retries={"env": {"CLAUDE_CODE_MAX_RETRIES": "1"}},
            changes_input=True,
        ),
        LiveCli(
            ALL_CLIS["codex"],
            agent_call=lambda: ToolCall(
                "spawn_agent", {"message": INNER_TASK}, "call_agent", namespace=scenarios_codex.AGENTS
            ),
            other_model="gpt-5.6-sol",
            unknown_session="019a0000-0000-7000-8000-000000000000",
            few_retries={"extra_args": scenarios_codex.FEW_RETRIES},
            gives_up={"wait_for_network": False},
            tells_cost=False,
        ),
        LiveCli(
            ALL_CLIS["gemini"],
            agent_call=lambda: ToolCall(
                "invoke_agent", {"agent_name": "generalist", "prompt": INNER_TASK}, "call_agent"
            ),
            other_model="gemini-2.5-pro",
            unknown_session="00000000-0000-4000-8000-000000000000",
            prepare=lambda bench: scenarios_gemini.settings(bench, general={"maxAttempts": 2}),
            tells_cost=False,
            takes_words=False,
            takes_reasons=False,
            asks_for_agents=False,  # They are refused without asking.
            marks_retries=False,
            vague=frozenset({404}),  # Reported as 500, with the API's words.
        ),
        LiveCli(
            ALL_CLIS["opencode"],
            agent_call=lambda: ToolCall(
                "task", {"description": "a sub task", "prompt": INNER_TASK, "subagent_type": "general"}, "call_agent"
            ),
            other_model="bench/other",
            other_fields={"env": {"OPENCODE_CONFIG_CONTENT": json.dumps(OTHER_MODEL)}},
            unknown_session="ses_e14fae195ffeXzp9W5IzXZ1jnA",
        ),
    )
}
