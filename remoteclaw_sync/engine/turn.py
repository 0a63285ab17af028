"""One run, from params to `done`: the generator behind `execute()`.

It works in the consumer's thread on a private copy of the runtime: what the child writes arrives here as raw
chunks, is cut into lines, parsed and mapped, and leaves as events. All state of the run is in this frame.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, ParamSpec, TypeVar

import attrs

from .. import errors
from ..process.child import ChildProcess
from ..process.ending import EndReason
from ..process.environment import host_environment
from ..redaction import Redactor, secrets_of_run
from ..types import (
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentRunResult,
    AgentTextEvent,
    AgentThinkingEvent,
    AgentToolResultEvent,
    AgentToolUseEvent,
    ErrorSubtype,
)
from ..wire.json_lines import LineFramer, pieces_of
from .adapter import Adapter
from .agent_run import RunControl
from .interpreter import hook_failure
from .setup import RunSetup
from .startup import MAY_BE_AGE, Preamble, missing_program, with_needed_version, with_place
from .verdict import Evidence, Verdict, judge

logger = logging.getLogger(__name__)


NO_WORDS = "an error was reported without a message"

P = ParamSpec("P")
T = TypeVar("T")


class Tally:
    """What the consumer has been told so far."""

    def __init__(self, redact: Redactor) -> None:
        self.redact = redact
        self.started_at = time.monotonic()
        self.text_parts: list[str] = []
        self.errors: list[AgentErrorEvent] = []
        self.tools_open: set[str] = set()
        self.tools_used = False
        self.restarts = 0
        self.preamble = Preamble()
        self.finished = False
        self.finished_in_time = False

    def error(self, event: AgentErrorEvent) -> AgentErrorEvent:
        """Note an error that is about to be yielded, without the secrets it may quote, and with words in any case."""
        message = self.redact("" if event.message is None else str(event.message))
        if not message.strip():
            message = NO_WORDS
        # A hook may pass on what the CLI gave it: null, 429.
        code = None if event.code is None else self.redact(str(event.code))
        if message != event.message or code != event.code:
            event = attrs.evolve(event, message=message, code=code)
        self.errors.append(event)
        return event

    @property
    def answered(self) -> bool:
        """Whether the agent said or did anything."""
        return self.tools_used or any(self.text_parts)


def drive(runtime: Adapter, params: AgentExecuteParams, control: RunControl) -> Generator[AgentEvent, None, None]:
    """Run `runtime` (a private copy) once. See `CLIRuntimeBase.execute` for the contract."""
    tally = Tally(Redactor(secrets_of_run(params, host_environment, runtime.command)))
    signal = params.abort_signal
    if control.wanted_end is None and signal is not None and signal.is_set():
        control.request_end(EndReason.ABORTED)
    if control.wanted_end is EndReason.CLOSED:
        return
    child = None
    start = control.wanted_end is None
    if runtime.remedied is not None:  # In the recorded run that is played here.
        yield tally.error(runtime.remedied)
    while start:
        due = None if params.deadline is None else tally.started_at + params.deadline
        setup = RunSetup(runtime, params, due)
        child = runtime.new_child(setup)
        try:
            control.attach(child)
            talk = Conversation(runtime, child, tally)
            ending, events_of, note, append_text = child.ending, talk.events_of, talk.note, tally.text_parts.append
            child.start()  # After all else: from here on two threads want the interpreter.
            while (items := talk.next_items()) is not None:
                for item in items:
                    for event in events_of(item):
                        if type(event) is AgentTextEvent and type(event.text) is str:  # By far the most.
                            append_text(event.text)
                            yield event
                        elif (noted := note(event)) is not None:
                            yield noted
                        if ending.backlog_unwanted:
                            break
                    else:
                        continue
                    break
                yield from talk.settle()
            yield from _leave(runtime, child, tally, setup)
        finally:
            try:
                child.close()
            except BaseException:
                child.request_close()  # Interrupted, perhaps before it was asked to end; the rest it does by itself.
                raise
            finally:
                runtime.heard_all()
        remedy = _remedy(runtime, tally, child)
        start = remedy is not None
        if remedy is not None:
            runtime.remedied = tally.error(remedy)
            yield runtime.remedied
    if (child.ending.reason if child else control.wanted_end) is EndReason.CLOSED:
        control.result = _result(runtime, control, tally, child, "aborted")
        return
    yield from _end(runtime, params, control, tally, child)


def _leave(runtime: Adapter, child: ChildProcess, tally: Tally, setup: RunSetup) -> list[AgentEvent]:
    """Wait until the CLI is gone, with all that it needed, and say what is worth a warning."""
    child.close()
    warnings = []
    if setup.failure is not None:
        warnings.append(AgentErrorEvent(setup.failure, errors.CLI_WARNING))
    logger.debug("child %s: %s, exit code %s", child.pid, child.ending.reason, child.exit_code)
    if not child.ending.backlog_unwanted:
        warnings += _warnings(runtime, tally.redact(child.diagnostics))
    return [tally.error(warning) for warning in warnings]


def _remedy(runtime: Adapter, tally: Tally, child: ChildProcess) -> AgentErrorEvent | None:
    """The runtime's wish to start once more, if the last try failed before anything was said or done."""
    untouched = not tally.answered and tally.restarts < runtime.most_restarts and runtime.outcome.terminal is None
    if not untouched or child.failure is not None:
        return None
    if child.ending.reason is not EndReason.EXITED or child.exit_code == 0:
        return None
    warning = _ask(runtime.remedy, child.exit_code, _said(child, tally))
    if warning is not None:
        tally.restarts += 1
    return warning


