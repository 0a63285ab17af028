"""`chat`: a conversation in the terminal, using a live session."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import cast, get_args

from ..engine.agent_run import AgentRun
from ..errors import RemoteClawError, UnsupportedOperationError
from ..factory import create_cli_runtime
from ..session import AgentSession
from ..types import PermissionMode
from .asking import Asker
from .dispatch import UsageError
from .keyboard import CAN_ASK, Keyboard, Lines, News, PipedLines
from .mcp_options import mcp_servers
from .run import as_typed, choose_provider, program, runtime_options
from .show import FAILED, OK, exit_code
from .status_line import Screen
from .terminal_text import is_terminal, one_line
from .views import TextView

PROMPT = "> "
LEAVING_SIGNALS = ("SIGTERM", "SIGHUP", "SIGQUIT")  # By name: Windows lacks some.
STATUS_HINT = "type to add, Ctrl-C to stop"
WELCOME = "Enter sends, Ctrl-C stops the agent, Ctrl-D leaves, /help says more."
LEAVE_HINT = "Ctrl-C once more leaves."
HELP = """\
Enter sends. Alt-Enter, or \\ and Enter, begins a new line. What you paste stays one message. Up is the last one.
What you enter while the agent works is given to it at once if the CLI takes further words, otherwise asked next.
Ctrl-C stops the agent and keeps the session; a second one leaves. Ctrl-D leaves.
/model NAME    another model      /mode MODE    another permission mode: {modes}
/exit          leaves             /help         this
All else goes to the agent as you write it."""


def command(options: argparse.Namespace) -> int:
    """Talk with an agent; returns the exit code."""
    if not CAN_ASK:
        raise UsageError("chat needs a terminal as Linux and macOS have it; `remoteclaw-sync run` works without one")
    provider = choose_provider(options)
    if provider is None:
        return FAILED
    screen = Screen(sys.stdout, sys.stderr)
    is_typed = sys.stdin is not None and is_terminal(sys.stdin) and screen.on_terminal
    if sys.stdin is None:
        raise UsageError("chat needs somebody to talk with: stdin is closed")
    conversation = Conversation(screen, is_typed=is_typed, quiet=options.quiet, deadline=options.deadline)
    with conversation.lines_from(sys.stdin.fileno()) as lines:
        session = _open(provider, options, Asker(screen, lines), conversation)
        first = None if options.prompt is None else as_typed(options.prompt)
        with conversation.signals():
            code = conversation.hold(session, first)
    if session.session_id is not None and not options.quiet:
        folder = f" --cwd {shlex.quote(options.cwd)}" if options.cwd else ""
        resume = f"{program()} chat --provider {provider}{folder} --resume {one_line(session.session_id)}"
        screen.note(f"to continue: {resume}")
    return code


def _open(provider: str, options: argparse.Namespace, asker: Asker, conversation: Conversation) -> AgentSession:
    asker.is_over = conversation.turn_is_ending
    try:
        return create_cli_runtime(provider, **runtime_options(options)).open_session(
            approve=asker,
            session_id=options.resume,
            mcp_servers=mcp_servers(options.mcp, options.mcp_file),
            working_directory=options.cwd,
            system_prompt=None if options.system_prompt is None else as_typed(options.system_prompt),
            model=options.model,
            permission_mode=options.permission_mode,
            extra_args=tuple(options.extra_args),
        )
    except (ValueError, TypeError, UnsupportedOperationError) as error:
        raise UsageError("; ".join([str(error), *getattr(error, "__notes__", ())])) from None


class Conversation:
    """Turns, one after the other, and the commands in between.

    The turns run in the main thread, which also gets the signals. Lines that are typed meanwhile come from the
    keyboard's thread.
    """

    def __init__(self, screen: Screen, *, is_typed: bool, quiet: bool, deadline: float | None) -> None:
        self._screen = screen
        self._is_typed = is_typed
        self._quiet = quiet
        self._deadline = deadline
        self._lines: Lines
        self._session: AgentSession
        self._warming = threading.Thread(target=self._warm, name="remoteclaw-warm", daemon=True)
        self._run: AgentRun | None = None  # The current turn.
        self._view: TextView | None = None
        self._queued: deque[str] = deque()
        self._interrupts = 0  # Since the last line was entered.
        self._ended_by: int | None = None  # The signal that ended the conversation.
        self._code = OK

    @contextlib.contextmanager
    def lines_from(self, fd: int) -> Iterator[Lines]:
        """The source of this conversation's lines."""
        if self._is_typed:
            with Keyboard(fd, self._screen, self._take_meanwhile) as keyboard:
                self._lines = keyboard
                yield keyboard
        else:
            self._lines = PipedLines(fd)
            yield self._lines

    def hold(self, session: AgentSession, prompt: str | None) -> int:
        """Run turns until the user leaves; returns the exit code."""
        self._session = session
        try:
            with session:
                if self._is_typed and not self._quiet:
                    self._screen.note(self._screen.style.dim(WELCOME))
                if prompt is None and self._is_typed:
                    self._warming.start()
                while (prompt := prompt or self._next_prompt()) is not None:
                    self._turn(prompt)
                    prompt = None
        except KeyboardInterrupt:
            return 130 if self._ended_by is None else 128 + self._ended_by
        finally:
            self._screen.close()
        return self._code if self._ended_by is None else 128 + self._ended_by

    def turn_is_ending(self) -> bool:
        """Whether the turn no longer waits for an answer."""
        return self._run is None or self._run.is_ending

    def _warm(self) -> None:
        """Start the process while the first prompt is being typed. If that fails, the turn reports why."""
        with contextlib.suppress(RemoteClawError, RuntimeError):
            self._session.warm()

    def _wait_until_warm(self) -> None:
        if self._warming.is_alive():
            self._warming.join()

    # --- prompts and commands -------------------------------------------------------------------------------------

    def _next_prompt(self) -> str | None:
        """The next message for the agent; None if the user leaves."""
        while self._ended_by is None:
            line = self._queued.popleft() if self._queued else self._lines.read(PROMPT)
            if line is News.END:
                return None
            if line is News.INTERRUPT:
                if not self._lines.clear() and self._interrupts > 1:
                    raise KeyboardInterrupt
                self._screen.note(LEAVE_HINT)
                continue
            assert isinstance(line, str)
            self._interrupts = 0
            if self._is_typed and line.strip() in ("/exit", "/quit"):
                return None
            if line.strip() and not (self._is_typed and self._is_command(line)):
                return line
        return None

    def _is_command(self, line: str) -> bool:
        """Carry out the line if it is a command. Only for typed lines: in a pipe, all lines are for the agent."""
        name, _, value = line.strip().partition(" ")
        value = value.strip()
        try:
            if name == "/help" and not value:
                for each in HELP.format(modes=", ".join(get_args(PermissionMode))).splitlines():
                    self._screen.note(each)
            elif name == "/model":
                self._session.set_model(value or None)
                self._screen.note(f"model: {one_line(value) or 'the default'}")
            elif name == "/mode":
                self._wait_until_warm()
                self._session.set_permission_mode(cast(PermissionMode, value))
                self._screen.note(f"permission mode: {value}")
            else:
                return False
        except (ValueError, RemoteClawError) as error:
            self._screen.note(f"{name}: {error}")
        return True

    def _take_meanwhile(self, line: str) -> None:
        """Take a line that is entered while the agent works. Called in the keyboard's thread."""
        self._interrupts = 0
        run = self._run
        try:
            if run is None or line.startswith(COMMANDS):
                self._queued.append(line)
                return
            run.steer(line)
        except RemoteClawError:
            self._queued.append(line)
            self._screen.note(self._screen.style.dim("(will be asked next)"))

    # --- a turn -----------------------------------------------------------------------------------------------

    def _turn(self, prompt: str) -> None:
        self._wait_until_warm()
        try:
            run = self._session.start(prompt, deadline=self._deadline)
        except (ValueError, TypeError) as error:
            self._screen.note(f"error: {error}")
            self._code = FAILED
            return
        hint = STATUS_HINT if self._is_typed else ""
        view = TextView(screen=self._screen, quiet=self._quiet, names_session=False, hint=hint)
        self._view, self._run = view, run
        if self._ended_by is not None:
            run.abort()
        try:
            with run:
                for event in run:
                    view.show(event)
        finally:
            self._run = None
            view.stop()
        view.close()
        if self._interrupts:
            self._screen.note(self._screen.style.dim(LEAVE_HINT))
        if not self._is_typed:
            self._code = exit_code(run.result, None)

    # --- signals ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Inside the block, signals stop the turn or end the conversation cleanly."""
        handlers = {"SIGINT": self._on_interrupt, **dict.fromkeys(LEAVING_SIGNALS, self._on_end)}
        before = {}
        try:
            for name, handler in handlers.items():
                number = getattr(signal, name, None)
                # The process that started us ignores it (nohup), so we do too.
                if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, handler)
            yield
        finally:
            for number, earlier in before.items():
                signal.signal(number, earlier)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        # Takes none of our locks: the interrupted thread may hold one.
        self._interrupts += 1
        if self._run is None:
            self._lines.tell(News.INTERRUPT)
        elif self._interrupts == 1:
            self._run.abort()
            if self._view is not None:
                self._view.is_stopping()
        else:
            raise KeyboardInterrupt

    def _on_end(self, number: int, frame: FrameType | None) -> None:
        if self._ended_by is not None:
            raise KeyboardInterrupt
        self._ended_by = number
        if self._run is not None:
            self._run.abort()
        self._lines.tell(News.END)


COMMANDS = ("/exit", "/quit", "/help", "/model", "/mode")
