"""Imports point one way. They are read from the source, so a cycle cannot hide in a function."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import remoteclaw_sync
from remoteclaw_sync.clis.registry import NAMES

PACKAGE = "remoteclaw_sync"
ROOT = Path(remoteclaw_sync.__file__).parent

CLIS = {f"clis.{name}" for name in NAMES}

# From the bottom up. A module imports only from lower layers or from its own folder; a folder stands for everything in
# it.
LAYERS: tuple[set[str], ...] = (
    {"_version", "_closeable", "_json", "_values", "schema", "wire"},
    {"limits"},
    {"types"},
    {"clis.facts"},  # The form of a fact. The facts themselves are in each CLI's folder.
    {"versions"},
    {"errors", "redaction"},
    {"process"},
    {"files"},
    {"config_files", "portable", "tool_server"},
    {"recording.file", "recording.recorder", "recording.session_recorder", "recording.writer"},
    {"engine"},
    {"verbs"},
    {"session"},
    {"runtime"},
    {"pool"},
    {"clis"},
    CLIS,
    {"clis.registry"},
    {"demo"},
    {"factory"},
    {"recording"},
    {"chat"},
    {"testing", "web"},
    {"cluster"},
    {""},  # remoteclaw_sync itself: the list of public names.
    {"cli"},
    {"__main__"},
)

# The same inside each folder: its floors from the bottom up. A module imports only from lower floors of its folder.
FLOORS = {
    "chat": "conversation database delivery < moving places < keeper < turns < questions sessions warm < bridge",
    "cli": "help server_folder strangers terminal_text < arguments leftovers line_editor probe < status_line"
    " < completion dispatch keyboard views < asking doctor mcp_options serve show < replay run < chat providers",
    "clis": "facts < dialect fake mcp_entries shared < registry sharing",
    "clis.acp": "profiles mcp < prompt switchboard tool_calls < dialect < runtime",
    "clis.claude": "facts < answer_schema fake mcp messages portable < dialect < live < runtime",
    "clis.codex": "facts < app_items fake items litter mcp portable rollout stderr strict_schema < dialect switchboard"
    " < app_server < runtime",
    "clis.gemini": "facts < failures fake mcp policy prompt sessions < record < dialect live portable < runtime",
    "clis.opencode": "facts < fake http_messages live_settings rules stderr store < http_client mcp portable two"
    " < config errors http_backend < dialect live_asks < live_parts < live_messages < live < runtime",
    "cluster": "pooled scripts < link < hub session_store < follower slots < runs session_map < cluster < celery",
    "config_files": "jsonc private_file < config_edit < borrowed",
    "demo": "client texts tools < turn < agent < runtime",
    "engine": "approval channel classify one_writer outcome resources retry_after startup switchboard transport"
    " < dialect python_tools shared_process < agent live_dialect transfer < meter setup verdict < answers < session"
    " < turn < agent_run live_session < recorded_session seats",
    "portable": "capsule sealing < local store < handover",
    "process": "bell ending environment greenlets host life native program tag tail"
    " < abort_listener launch live_children < backend clocks guard spawn_errors sweep < fallback inbox posix < child",
    "recording": "file writer < recorder < matching session_recorder < cassette < played played_run < player"
    " < played_session < replay",
    "redaction": "known letters < secrets < prompts < scrubber",
    "schema": "fields < plain < build convert < validate < answers",
    "tool_server": "docstrings relay < __main__ tools < messaging protocol < server",
    "web": "assets door sse uploads visitor < background warm < conversations journal < handle < detached < streams"
    " < exchange frameworks < page",
    "wire": "fields json_lines < jsonrpc",
}

THIRD_PARTY = {"attrs", "tomli_w"}  # install_requires
OPTIONAL = {"orjson", "pytest", "redis", "celery", "cryptography"}  # extras, each named as in setup.cfg


@cache
def module_names() -> tuple[str, ...]:
    paths = (path.relative_to(ROOT).with_suffix("") for path in ROOT.rglob("*.py"))
    return tuple(sorted(".".join(part for part in path.parts if part != "__init__") for path in paths))


def source_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split(".")) if module else ROOT
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All imports, including those inside functions and those for the type checker only: a cycle of types is one
    too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        else:
            yield from statements(child)


def absolute(module: str, statement: ast.ImportFrom) -> str:
    """The full name of the module that a `from ... import` names."""
    if statement.level == 0:
        return statement.module or ""
    package = [PACKAGE, *module.split(".")] if module else [PACKAGE]
    if source_of(module).name != "__init__.py":
        package.pop()
    parts = package[: len(package) - statement.level + 1]
    return ".".join([*parts, statement.module] if statement.module else parts)


@cache
def imports(module: str) -> frozenset[str]:
    """The full names of the modules that one of our modules imports; `from . import a` counts as an import of `.a`."""
    found: set[str] = set()
    known = {f"{PACKAGE}.{name}" for name in module_names() if name}
    for statement in statements(ast.parse(source_of(module).read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
            continue
        source = absolute(module, statement)
        submodules = {f"{source}.{alias.name}" for alias in statement.names} & known
        found |= submodules or {source}
    return frozenset(found)


def internal(module: str) -> set[str]:
    ours = {name for name in imports(module) if name == PACKAGE or name.startswith(f"{PACKAGE}.")}
    return {name[len(PACKAGE) + 1 :] for name in ours}


def folder_of(module: str) -> str:
    """The folder that a module belongs to: each CLI has its own."""
    own = next((cli for cli in CLIS if module == cli or module.startswith(f"{cli}.")), None)
    return own or module.partition(".")[0]


def layer(module: str) -> int:
    name = module
    while True:
        for number, members in enumerate(LAYERS):
            if name in members:
                return number
        assert name, f"{module!r} is in no layer: give it one in LAYERS"
        name = name.rpartition(".")[0]


def floor(module: str) -> int:
    """How high a module is in its folder. The folder itself (its `__init__`) is on top."""
    folder, _, name = module.rpartition(".")
    floors = [set(names.split()) for names in FLOORS[folder].split("<")]
    for number, members in enumerate(floors):
        if name in members:
            return number
    raise AssertionError(f"{module!r} is on no floor of its folder: give it one in FLOORS")


def in_folders() -> list[str]:
    """The modules inside folders, without the folders themselves."""
    return [module for module in module_names() if "." in module and source_of(module).name != "__init__.py"]


def test_every_module_has_a_layer() -> None:
    assert len(module_names()) > 20
    for module in module_names():
        layer(module)


def test_no_import_points_upwards() -> None:
    upwards = {
        f"{module} -> {target}"
        for module in module_names()
        for target in internal(module)
        if layer(target) > layer(module)
    }
    assert upwards == set()


def test_modules_of_one_layer_know_each_other_only_inside_a_folder() -> None:
    sideways = {
        f"{module} -> {target}"
        for module in module_names()
        for target in internal(module)
        if layer(target) == layer(module) and folder_of(target) != folder_of(module)
    }
    assert sideways == set()


def test_every_module_in_a_folder_has_a_floor() -> None:
    listed = {f"{folder}.{name}" for folder, names in FLOORS.items() for name in names.replace("<", " ").split()}
    assert listed == set(in_folders())


def test_inside_a_folder_imports_point_downwards() -> None:
    there = set(in_folders())
    upwards = {
        f"{module} -> {target}"
        for module in there
        for target in internal(module) & there
        if target.rpartition(".")[0] == module.rpartition(".")[0] and floor(target) >= floor(module)
    }
    assert upwards == set()


def test_no_module_imports_the_folder_it_is_in() -> None:
    assert {module for module in in_folders() if module.rpartition(".")[0] in internal(module)} == set()


def test_what_is_known_of_a_cli_is_known_without_the_rest_of_its_folder() -> None:
    for cli in CLIS:
        assert internal(f"{cli}.facts") <= {"clis.facts", "files"}
        assert internal(f"{cli}.fake") == {"clis.fake"}


def test_no_cli_knows_another() -> None:
    for module in module_names():
        if folder_of(module) in CLIS:
            others = {folder_of(target) for target in internal(module)} & CLIS
            assert others <= {folder_of(module)}, module


def test_the_process_layer_knows_nothing_of_agents() -> None:
    for module in module_names():
        if folder_of(module) == "process":
            outside = {target for target in internal(module) if folder_of(target) != "process"}
            assert outside <= {"errors", "_json"}, module


def test_the_ground_knows_nothing_of_the_package() -> None:
    for module in module_names():
        if layer(module) == 0:
            assert {layer(target) for target in internal(module)} <= {0}, module


def test_one_module_alone_asks_the_system_to_be_told_of_forks() -> None:
    asking = {module for module in module_names() if "register_at_fork(" in source_of(module).read_text("utf-8")}
    assert asking == {"process.host"}


def test_there_are_no_import_cycles() -> None:
    finished: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"import cycle: {' -> '.join((*path, module))}"
        if module not in finished:
            for target in internal(module):
                visit(target, (*path, module))
            finished.add(module)

    for module in module_names():
        visit(module, ())


def test_only_what_the_package_requires_is_imported() -> None:
    foreign = {
        name.partition(".")[0]
        for module in module_names()
        for name in imports(module)
        if name.partition(".")[0] not in sys.stdlib_module_names | {PACKAGE}
    }
    assert foreign - OPTIONAL == THIRD_PARTY


def test_the_reader_of_imports_sees_all_their_forms() -> None:
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from .types_only import seen
else:
    import at_run_time
def function():
    try:
        from ..errors import ABORTED
    except ImportError:
        import orjson
"""
    found = [ast.unparse(statement) for statement in statements(ast.parse(source))]
    assert found == [
        "from typing import TYPE_CHECKING",
        "from .types_only import seen",
        "import at_run_time",
        "from ..errors import ABORTED",
        "import orjson",
    ]
    assert internal("process.child") >= {"errors", "process.live_children", "process.launch"}
    assert internal("factory") >= {"errors", "runtime", "clis.registry"}
    assert "clis.codex.runtime" in internal("factory")  # Only for the type checker.