def _said(child: ChildProcess, tally: Tally) -> str:
    """All that the CLI said to people: on stderr, and on the other stream where no event followed."""
    return tally.redact("\n".join(filter(None, (child.diagnostics, tally.preamble.text()))))


def _warnings(runtime: Adapter, stderr: str) -> Iterable[AgentErrorEvent]:
    return _ask(lambda stderr: tuple(runtime.warnings_in(stderr)), stderr) or ()


def _ask(hook: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What a hook says about a run that has ended; None if it raises, for `done` must come whatever happens."""
    try:
        return hook(*args, **kwargs)
    except Exception as error:
        # Not the exception itself: its message may quote a value of the environment.
        logger.error("%s raised %s", hook.__qualname__, type(error).__name__)
        return None


class Conversation:
    """Everything that one child says: lines, and what they mean."""

    def __init__(self, runtime: Adapter, child: ChildProcess, tally: Tally) -> None:
        self._runtime = runtime
        self._child = child
        self._tally = tally
        self._framer = LineFramer(runtime.max_line_bytes)
        tally.preamble = self._preamble = Preamble()
        interpreter = runtime.interpreter()
        self._parse, self.events_of = interpreter.parse, interpreter.events_of
        self._lines_skipped = 0
        self._exit_expected = False
        self._at_end = False

    def next_items(self) -> Iterable[Any] | None:
        """What the CLI has written next; None when it is gone or nobody wants to hear more. Blocks."""
        if self._at_end or self._child.ending.backlog_unwanted:
            return None
        chunk = self._child.next_chunk()
        self._at_end = chunk is None
        block = self._framer.flush_block() if chunk is None else self._framer.push_block(chunk)
        if self._child.ending.backlog_unwanted:
            return None
        if block is not None and not self._preamble.is_over:
            self._preamble.push(block)
        return () if block is None else itertools.chain.from_iterable(map(self._parse, pieces_of(block)))

    def note(self, event: AgentEvent) -> AgentEvent | None:
        """Keep what the run's end needs to know of an event; None if the consumer is not to see it."""
        try:
            return NOTES[type(event)](self, event)
        except Exception as error:  # noqa: BLE001 - a field of a wrong type
            return self._tally.error(hook_failure(type(self._runtime).__name__, error))

    def _note_text(self, event: AgentTextEvent) -> AgentEvent:
        if not isinstance(event.text, str):
            raise TypeError(f"text must be a str, not {type(event.text).__name__}")
        self._tally.text_parts.append(event.text)
        return event

    def _note_tool_use(self, event: AgentToolUseEvent) -> AgentEvent:
        self._tally.tools_used = True
        self._tally.tools_open.add(event.tool_id)
        self._child.tools_outstanding = True
        return event

    def _note_tool_result(self, event: AgentToolResultEvent) -> AgentEvent:
        self._tally.tools_open.discard(event.tool_id)
        self._child.tools_outstanding = bool(self._tally.tools_open)
        return event

    def _note_error(self, event: AgentErrorEvent) -> AgentEvent:
        return self._tally.error(event)

    def _note_done(self, event: AgentDoneEvent) -> None:
        self._runtime.take_reported_result(event.result)

    def settle(self) -> Iterable[AgentErrorEvent]:
        """After each chunk: look whether that was the CLI's last word, and whether lines were too long."""
        if self._child.ending.backlog_unwanted:
            return
        runtime, child, tally = self._runtime, self._child, self._tally
        if self._framer.lines_skipped != self._lines_skipped:
            self._lines_skipped = self._framer.lines_skipped
            message = f"skipped a line of over {runtime.max_line_bytes} bytes (max_line_bytes)"
            yield tally.error(AgentErrorEvent(message, errors.LINE_TOO_LONG))
        finished = runtime.outcome.terminal is not None
        if finished and not tally.finished:
            tally.finished_in_time = child.heard_in_time
        tally.finished = finished
        if finished or self._exit_expected:
            self._exit_expected = finished
            child.expect_exit(finished, runtime.linger)


class ByClass(dict[type, Callable[[Conversation, Any], AgentEvent | None]]):
    """What to do with an event, by its class; for a subclass what its base has."""

    def __missing__(self, cls: type) -> Callable[[Conversation, Any], AgentEvent | None]:
        self[cls] = next(self[base] for base in cls.__mro__[1:] if base in self)
        return self[cls]


# Not in the Conversation: it would hold itself, and what a run has said would outlive it.
NOTES = ByClass(
    {
        AgentTextEvent: Conversation._note_text,
        AgentThinkingEvent: lambda talk, event: event,
        AgentToolUseEvent: Conversation._note_tool_use,
        AgentToolResultEvent: Conversation._note_tool_result,
        AgentErrorEvent: Conversation._note_error,
        AgentDoneEvent: Conversation._note_done,
    }
)


def _end(
    runtime: Adapter,
    params: AgentExecuteParams,
    control: RunControl,
    tally: Tally,
    child: ChildProcess | None,
) -> Generator[AgentEvent, None, None]:
    """The verdict: an error if there is one to tell, then `done`."""
    reason = (child.ending.reason if child else control.wanted_end) or EndReason.EXITED
    exit_code = child.exit_code if child else None
    failure = child.failure if child else None
    diagnostics = _said(child, tally) if child else ""
    verdict = judge(
        Evidence(
            program=runtime.program,
            exit_codes=runtime.cli_facts.exit_codes if runtime.cli_facts else {},
            end_reason=reason,
            spawn_failure=None if failure is None else with_place(failure, _places(runtime), runtime.install_hint),
            exit_code=exit_code,
            diagnostics=_presentable(runtime, diagnostics),
            outcome=runtime.outcome,
            finished_in_time=tally.finished_in_time,
            answered=tally.answered,
            expects_terminal=runtime.expects_terminal_event,
            errors_seen=tuple(tally.errors),
            timeout=runtime.timeout,
            deadline=params.deadline,
            explained_exit=_explained_exit(runtime, child, tally, diagnostics),
        )
    )
    if failure is None and reason is EndReason.EXITED and not tally.preamble.is_over:
        verdict = _with_needed_version(runtime, params, verdict)
    # Built before the error is yielded: by then files are restored and the child is reaped, whatever comes next.
    result = _result(runtime, control, tally, child, verdict.error_subtype)
    control.result = result
    if verdict.error is not None:
        yield tally.error(verdict.error)
    yield AgentDoneEvent(result)


def _places(runtime: Adapter) -> list[str]:
    return _ask(runtime.other_places) or []


def _with_needed_version(runtime: Adapter, params: AgentExecuteParams, verdict: Verdict) -> Verdict:
    """The verdict on a run that failed at its start, with what an old CLI may have to do with it."""
    if verdict.error is None or runtime.cli_facts is None or verdict.error_subtype not in MAY_BE_AGE:
        return verdict
    version = _ask(runtime.cli_version)
    return attrs.evolve(verdict, error=with_needed_version(verdict.error, runtime.cli_facts, version, params))


def _explained_exit(
    runtime: Adapter, child: ChildProcess | None, tally: Tally, diagnostics: str
) -> AgentErrorEvent | None:
    if child is None or child.failure is not None:
        return None
    explained = _ask(runtime.explain_exit, child.exit_code, diagnostics)
    if not tally.preamble.is_over:
        explained = missing_program(runtime.program, child.exit_code, diagnostics) or explained
    return explained if isinstance(explained, AgentErrorEvent) else None


def _presentable(runtime: Adapter, stderr: str) -> str:
    shown = _ask(runtime.presentable, stderr) if stderr else ""
    return shown if isinstance(shown, str) else ""


def _result(
    runtime: Adapter,
    control: RunControl,
    tally: Tally,
    child: ChildProcess | None,
    error_subtype: ErrorSubtype | None,
) -> AgentRunResult:
    outcome = runtime.outcome
    reason = child.ending.reason if child else control.wanted_end
    result = AgentRunResult(
        text="".join(tally.text_parts),
        session_id=outcome.session_id,
        duration_ms=round((time.monotonic() - tally.started_at) * 1000, 3),
        usage=outcome.usage,
        aborted=reason in (EndReason.ABORTED, EndReason.CLOSED),
        total_cost_usd=outcome.total_cost_usd,
        api_duration_ms=outcome.api_duration_ms,
        num_turns=outcome.num_turns,
        stop_reason=outcome.stop_reason,
        error_subtype=error_subtype,
        permission_denials=tuple(outcome.permission_denials),
        exit_code=child.exit_code if child else None,
        stderr=_presentable(runtime, tally.redact(child.diagnostics)) if child else "",
    )
    enriched = _ask(runtime.enrich_result, result)
    return enriched if isinstance(enriched, AgentRunResult) else result
