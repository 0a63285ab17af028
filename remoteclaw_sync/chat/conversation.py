"""Who talks to the agent, and where."""

from __future__ import annotations

import os

import attrs

from ..types import ChannelMessage


@attrs.frozen
class Conversation:
    """Who talks to the agent, and where. Each combination has its own session, and one run at a time."""

    workspace: str = ""
    platform: str = ""
    channel: str = ""
    user: str = ""
    thread: str = ""

    @classmethod
    def of(cls, message: ChannelMessage, workspace: str | os.PathLike[str]) -> Conversation:
        """The conversation a message belongs to, for an agent that works in this folder."""
        where = os.path.abspath(workspace)
        return cls(where, message.provider, message.channel_id, message.sender, message.thread_id or "")

    @property
    def columns(self) -> tuple[str, str, str, str, str]:
        """Its parts, in the order of the columns in the session map's file."""
        return (self.workspace, self.platform, self.channel, self.user, self.thread)
