"""Which values of a run are secret."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import attrs

from ..types import AgentExecuteParams, McpServerConfig

# Found in the names of variables, headers, parameters and fields that hold a secret. Not PWD itself.
_SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASS|AUTH|CREDENTIAL|COOKIE|BEARER|JWT|SIGNATURE|PRIVATE"
    r"|[_-]PWD|(?:^|[_-])(?:PIN|SIG|SAS|DSN|PAT|PW|OTP|CREDS?)(?:[_-]|$)",
    re.IGNORECASE,
)
# Words that only look like such names.
_ORDINARY_WORD = re.compile(
    r"(?<![A-Za-z])(?:(?:MON|TUR|DON)KEY|KEY(?:BOARD|RING|MAP|BIND|BINDING|WORD)S?|COMPASS|BYPASS|ASKPASS|PASSENGERS?"
    r"|PASSTHROUGH|PASSIVE|PASSENV|TOKENIZERS?|AUTHORS?|X?AUTHORITY)(?![A-Za-z])",
    re.IGNORECASE,
)
# Last words that make it the name of a setting or a place instead of a secret: AUTH_TYPE, KEY_FILE.
_SETTING = re.compile(
    r"[_-](?:TYPE|MODE|METHOD|COUNT|LIMIT|BUDGET|TTL|TIMEOUT|SIZE|VERSION|PROVIDER|BACKEND|ALGORITHM|ENABLED|REQUIRED"
    r"|SOCK|FILE|DIR|HOST|DOMAIN|URL|URI|ENDPOINT|SCOPES?)$",
    re.IGNORECASE,
)
# Counts of a model's tokens: MAX_TOKENS=32000.
_AMOUNT = re.compile(r"TOKENS(?![A-Za-z])|(?:^|[_-])(?:MAX|MIN)[_-]", re.IGNORECASE)
# Values that are only switches, although the variable's name sounds secret (DISABLE_AUTH=true,
# TOKENIZERS_PARALLELISM=false).
_SWITCH = re.compile(
    r"true|false|yes|no|on|off|none|null|auto|default|enabled|disabled|always|never|required|optional|\d", re.IGNORECASE
)

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s\"'<>]+")
_USERINFO = re.compile(r"//([^/?#]*)@")
# A password in which "?" and "#" should have been encoded but are not. Many programs accept that.
_RAW_PASSWORD = re.compile(r"//[^\s:/@\"']*:([^\s/\"']+)@")
_SECRET_URL = re.compile(r"WEBHOOK", re.IGNORECASE)  # The path of the URL is the secret.
_PARAMETER = re.compile(r"[?&;#]([^=&;#]*)=([^&;#]*)")
# A key rather than a word, in a path (`/mcp/s/NjYyM2E4ZTc1OWQw/sse`) or a header: letters mixed with digits, upper
# mixed with lower case, or a prefix that vendors use for their keys.
_KEY = re.compile(
    r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])(?:[A-Za-z0-9_]{12,}|[^/?#\s]{16,})"
    r"|(?=.*[a-z])(?=.*[A-Z])[A-Za-z]{20,}"
    r"|(?:sk|pk|rk|ghp|gho|glpat|xox[a-z])[-_][A-Za-z0-9_.-]{8,}"
)
# host=h password=p, {Authorization = "Bearer p"}. The value is matched separately, because it may contain another name.
# Does not match a word after a colon in a sentence (the password: the user has it).
_ASSIGNMENT = re.compile(
    r"(?<![\w.-])([\w.-]+)[\"']?\s*(?:=|:(?!\s+(?!bearer|basic)[A-Za-z]+(?![^\s.,;])))\s*", re.IGNORECASE
)
_ASSIGNED = re.compile(
    r"\"([^\"]+)\"|'([^']+)'|[\"']?((?:(?:bearer|basic|token)(?:\s+|%20))?[^\s;&,\"']+)", re.IGNORECASE
)
_FLAG = re.compile(r"--?([\w-]+)(?:=(.*))?", re.DOTALL)
_FRAME = re.compile(r"-{3,}.*-{3,}")  # -----BEGIN PRIVATE KEY-----

SHORTEST_LINE = 8  # Of a secret with several lines: a shorter line is an ordinary word.
SHORTEST_WORD = 6  # Of a header's value.


@attrs.frozen
class Secret:
    """A value to hide. `named`: its name shows that it is secret; otherwise we hide it only to be safe."""

    value: str
    named: bool = True


def secrets_of_run(
    params: AgentExecuteParams,
    env: Callable[[], Mapping[str, str | None]],
    command: Iterable[str] = (),
    *,
    every_value: bool = False,
) -> Iterator[Secret]:
    """The secrets of a run with this environment (all of the CLI's): values of variables and arguments (including those
    in `command`) with secret-sounding names, credentials in URLs, and all values given to MCP servers. `every_value`:
    also everything else in `params.env` and `params.extra_args`. Some values are yielded twice."""
    yield from _of_variables({**env(), **params.env})
    yield from _of_arguments(command)
    yield from _of_arguments(params.extra_args)
    for server in params.mcp_servers.values():
        yield from secrets_of_server(server)
    if every_value:
        yield from (Secret(value, named=False) for value in params.env.values() if value)
        for argument in params.extra_args:
            flag = _FLAG.fullmatch(argument)
            yield Secret((flag.group(2) or "") if flag else argument, named=False)


def secrets_of_server(server: McpServerConfig) -> set[Secret]:
    """The values given to an MCP server that nobody else should see."""
    found = {*_of_variables(server.env), *_of_arguments(server.args)}
    found |= {Secret(value, named=False) for value in server.env.values() if value}
    for name, value in server.headers.items():
        found.add(Secret(value, named=False))
        if is_secret_name(name) or len(value.split()) == 2:
            found |= _forms(value)
        else:
            found |= {Secret(word) for word in value.split() if _KEY.fullmatch(word)}
    if server.url is not None:
        found |= {*_of_url(server.url, every_parameter=True)}
    return found


def has_secrets(server: McpServerConfig) -> bool:
    """Whether this server's entry must be kept where other users cannot read it."""
    return bool(server.env or server.headers or secrets_of_server(server))


