"""Phases and their clocks, with time under the test's control."""

from __future__ import annotations

import threading

import pytest

from remoteclaw_sync.process.child import KILL_PATIENCE, TERM_GRACE
from remoteclaw_sync.process.ending import EndReason
from remoteclaw_sync.process.launch import Exit, Limits, Phase
from tests.process.staged import PATIENCE, Stage

YEAR = 365 * 86_400.0


def ended(stage: Stage) -> EndReason | None:
    stage.backend.settle()
    return stage.child.ending.reason


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.TURN, Phase.IDLE])
def test_silence_ends_the_child_after_its_limit_and_not_before(phase: Phase) -> None:
    with Stage() as stage:
        stage.wait(500)
        stage.child.begin_phase(phase, Limits(silence=30))
        stage.wait(29.5)
        assert ended(stage) is None
        stage.wait(0.5)
        assert ended(stage) is EndReason.WATCHDOG


@pytest.mark.parametrize("says", ["says", "grumbles"])
def test_a_line_on_either_stream_starts_the_silence_again(says: str) -> None:
    with Stage(limits=Limits(silence=30)) as stage:
        for _ in range(10):
            stage.wait(29)
            getattr(stage.backend, says)(b"a line\n")
        assert ended(stage) is None
        stage.wait(30)
        assert ended(stage) is EndReason.WATCHDOG


def test_the_wall_clock_counts_from_the_beginning_of_the_phase_whatever_is_said() -> None:
    with Stage() as stage:
        stage.wait(100)
        stage.child.begin_phase(Phase.TURN, Limits(silence=30, wall_clock=60))
        for _ in range(59):
            stage.wait(1)
            stage.backend.says(b"a line\n")
        assert ended(stage) is None
        stage.wait(1)
        assert ended(stage) is EndReason.DEADLINE


def test_the_limits_of_the_launch_are_those_of_the_first_phase() -> None:
    with Stage(limits=Limits(wall_clock=5)) as stage:
        assert stage.child.phase is Phase.STARTING
        stage.wait(5)
        assert ended(stage) is EndReason.DEADLINE


def test_a_phase_that_begins_before_the_child_is_there_replaces_the_first() -> None:
    stage = Stage(start=False, limits=Limits(wall_clock=5))
    stage.child.begin_phase(Phase.TURN, Limits(wall_clock=60))
    with stage:
        stage.start()
        stage.wait(59)
        assert (ended(stage), stage.child.phase) == (None, Phase.TURN)
        stage.wait(1)
        assert ended(stage) is EndReason.DEADLINE


def test_an_idle_child_without_limits_has_no_clock_at_all() -> None:
    with Stage(limits=Limits(silence=30, wall_clock=60)) as stage:
        stage.wait(1)  # By now the guard has been started, which the supervisor was looking for.
        stage.child.begin_phase(Phase.IDLE, Limits())
        assert stage.backend.sleeps_until is None
        stage.wait(YEAR)
        assert ended(stage) is None


def test_after_idle_time_the_clocks_of_the_next_turn_count_from_its_beginning() -> None:
    with Stage() as stage:
        for _ in range(3):
            stage.child.begin_phase(Phase.TURN, Limits(silence=30, wall_clock=60))
            stage.wait(29)
            stage.backend.says(b"the end of the turn\n")
            stage.child.begin_phase(Phase.IDLE, Limits())
            stage.wait(YEAR)
        stage.child.begin_phase(Phase.TURN, Limits(silence=30, wall_clock=60))
        stage.wait(29)
        assert ended(stage) is None
        stage.wait(1)
        assert ended(stage) is EndReason.WATCHDOG


def test_while_the_clock_is_paused_silence_is_not_a_fault_and_afterwards_it_counts_from_the_answer() -> None:
    with Stage() as stage:
        stage.child.begin_phase(Phase.TURN, Limits(silence=30))
        stage.wait(20)
        stage.child.pause_clock()
        stage.wait(YEAR)
        assert ended(stage) is None
        stage.child.resume_clock()
        stage.wait(29)
        assert ended(stage) is None
        stage.wait(1)
        assert ended(stage) is EndReason.WATCHDOG


def test_the_wall_clock_cannot_be_paused() -> None:
    with Stage() as stage:
        stage.child.begin_phase(Phase.TURN, Limits(silence=30, wall_clock=60))
        stage.child.pause_clock()
        stage.wait(60)
        assert ended(stage) is EndReason.DEADLINE


def test_a_new_phase_ends_a_pause() -> None:
    with Stage() as stage:
        stage.child.pause_clock()
        stage.child.begin_phase(Phase.TURN, Limits(silence=30))
        stage.wait(30)
        assert ended(stage) is EndReason.WATCHDOG


def test_while_a_tool_runs_its_own_limit_counts() -> None:
    with Stage() as stage:
        stage.child.begin_phase(Phase.TURN, Limits(silence=30, silence_in_tool=600))
        stage.child.tools_outstanding = True
        stage.wait(599)
        assert ended(stage) is None
        stage.wait(1)
        assert ended(stage) is EndReason.WATCHDOG


def test_a_tool_that_ends_without_a_word_leaves_the_shorter_limit() -> None:
    with Stage() as stage:
        stage.child.begin_phase(Phase.TURN, Limits(silence=30, silence_in_tool=600))
        stage.child.tools_outstanding = True
        stage.wait(45)
        stage.child.tools_outstanding = False
        assert ended(stage) is None
        stage.wait(30)
        assert ended(stage) is EndReason.WATCHDOG


