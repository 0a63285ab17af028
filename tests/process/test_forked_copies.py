"""A forked copy of the host forgets what belongs to the original."""

from __future__ import annotations

from tests.fakes import run_host


def test_everything_is_forgotten_in_order_also_after_a_part_that_fails() -> None:
    """We chose one hook for all parts. If one of them fails, the next must not be left with dead threads."""
    printed = run_host(
        """
        import os, sys
        from remoteclaw_sync.process.host import after_fork

        def fails():
            print("first", flush=True)
            raise RuntimeError

        sys.unraisablehook = lambda failure: print(failure.exc_type.__name__, flush=True)
        after_fork(fails)
        after_fork(lambda: print("second", flush=True))
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        """
    )
    assert printed.split() == ["first", "second", "RuntimeError"]