def _of_variables(env: Mapping[str, str | None]) -> Iterator[Secret]:
    for name, value in env.items():
        if not value:
            continue
        if _is_secret(name, value):
            yield from _forms(value)
        if name.lower().endswith("_proxy") and "://" not in value:
            value = f"http://{value}"
        yield from _inside(value, every_parameter=bool(_SECRET_NAME.search(name) or _SECRET_URL.search(name)))


def is_secret_name(name: str) -> bool:
    """Whether something with this name is a secret."""
    return _SECRET_NAME.search(_ORDINARY_WORD.sub("", name)) is not None and not _SETTING.search(name)


def _is_secret(name: str, value: str) -> bool:
    if not is_secret_name(name) or _SWITCH.fullmatch(value) or _is_path(value):
        return False
    return not (value.isdecimal() and _AMOUNT.search(name))


def _is_path(value: str) -> bool:
    # As in GOOGLE_APPLICATION_CREDENTIALS: the folder's name occurs in many messages.
    return value.startswith(("/", "~/")) and "\0" not in value and os.path.exists(os.path.expanduser(value))


def _of_arguments(arguments: Iterable[str]) -> Iterator[Secret]:
    """`--api-key=VALUE`, `--api-key VALUE`, `Authorization: Bearer VALUE`, URLs."""
    names_next = False
    for argument in arguments:
        flag = _FLAG.fullmatch(argument)
        value = flag.group(2) if flag else argument
        secret = is_secret_name(flag.group(1)) if flag else names_next
        if secret and value:
            yield from _forms(value)
        if value:
            yield from _inside(value)
        names_next = flag is not None and secret and value is None


