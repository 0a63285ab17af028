"""The settings of a live OpenCode session, as plain values. The dialect sends them to the server."""

from __future__ import annotations

import base64
import itertools
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import attrs

from ...files import read_regular
from ...types import PermissionMode
from ...wire.fields import Message
from ..shared import image_type

MAX_IMAGE_BYTES = 32 * 1024 * 1024
TITLE_CHARACTERS = 50
# Flags that `opencode run` takes and `opencode acp` does not: here they are fields of a request.
PROMPT_FLAGS = ("--agent", "--variant", "--title")


@attrs.frozen(kw_only=True)
class SessionSettings:
    """The settings of a session, in OpenCode's terms."""

    directory: str = "/"
    session_id: str | None = None  # To be resumed.
    model: str | None = None
    agent: str | None = None
    variant: str | None = None
    title: str | None = None
    generates_title: bool = False
    system: str | None = attrs.field(default=None, repr=False)
    mode: PermissionMode = "default"
    asks: bool = False  # Whether our rules make OpenCode ask for what its own may allow or deny.
    servers: Collection[str] = ()

    def title_for(self, prompt: str) -> Message:
        """Without a title OpenCode would ask its model for one, and no usage figure would include that request."""
        if self.title is None and self.generates_title:
            return {}
        words = " ".join(prompt.split()) if self.title is None else self.title
        return {"title": words[:TITLE_CHARACTERS] or "-"}

    def options(self, model: str | None) -> Message:
        """The fields of every prompt."""
        given: Message = {"agent": self.agent, "variant": self.variant, "system": self.system}
        if model is not None:
            given["model"] = model_reference(model)
        return {name: value for name, value in given.items() if value is not None}


def model_reference(model: str) -> Message:
    """`provider/model`, where the model's own name may have slashes."""
    provider, _, name = model.partition("/")
    return {"providerID": provider, "modelID": name}


def prompt_parts(prompt: str, images: Iterable[str | os.PathLike[str]] = ()) -> list[Message]:
    """Text and images. Raises ValueError or OSError for an image that cannot be read."""
    return [{"type": "text", "text": prompt}, *map(_image_part, images)]


def _image_part(path: str | os.PathLike[str]) -> Message:
    media_type = image_type("images", path)
    data = base64.b64encode(read_regular(path, MAX_IMAGE_BYTES, follow=True)).decode()
    url = f"data:{media_type};base64,{data}"
    return {"type": "file", "mime": media_type, "filename": os.path.basename(os.fspath(path)), "url": url}


def route(*parts: str, **query: Any) -> str:
    """A path whose parts cannot break out of it."""
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    return f"{path}?{urlencode(query)}" if query else path


def split_arguments(extra_args: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split `extra_args` into fields of a prompt and arguments for the command line."""
    fields: dict[str, str] = {}
    rest: list[str] = []
    skip = False
    for argument, following in itertools.pairwise([*extra_args, ""]):
        flag, is_joined, value = argument.partition("=")
        if skip:
            skip = False
        elif flag in PROMPT_FLAGS:
            fields[flag.removeprefix("--")] = value if is_joined else following
            skip = not is_joined
        else:
            rest.append(argument)
    return fields, rest
