"""What a subclass may do wrong, and that runs do not affect each other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest

from remoteclaw_sync import (
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentRunResult,
    AgentTextEvent,
    AgentToolUseEvent,
    CLIRuntimeBase,
    PermissionDenial,
)
from remoteclaw_sync.engine.outcome import Closing, Ended
from tests.fakes import FakeRuntime, codes, done, finished

SECRET = "hunter2-hunter2"
THREE: tuple[list[Any], ...] = (["text", "a"], ["line", {"type": "bad"}], ["text", "b"])


class Mistake(Exception):
    pass


class Extractor(FakeRuntime):
    """Returns what the test wants for a line of type "bad"."""

    def __init__(self, give: Any) -> None:
        super().__init__(*THREE)
        self.give = give

    def extract_event(self, line: str) -> AgentEvent | Iterable[AgentEvent] | None:
        if '"bad"' not in line:
            return super().extract_event(line)
        return self.give() if callable(self.give) else self.give  # type: ignore[no-any-return]


def raises() -> None:
    raise Mistake(SECRET)


def raises_late() -> Iterable[AgentEvent]:
    yield AgentTextEvent("half")
    raise Mistake("late")


@pytest.mark.parametrize(
    "bad",
    [
        raises,
        raises_late,
        "a string",
        b"bytes",
        {"type": "text"},
        5,
        object,
        [AgentTextEvent("half"), "junk"],
        AgentTextEvent(5),  # type: ignore[arg-type]
        AgentTextEvent(None),  # type: ignore[arg-type]
        AgentToolUseEvent("shell", ["unhashable"]),  # type: ignore[arg-type]
        AgentDoneEvent(None),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_a_mistake_in_extract_event_is_reported_and_the_run_goes_on(bad: Any) -> None:
    events, result = finished(Extractor(bad).execute("hi"))
    assert codes(events) == ["EXTRACT_EVENT_FAILED"]
    assert result.text in ("ab", "ahalfb")
    assert result.ok


def test_what_a_generator_gave_before_its_mistake_is_kept() -> None:
    events, result = finished(Extractor(raises_late).execute("hi"))
    assert [event.type for event in events] == ["text", "text", "error", "text"]
    assert result.text == "ahalfb"


@pytest.mark.parametrize("event", [AgentErrorEvent(None), AgentErrorEvent("busy", 429)], ids=repr)  # type: ignore[arg-type]
def test_an_error_with_fields_of_a_wrong_type_is_still_an_error(event: AgentErrorEvent) -> None:
    events, result = finished(Extractor(event).execute("hi"))
    assert [type(error.code) for error in events if isinstance(error, AgentErrorEvent)] in ([str], [type(None)])
    assert result.text == "ab"


def test_an_event_of_a_subclass_counts_as_what_it_is() -> None:
    @attrs.frozen
    class Shouted(AgentTextEvent):
        loud: bool = True

    assert done(Extractor(Shouted("!")).execute("hi")).text == "a!b"


def test_several_events_of_one_line_come_in_order() -> None:
    several = (AgentTextEvent("1"), AgentTextEvent("2"), AgentTextEvent("3"))
    assert done(Extractor(several).execute("hi")).text == "a123b"


def test_an_empty_list_of_events_is_no_event() -> None:
    assert done(Extractor([]).execute("hi")).text == "ab"


def test_keyboard_interrupt_in_a_hook_is_the_consumers() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    events = Extractor(interrupt).execute("hi")
    assert next(events).type == "text"
    with pytest.raises(KeyboardInterrupt):
        next(events)
    assert list(events) == []


def test_done_comes_from_the_base_alone() -> None:
    given = AgentRunResult(session_id="s1", num_turns=3, total_cost_usd=0.5, stop_reason="end", text="not this")
    events, result = finished(Extractor(AgentDoneEvent(given)).execute("hi"))
    assert [event.type for event in events] == ["text", "text"]
    assert (result.session_id, result.num_turns, result.total_cost_usd, result.text) == ("s1", 3, 0.5, "ab")
    assert result.exit_code == 0


class Failing(FakeRuntime):
    """One hook raises."""

    def __init__(self, *steps: Any, hook: str, **options: Any) -> None:
        super().__init__(*steps, **options)

        def fail(*args: object) -> None:
            raise Mistake(f"{hook} {SECRET}")

        setattr(self, hook, fail)


@pytest.mark.parametrize("hook", ["build_args", "build_env", "stdin_data", "enter_run", "prepare"])
def test_a_mistake_before_the_start_is_an_error_and_done(hook: str, caplog: pytest.LogCaptureFixture) -> None:
    events, result = finished(Failing(["text", "a"], hook=hook).execute("hi"))
    (error,) = events
    assert isinstance(error, AgentErrorEvent)
    assert error.code == "SPAWN_FAILED"
    assert "Mistake" in error.message
    assert not result.ok
    assert SECRET not in caplog.text


@pytest.mark.parametrize("hook", ["at_exit", "presentable", "remedy"])
def test_a_mistake_after_the_end_costs_nothing_else(hook: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        events, result = finished(Failing(["exit", 3], hook=hook).execute("hi"))
    assert codes(events) == ["CLI_EXIT_ERROR"]
    assert result.exit_code == 3
    assert SECRET not in caplog.text


@pytest.mark.parametrize("hook", ["is_life"])
def test_a_mistake_while_it_runs_costs_nothing_else(hook: str) -> None:
    class Sceptic(FakeRuntime):
        def is_life(self, chunk: bytes) -> bool:
            raise Mistake

    assert done(Sceptic(["text", "a"]).execute("hi")).ok


@pytest.mark.parametrize("hook", ["reset_state", "check_params"])
def test_a_mistake_at_the_call_is_raised_there(hook: str) -> None:
    with pytest.raises(Mistake):
        Failing(hook=hook).execute("hi")


@pytest.mark.parametrize("hook", ["at_exit", "presentable"])
def test_nonsense_from_a_hook_after_the_end_is_ignored(hook: str) -> None:
    runtime = FakeRuntime(["exit", 3])
    setattr(runtime, hook, lambda *args: 42)
    assert codes(finished(runtime.execute("hi"))[0]) == ["CLI_EXIT_ERROR"]


@pytest.mark.parametrize(
    ("hook", "value"),
    [
        ("build_args", None),
        ("build_args", [5]),
        ("build_args", ["nul\0"]),
        ("build_args", ["\ud800"]),
        ("build_env", None),
        ("build_env", {"A": 5}),
        ("build_env", {"A=B": "c"}),
        ("build_env", {"A": "nul\0"}),
        ("stdin_data", "a str"),
        ("stdin_data", None),
    ],
)
def test_nonsense_from_a_hook_before_the_start_is_an_error_and_done(hook: str, value: Any) -> None:
    runtime = FakeRuntime(["text", "a"])
    setattr(runtime, hook, lambda *args: value)
    events, result = finished(runtime.execute("hi"))
    assert codes(events) == ["SPAWN_FAILED"]
    assert not result.ok


def test_a_clean_up_that_fails_is_told_and_the_run_still_ends(caplog: pytest.LogCaptureFixture) -> None:
    class Clumsy(FakeRuntime):
        def enter_run(self, params: AgentExecuteParams, resources: Any) -> None:
            resources.callback(cleaned.append, True)
            resources.callback(raises)

    cleaned: list[bool] = []
    events, result = finished(Clumsy(["text", "a"]).execute("hi"))
    assert codes(events) == ["CLI_WARNING"]
    assert result.ok
    assert cleaned == [True]
    assert SECRET not in caplog.text


def test_a_clean_up_that_fails_does_not_hide_the_exception_of_the_consumer() -> None:
    class Clumsy(FakeRuntime):
        def enter_run(self, params: AgentExecuteParams, resources: Any) -> None:
            resources.callback(raises)

    events = Clumsy(["text", "a"], ["hang"]).execute("hi")
    next(events)
    with pytest.raises(LookupError):
        events.throw(LookupError())


def test_a_failed_start_gives_back_what_was_borrowed(tmp_path: Path) -> None:
    class Borrower(FakeRuntime):
        def enter_run(self, params: AgentExecuteParams, resources: Any) -> None:
            borrowed.touch()
            resources.callback(borrowed.unlink)

        def build_args(self, params: AgentExecuteParams) -> list[str]:
            assert borrowed.exists()
            raise Mistake

    borrowed = tmp_path / "borrowed"
    assert not done(Borrower().execute("hi")).ok
    assert not borrowed.exists()


def test_the_end_of_the_cli_may_add_to_the_result() -> None:
    class Adder(FakeRuntime):
        def at_exit(self, ended: Ended) -> Closing:
            return Closing(session_id="mine", denials=(PermissionDenial("shell", "no"),))

    run = Adder(["text", "a"]).start("hi")
    assert done(run).session_id == "mine"
    assert run.result is not None
    assert run.result.session_id == "mine"
    assert run.result.permission_denials == (PermissionDenial("shell", "no"),)


def test_the_end_of_the_cli_may_name_the_cause_the_kind_and_warnings() -> None:
    class Explainer(FakeRuntime):
        def at_exit(self, ended: Ended) -> Closing:
            asked.append((ended.exit_code, ended.stderr))
            return Closing(
                warnings=(AgentErrorEvent("careful", "CLI_WARNING"),),
                cause=AgentErrorEvent("no credit left", "CLI_EXIT_ERROR"),
                error_subtype="billing",
            )

    asked: list[Any] = []
    events, result = finished(Explainer(["raw", "no", 2], ["exit", 3]).execute("hi"))
    assert asked == [(3, "no")]
    assert [event.message for event in events if isinstance(event, AgentErrorEvent)] == ["careful", "no credit left"]
    assert (result.ok, result.error_subtype) == (False, "billing")


def test_a_remedy_starts_the_cli_once_more() -> None:
    class Healer(FakeRuntime):
        def remedy(self, exit_code: int | None, stderr: str) -> AgentErrorEvent | None:
            asked.append((exit_code, stderr))
            return AgentErrorEvent("again", "CLI_WARNING")

    asked: list[Any] = []
    events, result = finished(Healer(["raw", "no", 2], ["exit", 3]).execute("hi"))
    assert asked == [(3, "no")]
    assert codes(events) == ["CLI_WARNING", "CLI_EXIT_ERROR"]
    assert result.exit_code == 3


def test_an_abort_between_two_starts_is_not_lost() -> None:
    class Healer(FakeRuntime):
        def remedy(self, exit_code: int | None, stderr: str) -> AgentErrorEvent | None:
            return AgentErrorEvent("again", "CLI_WARNING")

    run = Healer(["exit", 3]).start("hi")
    assert next(run).type == "error"
    run.abort()
    events, result = finished(run)
    assert codes(events) == ["ABORTED"]
    assert result.aborted


# --- one instance, many runs -------------------------------------------------------------------------------


class Counting(CLIRuntimeBase):
    """Keeps on `self` what a run has said, as a hook may."""

    def __init__(self) -> None:
        super().__init__(["sh", "-c", 'for i in 1 2 3 4 5 6 7 8 9; do echo "{\\"word\\": \\"$1$i\\"}"; done', "sh"])
        self.words: list[str] = []

    def reset_state(self) -> None:
        self.words = []

    def build_args(self, params: AgentExecuteParams) -> list[str]:
        return [params.prompt]

    def build_env(self, params: AgentExecuteParams) -> dict[str, str | None]:
        return {}

    def extract_event(self, line: str) -> AgentEvent | None:
        self.words.append(line[10:-2])
        return AgentTextEvent(",".join(self.words) + ";")


def expected(prompt: str) -> str:
    words = [f"{prompt}{number}" for number in range(1, 10)]
    return "".join(",".join(words[: count + 1]) + ";" for count in range(9))


def test_sixteen_threads_on_one_instance_get_their_own_answers() -> None:
    runtime = Counting()
    answers: dict[str, str] = {}
    together = threading.Barrier(16)

    def ask(prompt: str) -> None:
        together.wait()
        for _ in range(3):
            answers[prompt] = runtime.run(prompt).text

    threads = [threading.Thread(target=ask, args=(f"p{number}-",)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {f"p{number}-": expected(f"p{number}-") for number in range(16)}
    assert runtime.words == []


def test_two_runs_of_one_instance_advanced_by_turns_get_their_own_answers() -> None:
    runtime = Counting()
    pairs = list(zip(runtime.execute("left"), runtime.execute("right"), strict=True))
    left, right = zip(*pairs, strict=True)
    assert done(left).text == expected("left")
    assert done(right).text == expected("right")


def test_a_run_started_inside_another_ones_loop_gets_its_own_answer() -> None:
    runtime = Counting()
    outer = ""
    for event in runtime.execute("outer"):
        if isinstance(event, AgentTextEvent):
            outer += event.text
            assert runtime.run("inner").text == expected("inner")
    assert outer == expected("outer")


def test_a_change_of_the_instance_does_not_reach_a_run_under_way() -> None:
    runtime = FakeRuntime(["text", "a"])
    run = runtime.start("hi")
    runtime.command = ("no-such-agent-cli",)
    assert done(run).ok
