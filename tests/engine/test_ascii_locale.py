"""A host in the C locale, as cron, systemd and slim containers start it: its Python can only use ASCII file names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from remoteclaw_sync import SUPPORTED_PROVIDERS
from remoteclaw_sync.testing import write_fake_cli
from tests.cli.shell import cli, environment
from tests.fakes import run_host

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

HOST = """
import json, os, sys
from remoteclaw_sync import McpServerConfig, create_cli_runtime
from remoteclaw_sync.testing import write_fake_cli
provider, folder = sys.argv[1:]
assert sys.getfilesystemencoding() == "ascii"
fake = write_fake_cli(folder, provider, "r\\u00e9ponse")  # Runs under `python -I`, which takes UTF-8 as the CLIs do.
server = McpServerConfig("\\u00e9cho", args=["\\u6f22"], env={"KEY": "cl\\u00e9 \\u20ac"})
result = create_cli_runtime(provider, command=fake.path).run(
    "pri\\u00e8re", system_prompt="br\\u00e8ve \\u6f22", model="mod\\u00e8le", env={"NAME": "\\u00e9t\\u00e9"},
    mcp_servers={"mine": server}, check=False,
)
call = fake.calls[0] if fake.calls else None
print(json.dumps([result.ok, result.text, result.error_subtype, call and [call.argv, call.env, call.stdin]]))
"""


@pytest.fixture
def host_env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "home" / ".codex").mkdir(parents=True)
    return {**ASCII, "HOME": str(tmp_path / "home"), "CODEX_HOME": str(tmp_path / "home" / ".codex")}


@pytest.mark.parametrize(
    "provider",
    [pytest.param(name, marks=() if name == "codex" else pytest.mark.slow) for name in SUPPORTED_PROVIDERS],
)
def test_values_that_are_not_ascii_reach_every_cli_as_utf_8(
    provider: str, tmp_path: Path, host_env: dict[str, str]
) -> None:
    out = run_host(HOST, provider, str(tmp_path / "fake"), env=host_env, cwd=tmp_path)
    ok, text, subtype, call = json.loads(out)
    assert (ok, text, subtype) == (True, "réponse", None)
    argv, env, stdin = call
    assert "prière" in stdin
    assert "--model=modèle" in argv
    assert env["NAME"] == "été"
    if provider == "opencode":
        config = json.loads(env["OPENCODE_CONFIG_CONTENT"])
        assert config["mcp"]["mine"]["command"] == ["écho", "漢"]
        assert config["mcp"]["mine"]["environment"] == {"KEY": "clé €"}
    if provider == "codex":
        assert '--config=developer_instructions="brève 漢"' in argv


@pytest.mark.slow
def test_a_run_can_be_recorded_that_sets_a_variable_whose_name_is_not_ascii(
    tmp_path: Path, host_env: dict[str, str]
) -> None:
    out = run_host(
        """
        import sys
        from remoteclaw_sync import create_cli_runtime
        from remoteclaw_sync.testing import write_fake_cli
        fake = write_fake_cli(sys.argv[1], "codex", "hello")
        runtime = create_cli_runtime("codex", command=fake.path, record=sys.argv[1] + "/run.jsonl")
        print(runtime.run("hi", env={"\\u00e9t\\u00e9": "soleil"}, check=False).ok)
        """,
        str(tmp_path / "fake"),
        env=host_env,
        cwd=tmp_path,
    )
    assert out == "True\n"
    header = json.loads((tmp_path / "fake" / "run.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert header["env"]["été"] not in (None, "soleil")


@pytest.mark.slow
@pytest.mark.parametrize("given", ["", ", working_directory=os.getcwd(), images=[os.path.abspath('image.png')]"])
def test_a_folder_whose_name_is_not_ascii_can_be_worked_in(
    given: str, tmp_path: Path, host_env: dict[str, str]
) -> None:
    folder = tmp_path / "été"
    folder.mkdir()
    (folder / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    out = run_host(
        f"""
        import os, sys
        from remoteclaw_sync import create_cli_runtime
        from remoteclaw_sync.testing import write_fake_cli
        for provider in ("claude", "gemini", "codex", "opencode"):
            fake = write_fake_cli(sys.argv[1], provider, "hello")
            run = create_cli_runtime(provider, command=fake.path).run("hi", system_prompt="short", check=False{given})
            print(run.ok, ascii(fake.calls[0].cwd if fake.calls else None))
        """,
        str(tmp_path / "fake"),
        env=host_env,
        cwd=folder,
    )
    assert out.splitlines() == [f"True {str(folder)!a}"] * 4


@pytest.mark.slow
@pytest.mark.parametrize("field", ["working_directory='/tmp/\\u00e9t\\u00e9'", "images=['/tmp/\\u00e9.png']"])
def test_a_path_that_this_locale_cannot_name_is_refused_with_what_to_do(field: str, host_env: dict[str, str]) -> None:
    out = run_host(
        f"""
        from remoteclaw_sync import create_cli_runtime, SUPPORTED_PROVIDERS
        for provider in SUPPORTED_PROVIDERS:
            try:
                create_cli_runtime(provider).run("hi", {field})
            except ValueError as error:
                print(ascii(type(error).__name__), ascii(str(error)))
        """,
        env=host_env,
    )
    refusals = out.splitlines()
    assert len(refusals) == len(SUPPORTED_PROVIDERS)
    for refusal in refusals:
        assert refusal.startswith("'ValueError'")
        assert field.partition("=")[0] in refusal
        assert "PYTHONUTF8=1" in refusal


@pytest.mark.slow
def test_text_from_the_command_line_arrives_as_it_was_typed(tmp_path: Path) -> None:
    fake = write_fake_cli(tmp_path, "codex")
    env = environment(**ASCII, PATH=f"{tmp_path}:{os.environ['PATH']}")
    done = cli("run", "--provider", "codex", "--system-prompt", "brève", "une prière", cwd=tmp_path, env=env)
    assert done.returncode == 0
    (call,) = fake.calls
    assert call.stdin == "une prière"
    assert '--config=developer_instructions="brève"' in call.argv
