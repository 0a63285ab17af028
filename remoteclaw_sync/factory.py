"""Makes a runtime by its provider's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from .clis.acp.profiles import profile_named
from .clis.registry import NAMES, runtime_class_of
from .errors import UnknownProviderError
from .runtime import CliOptions, CLIRuntimeBase

if TYPE_CHECKING:
    from .clis.acp.runtime import AcpOptions, AcpRuntime
    from .clis.claude.runtime import ClaudeCliRuntime
    from .clis.codex.runtime import CodexCliRuntime, CodexOptions
    from .clis.gemini.runtime import GeminiCliRuntime, GeminiOptions
    from .clis.opencode.runtime import OpenCodeCliRuntime, OpenCodeOptions
    from .demo.runtime import DemoOptions, DemoRuntime

SUPPORTED_PROVIDERS = NAMES
ACP = "acp"  # Any agent that speaks the Agent Client Protocol.
DEMO = "demo"  # Not a supported CLI, but a runtime like any other.


@overload
def create_cli_runtime(provider: Literal["claude"], **options: Unpack[CliOptions]) -> ClaudeCliRuntime: ...
@overload
def create_cli_runtime(provider: Literal["gemini"], **options: Unpack[GeminiOptions]) -> GeminiCliRuntime: ...
@overload
def create_cli_runtime(provider: Literal["codex"], **options: Unpack[CodexOptions]) -> CodexCliRuntime: ...
@overload
def create_cli_runtime(provider: Literal["opencode"], **options: Unpack[OpenCodeOptions]) -> OpenCodeCliRuntime: ...
@overload
def create_cli_runtime(
    provider: Literal["acp", "qwen", "goose", "mistral-vibe", "claude-agent-acp", "codex-acp"],
    **options: Unpack[AcpOptions],
) -> AcpRuntime: ...
@overload
def create_cli_runtime(provider: Literal["demo"], **options: Unpack[DemoOptions]) -> DemoRuntime: ...
@overload
def create_cli_runtime(provider: str, **options: Unpack[CliOptions]) -> CLIRuntimeBase: ...
def create_cli_runtime(provider: str, **options: Any) -> CLIRuntimeBase:
    """Make the runtime for a provider. Case and surrounding spaces do not matter. Options go to its constructor.

    "demo" is an agent that comes with this package and needs neither a CLI nor an account. "acp" is any agent that
    speaks the Agent Client Protocol (`command=["goose", "acp"]`); some agents have their own names ("goose", "qwen").
    Raises UnknownProviderError (a ValueError), which lists the known names.
    """
    name = provider.strip().lower() if isinstance(provider, str) else ""
    if name not in NAMES and profile_named(name) is not None:
        options = {"profile": name, **options}
        name = ACP
    return runtime_class(name, provider)(**options)


def runtime_class(name: str, asked_for: object = None) -> type[CLIRuntimeBase]:
    """The runtime class for this provider (a name in SUPPORTED_PROVIDERS, "acp" or "demo")."""
    if name == DEMO:
        from .demo.runtime import DemoRuntime

        return DemoRuntime
    if name == ACP:
        from .clis.acp.runtime import AcpRuntime

        return AcpRuntime
    if name not in NAMES:
        error = UnknownProviderError(name if asked_for is None and name else asked_for, SUPPORTED_PROVIDERS)
        error.add_note(f'"{DEMO}" works without a CLI')
        raise error
    return runtime_class_of(name)
