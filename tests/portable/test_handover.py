"""Bridges on several machines that share a session store. The CLI is a fake: a machine's sessions are in its memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from remoteclaw_sync import (
    AgentDoneEvent,
    AgentErrorEvent,
    AgentEvent,
    AgentExecuteParams,
    AgentRunResult,
    AgentTextEvent,
    ChannelBridge,
    ChannelMessage,
    FolderSessionStore,
    SessionTransferError,
    StoredSession,
)
from remoteclaw_sync.portable.capsule import Capsule
from remoteclaw_sync.portable.local import check_progress, progress_of_log
from tests.fakes import wait_until


class FakeCli:
    """Answers with everything that was said in the session."""

    provider = "fake"

    def __init__(self, name: str) -> None:
        self.name = name
        self.sessions: dict[str, bytes] = {}
        self.imports = 0
        self.refuses: Exception | None = None

    def execute(self, params: AgentExecuteParams) -> Iterator[AgentEvent]:
        session_id = params.session_id or f"{self.name}-{len(self.sessions)}"
        if params.session_id is not None and session_id not in self.sessions:
            yield AgentErrorEvent("no such session", "SESSION_NOT_FOUND")
            yield AgentDoneEvent(AgentRunResult(error_subtype="session_not_found"))
            return
        self.sessions[session_id] = self.sessions.get(session_id, b"") + params.prompt.encode() + b"\n"
        text = self.sessions[session_id].decode().replace("\n", " ").strip()
        yield AgentTextEvent(text)
        yield AgentDoneEvent(AgentRunResult(text=text, session_id=session_id))

    def export_session(
        self,
        session_id: str,
        *,
        working_directory: object = None,
        env: Mapping[str, str | None] | None = None,
        held: bool = False,
    ) -> bytes:
        files = {"log": self.sessions[session_id]}
        return Capsule(provider=self.provider, session_id=session_id, cli_version=None, files=files).pack()

    def import_session(
        self,
        data: bytes,
        *,
        working_directory: object = None,
        env: Mapping[str, str | None] | None = None,
        replace: bool = False,
    ) -> str:
        self.imports += 1
        if self.refuses is not None:
            raise self.refuses
        capsule = Capsule.unpack(data)
        progress = progress_of_log(self.sessions.get(capsule.session_id), capsule.files["log"])
        check_progress(progress, capsule.session_id, replace)
        self.sessions[capsule.session_id] = capsule.files["log"]
        return capsule.session_id


class UnsteadyStore(FolderSessionStore):
    """Cannot be reached while `is_away`."""

    is_away = False

    def load(self, key: str, *, known: int = 0) -> StoredSession | None:
        if self.is_away:
            raise ConnectionError("nobody answers")
        return super().load(key, known=known)

    def save(self, key: str, data: bytes, *, after: int) -> int:
        if self.is_away:
            raise ConnectionError("nobody answers")
        return super().save(key, data, after=after)


class Site:
    """Two machines, each with its own sessions and its own session map."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.store = UnsteadyStore(folder / "store")
        self.clis = [FakeCli("one"), FakeCli("two")]
        self.bridges = [
            stack.enter_context(
                ChannelBridge(cli, session_map=":memory:", session_store=self.store, workspace_dir=folder / cli.name)
            )
            for cli in self.clis
        ]

    def say(self, machine: int, text: str) -> str:
        """The answer of a run that gave no warnings."""
        result = self.bridges[machine].handle(said(text))
        assert (result.error, result.warnings) == (None, ())
        return result.run.text

    def warned(self, machine: int, text: str) -> tuple[str, str]:
        result = self.bridges[machine].handle(said(text))
        assert result.error is None
        (warning,) = result.warnings
        return result.run.text, warning


def said(text: str) -> ChannelMessage:
    return ChannelMessage(text, provider="test", channel_id="c1", sender="u1")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


def test_a_conversation_goes_on_on_whichever_machine_gets_the_message(site: Site) -> None:
    assert site.say(0, "a") == "a"
    assert site.say(1, "b") == "a b"
    assert site.say(0, "c") == "a b c"
    assert site.say(1, "d") == "a b c d"


