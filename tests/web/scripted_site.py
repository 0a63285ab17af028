"""The chat page with an agent that follows a file: `python -m tests.web.scripted_site FOLDER`.

A prompt is the name of a file in the folder, whose lines are events, as JSON. At `{"type": "wait", "for": NAME}` the
agent waits until a file of that name exists.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from remoteclaw_sync import AgentEvent, event_from_dict
from remoteclaw_sync.cli.strangers import create_server
from remoteclaw_sync.web import Runs
from remoteclaw_sync.web.conversations import Conversations
from remoteclaw_sync.web.door import Door
from remoteclaw_sync.web.page import Chat, Settings
from remoteclaw_sync.web.uploads import MAX_IMAGE, Uploads
from remoteclaw_sync.web.warm import Wanted
from tests.fakes import wait_until


class Player:
    """Plays the files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, key: str, wanted: Wanted) -> Iterator[AgentEvent]:
        with (self.folder / wanted.prompt).open(encoding="utf-8") as lines:
            for line in lines:
                event = json.loads(line)
                if event.get("type") == "wait":
                    wait_until((self.folder / event["for"]).exists)
                else:
                    yield event_from_dict(event)

    def change(self, key: str, provider: str, model: str | None, permission_mode: str) -> None:
        pass

    def close(self, key: str) -> None:
        pass


def main(folder: Path) -> None:
    door = Door(lambda link: None)
    chat = Chat(
        door=door,
        hosts=None,
        settings=Settings(
            providers={"demo": True, "other": True}, provider="demo", cached_in_input=["other"], folder="~/project"
        ),
        agents=Player(folder),
        runs=Runs(folder / "runs"),
        conversations=Conversations(str(folder / "conversations")),
        uploads=Uploads(str(folder / "images")),
    )
    server = create_server(
        chat, lambda headers: chat.admits(dict(headers)), host="127.0.0.1", port=0, threads=16, max_body=MAX_IMAGE
    )
    print(f"Open http://127.0.0.1:{server.effective_port}/#token={door.link}", flush=True)
    server.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