def _inside(text: str, *, every_parameter: bool = False) -> Iterator[Secret]:
    """The secrets inside a text that is not itself a secret: in URLs, JSON, headers, assignments."""
    if ":" not in text and "=" not in text:
        return
    for url in _URL.findall(text):
        yield from _of_url(url, every_parameter=every_parameter)
    yield from map(Secret, _RAW_PASSWORD.findall(text))
    yield from _in_json(text)
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and is_secret_name(name) and re.fullmatch(r"[\w-]+", name) and not _is_path(value):
            yield from _forms(value.strip())
    for assignment in _ASSIGNMENT.finditer(text):
        name = assignment.group(1)
        found = _ASSIGNED.match(text, assignment.end()) if is_secret_name(name) else None
        value = "".join(filter(None, found.groups())) if found else ""
        if value and _is_secret(name, value):
            yield from (secret for form in (value, value.rstrip("}])"), unquote(value)) for secret in _forms(form))


def _of_url(url: str, *, every_parameter: bool) -> Iterator[Secret]:
    """The URL's user and password, its parameters, and anything in its path that looks like a key."""
    head = re.split(r"[?#]", url, maxsplit=1)[0]
    userinfo = _USERINFO.search(head)
    if userinfo and userinfo.group(1):
        whole = userinfo.group(1)
        user, _, password = whole.partition(":")
        if password:
            yield from map(Secret, (whole, unquote(whole), unquote(password)))
        elif (
            every_parameter or "http" in url.partition(":")[0].lower()
        ):  # It is a token. Not so in ssh://git@host, postgres://postgres@host.
            yield Secret(unquote(user))
    for name, value in _PARAMETER.findall(url):
        if value and is_secret_name(name):
            yield Secret(unquote(value))
        elif value and every_parameter:
            yield Secret(unquote(value), named=False)
    if every_parameter:
        query, _, fragment = url[len(head) :].lstrip("?").partition("#")
        yield from (Secret(part, named=False) for part in (query, fragment.lstrip("#")) if part)
        path = head.partition("://")[2].split("/")[1:]
        yield from (Secret(unquote(part)) for part in path if _KEY.fullmatch(part))


def _forms(value: str) -> set[Secret]:
    """A value, and the parts of it that are secrets themselves."""
    found = {value}
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) > 1:
        found |= {line for line in lines if len(line) >= SHORTEST_LINE and not _FRAME.fullmatch(line)}
    elif len(words := value.split()) > 1:
        # The words after an auth scheme, and the pairs of a cookie or a Digest.
        for word in re.split(r"[\s,;]+", value)[1 if words[0].isalpha() or words[0].startswith("AWS4") else 0 :]:
            name, equals, right = word.partition("=")
            found |= {part.strip('"') for part in (word, right) if len(part) >= SHORTEST_WORD or len(words) == 2}
            if not equals:
                found.discard(right)
        if words[0].lower() == "basic":
            found |= _of_basic(words[1])
    elif "=" in value and ";" not in value:
        right = value.partition("=")[2].strip('"')
        found |= set() if _SWITCH.fullmatch(right) else {right}
    return {Secret(part) for part in found if part.strip()}


def _of_basic(encoded: str) -> set[str]:
    try:
        decoded = base64.b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, ValueError):
        return set()
    return {decoded, decoded.partition(":")[2]}


def _in_json(value: str) -> Iterator[Secret]:
    """The secrets in a JSON document, such as a service account's, or a CLI's settings."""
    if not value.lstrip().startswith(("{", "[")):
        return
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return
    queue: list[tuple[str, Any]] = [("", document)]
    while queue:
        name, item = queue.pop()
        if isinstance(item, dict):
            queue += item.items()
        elif isinstance(item, list):
            queue += [(name, part) for part in item]
        elif isinstance(item, str) and _is_secret(name, item):
            yield from _forms(item)