def test_a_machine_that_has_the_current_state_does_not_fetch_it(site: Site) -> None:
    for text in "abc":
        site.say(0, text)
    assert site.clis[0].imports == 0
    site.say(1, "d")
    site.say(1, "e")
    assert site.clis[1].imports == 1
    assert site.say(0, "f") == "a b c d e f"
    assert site.clis[0].imports == 1


def test_a_turn_that_could_not_be_saved_is_in_the_next_state(site: Site) -> None:
    site.say(0, "a")
    site.store.is_away = True
    assert site.bridges[0].handle(said("b")).run.text == "a b"
    site.store.is_away = False
    assert site.say(0, "c") == "a b c"
    assert site.say(1, "d") == "a b c d"


def test_a_turn_that_another_machine_could_not_see_is_given_up_with_a_word(site: Site) -> None:
    site.say(0, "a")
    site.store.is_away = True
    result = site.bridges[0].handle(said("b"))
    assert [warning.partition(",")[0] for warning in result.warnings] == [
        "the conversation could not be fetched",
        "the conversation could not be saved",
    ]
    site.store.is_away = False
    assert site.say(1, "c") == "a c"
    text, warning = site.warned(0, "d")
    assert text == "a c d"
    assert "this machine had gone on by itself" in warning


def test_a_state_that_was_not_seen_is_not_overwritten_even_without_the_lock(site: Site) -> None:
    """As when a machine was thought to be dead and has lost its lock."""
    site.say(0, "a")
    site.bridges[1]._moves._handover.store = _Overtaken(site)  # type: ignore[union-attr]
    text, warning = site.warned(1, "b")
    assert text == "a b"
    assert "another machine has gone on" in warning
    assert site.say(0, "d") == "a c d"


class _Overtaken:
    """The store, for a machine whose turn takes so long that another machine runs one in the meantime."""

    def __init__(self, site: Site) -> None:
        self._site, self._store = site, FolderSessionStore(site.store.path)
        self.load, self.lock = self._store.load, lambda key, timeout=None: ExitStack()

    def save(self, key: str, data: bytes, *, after: int) -> int:
        self._site.say(0, "c")
        return self._store.save(key, data, after=after)


def test_a_session_that_is_gone_from_this_machine_is_fetched_again(site: Site) -> None:
    site.say(0, "a")
    site.clis[0].sessions.clear()
    assert site.say(0, "b") == "a b"


def test_a_conversation_that_is_forgotten_begins_anew_everywhere(site: Site) -> None:
    site.say(0, "a")
    site.say(1, "b")
    site.bridges[1].forget(said(""))
    assert site.say(0, "c") == "c"
    assert site.say(1, "d") == "c d"


def test_a_state_that_cannot_be_used_here_fails_the_run_and_stays(site: Site) -> None:
    site.say(0, "a")
    site.clis[1].refuses = SessionTransferError("newer_cli", "update it")
    result = site.bridges[1].handle(said("b"))
    assert (result.error, result.run.error_subtype) == ("update it", "config")
    assert site.say(0, "c") == "a c"


@pytest.mark.slow
def test_a_state_that_could_not_be_taken_in_is_not_overwritten(site: Site) -> None:
    site.say(0, "a1")
    assert site.say(1, "b2") == "a1 b2"
    site.clis[0].refuses = OSError(28, "No space left on device")
    result = site.bridges[0].handle(said("a3"))
    assert result.error is None
    assert len(result.warnings) == 2
    assert site.say(1, "b4") == "a1 b2 b4"


def test_a_run_that_waits_for_another_machine_can_be_aborted(site: Site) -> None:
    site.say(0, "a")
    aborted = threading.Event()
    results = []
    (name,) = [path.stem for path in Path(site.store.path).iterdir()]
    with site.store._locked(f"{name}.lock", None):
        waiter = threading.Thread(target=lambda: results.append(site.bridges[1].handle(said("b"), None, aborted)))
        waiter.start()
        assert wait_until(lambda: bool(site.bridges[1]._jobs.of(site.bridges[1].conversation(said("")))))
        aborted.set()
        waiter.join()
    assert results[0].run.aborted
    assert site.say(1, "c") == "a c"


def test_something_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="session_store must have load, save and lock"):
        ChannelBridge(FakeCli("x"), session_map=":memory:", session_store=tmp_path, workspace_dir=tmp_path)  # type: ignore[arg-type]
