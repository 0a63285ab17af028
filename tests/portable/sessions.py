"""Made-up sessions of the CLIs as they are stored on disk: short versions of what a CLI would have written."""

from __future__ import annotations

import json
from pathlib import Path

from remoteclaw_sync import ClaudeCliRuntime, CLIRuntimeBase, CodexCliRuntime, GeminiCliRuntime

ID = "0199a213-81c0-7800-8aa1-bbab2a035a53"
KEPT_IN_FILES = ("claude", "codex", "gemini")


class Machine:
    """A home and a working directory, with one CLI."""

    def __init__(self, root: Path, provider: str) -> None:
        self.home, self.cwd = root / "home", root / "project"
        for folder in (self.home, self.cwd):
            folder.mkdir(parents=True)
        self.env: dict[str, str | None] = {
            "HOME": str(self.home),
            "PATH": str(root),  # There is no CLI here, so its version is not known.
            **dict.fromkeys(("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME")),
        }
        kinds = {"claude": ClaudeCliRuntime, "codex": CodexCliRuntime, "gemini": GeminiCliRuntime}
        self.runtime: CLIRuntimeBase = kinds[provider]()
        self.provider = provider

    @property
    def log(self) -> Path:
        """The session's own file, which need not exist."""
        found = [path for path in self.home.rglob("*.jsonl") if path.parent.name != "subagents"]
        if found:
            (path,) = found
            return path
        slug = "".join(letter if letter.isalnum() else "-" for letter in str(self.cwd))
        return (
            self.home
            / {
                "claude": f".claude/projects/{slug}/{ID}.jsonl",
                "codex": f".codex/sessions/2026/11/18/rollout-2026-11-18T17-18-10-{ID}.jsonl",
                "gemini": f".gemini/tmp/project/chats/session-2026-11-18T17-18-{ID[:8]}.jsonl",
            }[self.provider]
        )

    def say(self, *words: str) -> None:
        """Append these words to the session's log, as if a turn had been run."""
        path = self.log
        if not path.exists():
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps({"sessionId": ID}) + "\n", encoding="utf-8")
            if self.provider == "gemini":
                (path.parent.parent / ".project_root").write_text(str(self.cwd), encoding="utf-8")
        with path.open("a", encoding="utf-8") as file:
            file.writelines(
                json.dumps({"type": "user", "uuid": word, "id": word, "content": word}) + "\n" for word in words
            )

    def words(self) -> list[str]:
        """What was said in the session."""
        lines = [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]
        return [line["content"] for line in lines[1:]]

    def export(self) -> bytes:
        return self.runtime.export_session(ID, working_directory=self.cwd, env=self.env)

    def take(self, data: bytes, *, replace: bool = False) -> str:
        return self.runtime.import_session(data, working_directory=self.cwd, env=self.env, replace=replace)