def test_the_tools_of_one_turn_are_not_those_of_the_next() -> None:
    with Stage() as stage:
        stage.child.tools_outstanding = True
        stage.child.begin_phase(Phase.TURN, Limits(silence=30, silence_in_tool=600))
        stage.wait(30)
        assert ended(stage) is EndReason.WATCHDOG


def test_who_knows_that_a_tool_runs_is_asked_when_the_clock_runs_out() -> None:
    asked = []

    def runs_tool() -> bool:
        asked.append("does a tool run?")
        return True

    with Stage(limits=Limits(30, 600), runs_tool=runs_tool) as stage:
        stage.wait(29)
        assert asked == []
        stage.wait(1)
        assert len(asked) == 1
        assert ended(stage) is None


def test_a_tool_call_that_the_consumer_has_not_read_yet_counts() -> None:
    with Stage(limits=Limits(30, 600), may_run_tool=lambda output: b"tool call" in output) as stage:
        stage.backend.says(b"a tool ")
        stage.backend.says(b"call\n")
        stage.wait(100)
        assert ended(stage) is None
        assert [stage.child.receive(), stage.child.receive()] == [b"a tool ", b"call\n"]
        with pytest.raises(TimeoutError):
            stage.child.receive(timeout=0)
        stage.wait(30)
        assert ended(stage) is EndReason.WATCHDOG


@pytest.mark.parametrize("limits", [Limits(silence=2), Limits(wall_clock=2)])
def test_a_child_that_does_not_exit_when_asked_to_has_lingered(limits: Limits) -> None:
    with Stage() as stage:
        stage.child.send(b"", last=True)
        stage.child.begin_phase(Phase.ENDING, limits)
        stage.wait(2)
        assert ended(stage) is EndReason.LINGERED


def test_a_child_that_was_to_exit_may_be_given_another_turn() -> None:
    with Stage(linger=1.0) as stage:
        stage.child.expect_exit(True)
        stage.wait(0.5)
        stage.child.begin_phase(Phase.TURN, Limits())
        stage.wait(YEAR)
        assert ended(stage) is None


def test_a_child_that_is_expected_to_exit_and_does_not_has_lingered() -> None:
    with Stage(linger=1.0) as stage:
        stage.child.expect_exit(True)
        stage.wait(0.5)
        assert ended(stage) is None
        stage.wait(0.5)
        assert ended(stage) is EndReason.LINGERED


def test_the_end_of_a_turn_is_not_the_end_of_the_child() -> None:
    with Stage(stdin=b"hello\n") as stage:
        for number in range(6):
            stage.child.begin_phase(Phase.TURN, Limits(silence=30))
            stage.child.send(b"turn %d\n" % number)
            stage.backend.settle()
            stage.backend.says(b"answer %d\n" % number)
            assert stage.child.receive() == b"answer %d\n" % number
            stage.child.begin_phase(Phase.IDLE, Limits())
            stage.wait(3600)
            assert stage.child.exit is None
        assert b"".join(stage.backend.input) == b"hello\n" + b"".join(b"turn %d\n" % number for number in range(6))
        assert not stage.backend.input_ended


def test_an_idle_child_can_be_ended_from_any_thread() -> None:
    with Stage() as stage:
        stage.child.begin_phase(Phase.IDLE, Limits())
        thread = threading.Thread(target=stage.child.request_end, args=(EndReason.ABORTED,))
        thread.start()
        thread.join(PATIENCE)
        assert stage.child.receive() is None
        assert stage.child.exit == Exit(-15, EndReason.ABORTED, "", None)


def test_how_it_ended_is_known_when_it_is_gone() -> None:
    with Stage() as stage:
        stage.backend.grumbles(b"a warning\n")
        assert stage.child.exit is None
        stage.backend.says(b"the answer\n")
        stage.backend.exits(3)
        assert [stage.child.receive() for _ in range(3)] == [b"the answer\n", None, None]
        assert stage.child.exit == Exit(3, EndReason.EXITED, "a warning\n", None)
        assert stage.child.close() == stage.child.exit


def test_a_child_that_ignores_sigterm_is_killed_after_its_grace_and_given_up_when_that_does_not_help() -> None:
    with Stage() as stage:
        stage.backend.dies_of = ()
        stage.child.request_end(EndReason.ABORTED)
        stage.wait(TERM_GRACE - 0.5)
        assert stage.backend.signals == ["TERM"]
        stage.wait(0.5)
        assert stage.backend.signals == ["TERM", "KILL"]
        stage.clock.advance(KILL_PATIENCE)
        assert stage.child.receive() is None
        assert stage.child.exit == Exit(None, EndReason.ABORTED, "", None)


def test_receive_gives_up_after_its_timeout_and_loses_nothing() -> None:
    with Stage() as stage:
        with pytest.raises(TimeoutError):
            stage.child.receive(timeout=0)
        stage.backend.says(b"late\n")
        assert stage.child.receive(timeout=0) == b"late\n"


def test_a_child_that_was_never_started_has_been_closed() -> None:
    assert Stage(start=False).child.close() == Exit(None, EndReason.CLOSED, "", None)
