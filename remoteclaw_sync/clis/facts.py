"""`CliFacts`: what general modules need to know about one CLI. The value for a CLI is in `clis/<name>/facts.py`.

It is a plain value and cheap to import: its readers (doctor, versions, factory, the verdict on a run) need neither the
CLI's runtime nor its dialect.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import attrs

from ..types import ErrorSubtype

Environment = Mapping[str, str | None]

MAX_CONFIG_BYTES = 1 << 24  # The limit for files we look something up in; a larger file is not a config file.


@attrs.frozen(kw_only=True)
class Support:
    """One release line of a CLI, and what works on its versions.

    Args:
        package: the npm package it comes from.
        tested: the version that the tests run against.
        tested_from: the oldest version that has passed a whole conformance suite.
        floor: the oldest version on which everything works, judging by its flags.
        least: older versions do not run, or not safely.
        gaps: what does not work from `least` up to `floor`.
        untested: none of our tests has run on this line; `tested` is the version whose source code we read.
        needs: option of a run -> the first version that supports it.
    """

    package: str
    tested: str
    tested_from: str
    floor: str
    least: str
    gaps: str
    untested: bool = False
    needs: Mapping[str, str] = attrs.field(factory=dict)


def home_of(env: Environment) -> str:
    """The user's home, as a CLI with this environment sees it."""
    return env.get("HOME") or os.path.expanduser("~")


def no_files(env: Environment) -> tuple[str, ...]:
    """For a CLI that keeps no login in a file."""
    return ()


def nothing_borrowed(env: Environment, folder: str) -> dict[str, str | None]:
    """For a CLI whose config files are left alone."""
    return {}


@attrs.frozen(kw_only=True)
class CliFacts:
    """What we know about a CLI before it is run.

    Args:
        name: the provider's name, its command, and its folder in `clis/`.
        title: what its makers call it.
        runtime: the class in its `runtime.py`.
        install: the command that installs it.
        support: its release lines, the usual one first, then a later major version.
        exit_codes: the exit codes that have a meaning, and what they mean.
        program_folders: where its own installer puts it; a leading `~` is the home.
        version_env: variables without which `--version` is slow, or leaves something behind.
        key_variables: variables, any one of which is enough to log in.
        login_files: where a login may be stored.
        sessions_in: the folder that its sessions are in, or that distinguishes them from those of another home.
        forks: arguments with which a resumed session is only read, to start a new one.
        trusts: whether a folder is on its list of trusted folders; None if it keeps no list.
        borrowed_files: the config files that a run in a folder may borrow, and the project each belongs to (None: the
            user's own).
        cached_in_input: whether what it calls input tokens includes those that were read from a cache.
        tells_cost: whether it reports what a run costs while the run goes on.
    """

    name: str
    title: str
    runtime: str
    install: str
    support: tuple[Support, ...] = attrs.field(validator=attrs.validators.min_len(1))
    exit_codes: Mapping[int, ErrorSubtype] = attrs.field(factory=dict)
    program_folders: tuple[str, ...] = ()
    version_env: Mapping[str, str] = attrs.field(factory=dict)
    key_variables: tuple[str, ...] = ()
    login_files: Callable[[Environment], tuple[str, ...]] = no_files
    sessions_in: Callable[[Environment], str] = home_of
    forks: frozenset[str] = frozenset()
    trusts: Callable[[Environment, str], bool] | None = None
    borrowed_files: Callable[[Environment, str], Mapping[str, str | None]] = nothing_borrowed
    cached_in_input: bool = False
    tells_cost: bool = False

    @property
    def install_hint(self) -> str:
        """A hint for someone who does not have it."""
        return f"install it with: {self.install}"

    @property
    def tested(self) -> str:
        """The version that the tests run against."""
        return self.support[0].tested
