"""Letting a child go: it is asked to exit, and forced to if it does not."""

from __future__ import annotations

from remoteclaw_sync.process.ending import EndReason
from remoteclaw_sync.process.launch import FAREWELL_PATIENCE, Limits, Phase
from tests.process.staged import Stage


def test_it_hears_the_farewell_and_the_end_of_its_input() -> None:
    with Stage(farewell=b"bye\n") as stage:
        stage.child.let_go()
        stage.child.let_go()
        stage.backend.settle()
        assert (stage.backend.input[-1], stage.backend.input_ended) == (b"bye\n", True)
        assert stage.backend.signals == []
        stage.backend.exits()
        assert stage.child.close().reason is not EndReason.LINGERED


def test_one_that_stays_is_ended() -> None:
    with Stage(farewell=b"bye\n") as stage:
        stage.child.let_go()
        stage.wait(FAREWELL_PATIENCE - 0.1)
        assert stage.backend.signals == []
        stage.wait(0.2)
        assert stage.backend.signals == ["TERM"]
        assert stage.child.close().reason is EndReason.LINGERED


def test_one_that_is_idle_for_too_long_is_let_go() -> None:
    with Stage(farewell=b"bye\n") as stage:
        stage.child.begin_phase(Phase.IDLE, Limits(wall_clock=600.0))
        stage.wait(599)
        assert not stage.backend.input_ended
        stage.wait(1)
        assert (stage.backend.input[-1], stage.backend.input_ended, stage.child.phase) == (b"bye\n", True, Phase.ENDING)


def test_at_the_end_of_the_interpreter_only_an_idle_one_is_asked() -> None:
    with Stage(farewell=b"bye\n") as idle, Stage(farewell=b"bye\n") as at_work:
        idle.child.begin_phase(Phase.IDLE, Limits())
        at_work.child.begin_phase(Phase.TURN, Limits())
        for stage in (idle, at_work):
            stage.child.begin_exit()
            stage.backend.settle()
        assert (idle.backend.input_ended, idle.backend.signals) == (True, [])
        assert at_work.backend.signals == ["TERM"]
