"""Python functions as tools of a run, served by a gateway that lives as long as the run.

The gateway is imported only if a run has tools: most have none, and it would double the cost of importing this package.
"""

from __future__ import annotations

import attrs

from ..types import AgentExecuteParams
from .resources import RunResources


def check_tools(params: AgentExecuteParams) -> None:
    """Raise ValueError or TypeError for a function that cannot be a tool."""
    if not params.tools:
        return
    from ..tool_server.server import SERVER_NAME
    from ..tool_server.tools import build_tools

    build_tools(params.tools)
    if SERVER_NAME in params.mcp_servers:
        raise ValueError(f"mcp_servers name {SERVER_NAME!r} is taken by `tools`")


def with_gateway(params: AgentExecuteParams, resources: RunResources) -> AgentExecuteParams:
    """The same params with the tools as an MCP server. The gateway is entered before the child starts, so it outlives
    the child."""
    if not params.tools:
        return params
    from ..tool_server.server import Gateway

    gateway = resources.enter_context(Gateway(params.tools))
    servers = gateway.mcp_servers(params.mcp_servers)
    (own,) = servers.keys() - params.mcp_servers.keys()
    resources.functions = {own: tuple(tool.name for tool in gateway.tools)}
    return attrs.evolve(params, tools=(), mcp_servers=servers)
