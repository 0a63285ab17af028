"""Each CLI's facts are in its own folder and nowhere else, and are cheap to load."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import attrs
import pytest

import remoteclaw_sync
from remoteclaw_sync.clis.facts import CliFacts
from remoteclaw_sync.clis.registry import NAMES, all_facts, facts_of, fake_of, runtime_class_of
from remoteclaw_sync.types import AgentExecuteParams, PermissionMode
from tests.test_readme import rows_of

PACKAGE = Path(remoteclaw_sync.__file__).parent
each_cli = pytest.mark.parametrize("cli", all_facts(), ids=lambda cli: cli.name)

# Where a CLI may be named: the lists of public names and of CLIs, the types of the public API, and its own folder.
LISTS = {"__init__.py", "factory.py", "clis/registry.py"}
FOLDERS = (*(f"clis/{name}/" for name in NAMES), "clis/acp/", "demo/")
MAKERS = ("anthropic", "openai")


@each_cli
def test_the_runtime_of_a_cli_carries_its_facts(cli: CliFacts) -> None:
    runtime = runtime_class_of(cli.name)
    assert runtime.cli_facts is cli
    assert (runtime.provider, runtime.install_hint) == (cli.name, f"install it with: {cli.install}")


@each_cli
def test_facts_cannot_be_changed(cli: CliFacts) -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        cli.name = "other"  # type: ignore[misc]


@each_cli
def test_the_install_command_names_the_package_whose_version_is_compared(cli: CliFacts) -> None:
    assert cli.support[0].package in cli.install.split()


@each_cli
def test_a_cli_can_be_imitated(cli: CliFacts) -> None:
    assert fake_of(cli.name).session_id


@pytest.mark.parametrize("name", ["", "gpt", "../codex", "registry"])
def test_there_are_no_facts_of_what_is_not_listed(name: str) -> None:
    with pytest.raises(KeyError):
        facts_of(name)


def test_the_folders_are_the_listed_clis() -> None:
    assert {path.parent.name for path in (PACKAGE / "clis").glob("*/__init__.py")} == {*NAMES, "acp"}


def test_facts_are_had_without_any_runtime() -> None:
    """By our choice doctor, `providers` and the factory look at all CLIs, but must not pay for four adapters."""
    script = (
        "import sys\n"
        "from remoteclaw_sync.clis.registry import all_facts\n"
        "assert len(all_facts()) == 4\n"
        "print(*(name for name in sys.modules if name.startswith('remoteclaw_sync.')))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {name for name in loaded if name.startswith("remoteclaw_sync.clis.") and name.count(".") > 2} == {
        f"remoteclaw_sync.clis.{name}.facts" for name in NAMES
    }
    assert "remoteclaw_sync.runtime" not in loaded


# --- its page ---------------------------------------------------------------------------------------------------

# The same on every CLI, so they are described only once, in `engine/README.md`; `tools` become a server.
NO_ROW_OF_THEIR_OWN = {"abort_signal", "deadline", "permission_mode", "prompt_syntax", "tools", "budget"}


@each_cli
def test_the_page_of_a_cli_says_what_each_option_becomes(cli: CliFacts) -> None:
    page = (PACKAGE / "clis" / cli.name / "README.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {cli.title}\n")
    rows = rows_of(page, "option")
    fields = {field.name for field in attrs.fields(AgentExecuteParams)}
    modes = {f'"{mode}"' for mode in get_args(PermissionMode)}
    assert (fields | modes) - set(rows) == NO_ROW_OF_THEIR_OWN
    assert all(cell for (cell,) in rows.values())


@each_cli
def test_the_page_of_a_cli_tells_its_limits_and_where_the_documents_are_wrong(cli: CliFacts) -> None:
    page = (PACKAGE / "clis" / cli.name / "README.md").read_text(encoding="utf-8")
    limits = page.partition("\n## Known limits\n")[2].partition("\n## ")[0]
    assert limits.count("\n- ") > 3
    assert len(rows_of(page, "documented")) > 3


# --- no CLI's spelling in a general module ----------------------------------------------------------------------


def spellings() -> set[str]:
    """Words that would identify a CLI, its maker, its variables or its folders."""
    return {*NAMES, *MAKERS, *(variable.lower() for cli in all_facts() for variable in cli.key_variables)}


def said_in_code(tree: ast.Module) -> Iterator[str]:
    """Names and strings of a module: what it does, without its documentation (docstrings, comments, examples)."""
    documentation = {id(docstring) for node in ast.walk(tree) for docstring in docstrings(node)}
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]).endswith("EXAMPLES"):
            documentation.add(id(statement.value))
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str() as text) if id(node) not in documentation:
                yield text
            case ast.Constant(value=bytes() as data):
                yield data.decode(errors="replace")
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.ImportFrom(module=str() as name):
                yield name


def docstrings(node: ast.AST) -> Iterator[ast.expr]:
    """The docstring of a module, a class or a function, if it has one."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
        first = node.body[0]
        assert isinstance(first, ast.Expr)
        yield first.value


def test_the_look_at_code_sees_names_and_strings_and_not_documentation() -> None:
    source = '"""Of codex."""\nEXAMPLES = "codex"\ndef codex_home(): return b"x", f"{gemini}"  # claude\n'
    assert set(said_in_code(ast.parse(source))) == {"EXAMPLES", "codex_home", "x", "gemini"}


def general_modules() -> list[str]:
    paths = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    return [path for path in paths if path not in LISTS and not path.startswith(FOLDERS)]


@pytest.mark.parametrize("path", general_modules())
def test_a_general_module_knows_no_cli(path: str) -> None:
    said = {text.lower() for text in said_in_code(ast.parse((PACKAGE / path).read_text(encoding="utf-8")))}
    assert {text for text in said if any(word in text for word in spellings())} == set()
