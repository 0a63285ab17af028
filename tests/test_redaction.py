"""Secrets and prompts are found in whatever form they are quoted, and nothing else is masked."""

from __future__ import annotations

import base64
import html
import json
import unicodedata
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from remoteclaw_sync import AgentExecuteParams, McpServerConfig
from remoteclaw_sync.redaction import Redactor, Scrubber, Sieve, has_secrets, secrets_of_run
from remoteclaw_sync.redaction.letters import Letters

PASSWORD = 'p"w\\d/1 \u00e9+\u00fc&<x>'
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\r\n"
    "MIIBOgIBAAJBAKj34GkxFhD90vcNLYLInFEX6Ppy1tPf9Cnzj4p4WGeKLs1Pt8Qu\r\n"
    "KUpRKfFLfRYC9AIKjbJTWit+CqvjWYzvQwECAwEAAQ==\r\n"
    "-----END RSA PRIVATE KEY-----\r\n"
)
BASIC = base64.b64encode(b"aladdin:opensesame").decode()


def redacted(text: str, env: dict[str, str | None] | None = None, **fields: Any) -> str:
    """How a run with these fields, on a host with these variables, reports a text."""
    return Redactor(secrets_of_run(AgentExecuteParams("hi", **fields), lambda: env or {}))(text)


def of_server(**fields: Any) -> dict[str, Any]:
    return {"mcp_servers": {"s": McpServerConfig(**fields)}}


# --- which values are secret ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "secret"),
    [
        (of_server(url="https://h/mcp", headers={"Authorization": "Bearer sk-ant-123456"}), "sk-ant-123456"),
        (of_server(url="https://h/mcp", headers={"X-Any": "Token tok-987654"}), "tok-987654"),
        (of_server(url="https://h/mcp", headers={"Authorization": f"Basic {BASIC}"}), BASIC),
        (of_server(url="https://h/mcp", headers={"Authorization": f"Basic {BASIC}"}), "aladdin:opensesame"),
        (of_server(url="https://h/mcp", headers={"Authorization": f"Basic {BASIC}"}), "opensesame"),
        (of_server(url="https://h/mcp", headers={"Cookie": "a=first-cookie; b=second-one"}), "second-one"),
        (of_server(url="https://h/mcp", headers={"X-Pin": "4711"}), "4711"),
        (of_server(url="https://h/mcp?api_key=in-the-query&v=1"), "in-the-query"),
        (of_server(url="https://user:in-the-url@h/mcp"), "in-the-url"),
        (of_server(url="https://h/mcp#in-the-fragment"), "in-the-fragment"),
        (of_server(url="https://h/s/NjYyM2E4ZTc1OWQwYjE/mcp"), "NjYyM2E4ZTc1OWQwYjE"),
        (of_server(url="https://h/s/sk-live-without-digits/mcp"), "sk-live-without-digits"),
        (of_server(url="https://h/s/AbCdEfGhIjKlMnOpQrSt"), "AbCdEfGhIjKlMnOpQrSt"),
        (of_server(url="https://h/mcp/a1b2c3d4e5f6"), "a1b2c3d4e5f6"),
        (of_server(url="https://h/mcp", headers={"X-Any": "v1 of a1b2c3d4e5f6"}), "a1b2c3d4e5f6"),
        (of_server(command="x", args=("--token=in-an-argument",)), "in-an-argument"),
        (of_server(command="x", args=("--header", "Authorization: Bearer in-a-header")), "in-a-header"),
        (of_server(command="x", env={"ANY": "any-value"}), "any-value"),
        ({"env": {"MY_KEY": "of-the-caller"}}, "of-the-caller"),
        ({"env": {"MY_KEY": "a-newline-follows\n"}}, "a-newline-follows"),
        ({"env": {"DB_PWD": "abc12"}}, "abc12"),
        ({"env": {"CUSTOM_HEADERS": "X-A: b\nAuthorization: Bearer in-the-headers\nX-C: d"}}, "in-the-headers"),
        ({"env": {"HTTPS_PROXY": "http://bob:of%40proxy@h:8080"}}, "of@proxy"),
        ({"env": {"DATABASE": "host=h password=of-the-base"}}, "of-the-base"),
        ({"env": {"CREDENTIALS": json.dumps({"private_key": "one\nKUpRKfFLfRYC"})}}, "KUpRKfFLfRYC"),
        ({"extra_args": ("--api-key", "of-an-extra")}, "of-an-extra"),
        ({"extra_args": ("-c", 'x.http_headers={ "Authorization" = "Bearer in-toml" }')}, "in-toml"),
        ({"extra_args": ("-c", 'x.http_headers={X-Api-Key="in-toml"}')}, "in-toml"),
        ({"extra_args": ("--settings", '{"env": {"A_KEY": "in-settings", "URL": "http://h"}}')}, "in-settings"),
        ({"env": {"CONFIG_CONTENT": '{"options": {"apiKey": "in-json", "baseURL": "https://h"}}'}}, "in-json"),
        ({"env": {"CUSTOM_HEADERS": "Referer: https://h/\nAuthorization: Bearer after-a-url"}}, "after-a-url"),
        ({"env": {"GIT_CONFIG": "'http.extraheader=AUTHORIZATION: basic of-a-checkout'"}}, "of-a-checkout"),
        ({"env": {"OTLP_HEADERS": "authorization=Basic after-a-scheme"}}, "after-a-scheme"),
        ({"env": {"OTLP_HEADERS": "authorization=Bearer%20after-a-scheme"}}, "after-a-scheme"),
        ({"env": {"CONNECTION": "Server=https://h;Password=of-the-base;"}}, "of-the-base"),
        ({"env": {"DATABASE_URL": "postgres://app:not#encoded?@h/base"}}, "not#encoded?"),
        ({"env": {"HTTP_PROXY": "bob:without-a-scheme@proxy:8080"}}, "without-a-scheme"),
        ({"env": {"INDEX_URL": "https://token-of-a-user@h/simple"}}, "token-of-a-user"),
        ({"env": {"SLACK_WEBHOOK_URL": "https://h/services/T0/B0/aBcD1234eFgH5678"}}, "aBcD1234eFgH5678"),
        ({"env": {"GITHUB_PAT": "personal-one"}}, "personal-one"),
        (of_server(url="https://h/mcp", headers={"Cookie": "sid=ab1c2"}), "ab1c2"),
        (of_server(command="x", args=('{"token": "in-json"}',)), "in-json"),
    ],
)
def test_a_value_that_a_run_was_given_as_a_secret_is_not_told(fields: dict[str, Any], secret: str) -> None:
    assert redacted(f"refused: {secret} (401)", **fields) == "refused: [redacted] (401)"


def test_a_secret_of_the_hosts_own_environment_is_not_told() -> None:
    assert redacted("bad key sk-of-the-host", {"OPENAI_API_KEY": "sk-of-the-host"}) == "bad key [redacted]"


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"GIT_AUTHOR_NAME": "Jane Smith"}, "Jane Smith wrote it"),
        ({"PWD": "/srv/project"}, "no such file: /srv/project"),
        ({"SSH_AUTH_SOCK": "/tmp"}, "cannot write to /tmp"),
        ({"TOKENIZERS_PARALLELISM": "false"}, "it is false"),
        ({"MY_PIN": "4711"}, "port 14711, file a4711b"),
        ({"MY_KEY": "ab"}, "ab ab"),
        ({"LANG": "english"}, "english"),
        ({"PASSENGER_COUNT": "12345"}, "line 12345"),
        ({"KEYBOARD_LAYOUT": "german"}, "the german page"),
        ({"XAUTHORITY": "/gone/Xauthority"}, "no /gone/Xauthority"),
        ({"SSH_AUTH_SOCK": "/gone/agent.sock"}, "no /gone/agent.sock"),
        ({"SSH_ASKPASS": "prompter"}, "no prompter"),
        ({"TOX_TESTENV_PASSENV": "LANGUAGE HOSTNAME"}, "no LANGUAGE"),
        ({"BYPASS_LIST": "localhost"}, "cannot reach localhost"),
        ({"GEMINI_AUTH_TYPE": "oauth-personal"}, "oauth-personal is not supported"),
        ({"AUTH_URL": "https://login.example"}, "cannot reach https://login.example"),
        ({"MAX_OUTPUT_TOKENS": "32000"}, "exceeded the 32000 output token maximum"),
        ({"USE_AUTH": "enabled"}, "enabled"),
        ({"REMOTE": "ssh://git@host/x"}, "git: command not found"),
        ({"DATABASE_URL": "postgres://postgres@host/x"}, "postgres: no such role"),
        ({"PATH": "/opt/keys:/usr/bin"}, "no such file in /usr/bin"),
    ],
)
def test_what_is_no_secret_is_told(env: dict[str, str | None], text: str) -> None:
    assert redacted(text, env) == text


# --- the forms it comes in -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "quoted",
    [
        PEM,
        PEM.strip(),
        PEM.replace("\r\n", "\n"),
        json.dumps(PEM),
        json.dumps(json.dumps(PEM)),
        json.dumps(json.dumps(json.dumps(PEM))),
        quote(PEM),
        PEM.splitlines()[1],
        "    " + PEM.splitlines()[2],
        base64.b64encode(b"x" + PEM.strip().encode()).decode(),
    ],
    ids=["as is", "stripped", "LF", "JSON", "twice", "three times", "URL", "a line", "indented", "base64"],
)
def test_a_key_of_many_lines_is_found_in_any_form(quoted: str) -> None:
    told = redacted(f"cannot use {quoted}!", env={"TLS_KEY": PEM})
    assert "[redacted]" in told
    for line in PEM.splitlines()[1:3]:
        assert line[10:30] not in told
        assert base64.b64encode(line.encode()).decode()[10:40] not in told


@pytest.mark.parametrize(
    "quoted",
    [
        PASSWORD,
        json.dumps(PASSWORD),
        json.dumps(PASSWORD, ensure_ascii=False),
        json.dumps(json.dumps(PASSWORD)),
        quote(PASSWORD, safe=""),
        quote_plus(PASSWORD),
        quote_plus(PASSWORD).lower(),
        html.escape(PASSWORD),
        json.dumps(PASSWORD).replace("&", "\\u0026").replace("<", "\\u003c"),
        unicodedata.normalize("NFD", PASSWORD),
        repr(PASSWORD),
    ],
)
def test_a_password_of_odd_characters_is_found_in_any_form(quoted: str) -> None:
    assert "w" not in redacted(f"[{quoted}]", env={"A_PASSWORD": PASSWORD}).replace("[redacted]", "")


@pytest.mark.parametrize(
    "fields",
    [
        {"env": {"A_PASSWORD": "p\u00e4ss-w0rd!"}},
        of_server(command="x", env={"ANY": "p\u00e4ss-w0rd!"}),
        of_server(url="https://h/mcp", headers={"X-Any": "p\u00e4ss-w0rd!"}),
        of_server(url="https://user:p%C3%A4ss-w0rd!@h/mcp"),
    ],
    ids=["variable", "server's variable", "header", "URL"],
)
@pytest.mark.parametrize(
    "encode",
    [
        lambda data: base64.b64encode(b"user:" + data).decode(),
        lambda data: base64.urlsafe_b64encode(b"pw:" + data + b"?").decode(),
        lambda data: base64.b64encode(data).decode().rstrip("="),
        bytes.hex,
        lambda data: data.hex().upper(),
        lambda data: data.hex(" "),
        lambda data: str([*data]),
        lambda data: "".join(f"\\x{byte:02x}" for byte in data),
        lambda data: "".join(f"\\{byte:03o}" for byte in data),
        lambda data: "".join(f"\\u{{{ord(letter):x}}}" for letter in data.decode()),
        lambda data: repr(data),
    ],
    ids=["Basic", "in base64", "base64", "hex", "HEX", "buffer", "bytes", "\\xNN", "octal", "\\u{N}", "Python"],
)
def test_an_encoded_password_is_found_wherever_it_was_given(encode: Any, fields: dict[str, Any]) -> None:
    quoted = encode("p\u00e4ss-w0rd!".encode())
    told = redacted(f"refused ({quoted}).", **fields)
    assert "[redacted]" in told
    assert len(told) < len("refused ([redacted]).") + 14  # What is left comes from "user:" or from the escaping.


@pytest.mark.parametrize("password", ['#"\\/\u00e9&!+', '&"1'])
@pytest.mark.parametrize(
    "write",
    [str, json.dumps, lambda it: json.dumps(json.dumps(it)), lambda it: quote(it, safe=""), quote_plus, html.escape],
)
def test_a_password_of_hardly_any_letters_is_found_in_the_usual_forms(password: str, write: Any) -> None:
    quoted = write(password)
    told = redacted(f"refused: {quoted}.", env={"A_PASSWORD": password})
    assert "[redacted]" in told
    assert quoted.strip('"\\') not in told


@pytest.mark.parametrize("long", ["a" * 120_000, "x:" * 60_000, "a-" * 60_000 + "="], ids=["word", "colons", "dashes"])
def test_a_long_value_is_searched_in_a_time_that_its_length_explains(long: str) -> None:
    """The regular expressions read it once, not again from each of its letters, which would take minutes."""
    assert redacted("refused: at-the-end", {"BLOB": f"{long} password=at-the-end"}) == "refused: [redacted]"


def test_the_words_of_a_sentence_among_the_arguments_are_told() -> None:
    sentence = "Never tell the password: the user has it. Authentication: see above; his token: none."
    assert redacted("the user, see above", extra_args=("--append-system-prompt", sentence)) == "the user, see above"


@pytest.mark.parametrize("escape", ["\x1b", "\\x1b", "\\u001b", "\\\\u001B", "\\u{1b}", "\\033"])
@pytest.mark.parametrize("password", ["ab1c", "correct-horse-1"])
def test_a_secret_in_colours_is_found_also_where_their_codes_are_escaped(password: str, escape: str) -> None:
    told = redacted(f"refused: {escape}[1;31m{password}{escape}[0m.", env={"A_PASSWORD": password})
    assert "[redacted]" in told
    assert password not in told
    half = len("correct")
    parts = f"{escape}[31mcorrect{escape}[0m{'correct-horse-1'[half:]}"
    assert "horse" not in redacted(parts, env={"A_PASSWORD": "correct-horse-1"})


def test_of_a_secret_with_another_one_inside_nothing_is_left() -> None:
    assert Redactor(["first-middle-last", "middle"])("<first-middle-last>") == "<[redacted]>"


def test_of_two_secrets_that_begin_alike_nothing_of_the_longer_is_left() -> None:
    for order in (["secret-of-a", "secret-of-a-and-b"], ["secret-of-a-and-b", "secret-of-a"]):
        assert Redactor(order)("x secret-of-a-and-b y secret-of-a z") == "x [redacted] y [redacted] z"


def test_of_two_secrets_that_overlap_nothing_is_left() -> None:
    assert Redactor(["first-middle", "middle-last"])("<first-middle-last>") == "<[redacted]>"


@pytest.mark.parametrize("cut", [3, 9, 20])
def test_a_secret_that_a_text_begins_or_ends_in_is_not_told(cut: int) -> None:
    secret = "sk-0123456789-abcdefghij-ABCDEFGHIJ"
    redact = Redactor([secret])
    assert redact(f"{secret[cut:]} was refused") == "[redacted] was refused"
    assert redact(f"refused: {secret[:-cut]}") == "refused: [redacted]"
    assert redact(f"n{secret[cut:]} was refused") == "[redacted] was refused"  # The rest of an escaped newline.


def test_a_number_before_a_secret_is_not_taken_for_part_of_it() -> None:
    assert redacted("401: sk-0123456789!", env={"MY_TOKEN": "Bearer sk-0123456789"}) == "401: [redacted]!"


def test_the_letters_of_a_text_lead_back_to_their_places() -> None:
    text = 'a\u0301 %41\\u0042 \\"c\\" &lt;d&#69; \x1b[1mF'
    view = Letters(text)
    assert view.letters == "aABcdEF"
    assert [text[slice(*view.place(at, at + 1))] for at in range(7)] == ["a", "%41", "\\u0042", "c", "d", "&#69;", "F"]


@pytest.mark.parametrize(
    ("server", "secret"),
    [
        (McpServerConfig("x", ("--verbose",)), False),
        (McpServerConfig(url="https://example.com/mcp/v1"), False),
        (McpServerConfig(url="https://mcp.example.com/streamable-http/tools_of_ours"), False),
        (McpServerConfig(url="https://example.com/mcp?key=1"), True),
        (McpServerConfig(url="https://u@example.com/mcp"), True),
        (McpServerConfig(url="https://example.com/mcp#t"), True),
        (McpServerConfig("x", ("https://example.com/mcp?token=abcdef",)), True),
    ],
)
def test_a_server_with_a_key_in_its_url_has_a_secret(server: McpServerConfig, secret: bool) -> None:
    assert has_secrets(server) is secret


# --- prompts in recordings -------------------------------------------------------------------------------------------

PROMPT = "Read @notes.txt and log in\r\nwith the password hunter2-hunter2, s\u00e9curit\u00e9 d'abord"


@pytest.mark.parametrize(
    "echo",
    [
        {"title": PROMPT[:22]},
        {"title": PROMPT[:22] + "..."},
        {"title": PROMPT[:22] + "\u2026"},
        {"x": f"You said: {PROMPT!r}"},
        {"x": PROMPT.replace("\r\n", "\n")},
        {"x": "> " + PROMPT.replace("\r\n", "\n> ")},
        {"x": PROMPT.splitlines()[1]},
        {"x": unicodedata.normalize("NFD", PROMPT)},
        {"x": html.escape(PROMPT)},
        {"x": quote_plus(PROMPT)},
        {"x": json.dumps({"y": json.dumps(PROMPT)})},
        {"x": PROMPT.replace("@", "\\@")},
        {"status": PROMPT},
        {PROMPT: 1},
        {"a": {PROMPT: {"b": [PROMPT]}}},
        {"type": "message", "role": "user", "content": "whatever has become of: hunter2"},
        {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": "hunter2"}]}},
    ],
)
def test_an_echo_of_the_prompt_is_taken_out_of_a_line(echo: dict[str, Any]) -> None:
    scrub = Scrubber([PROMPT], [])
    line = json.dumps(echo)
    clean = scrub(line)
    assert json.loads(clean).keys() == echo.keys() or PROMPT in echo
    for words in ("notes", "hunter2", "curit"):
        assert words not in clean
    broken = scrub(line[:-1])  # The CLI died.
    for words in ("notes", "hunter2", "curit"):
        assert words not in broken


@pytest.mark.parametrize("size", [1, 2, 5, 11, 30])
def test_an_echo_in_pieces_is_taken_out_of_all_of_them(size: int) -> None:
    sieve = Sieve[int](Scrubber([PROMPT], ["sk-0123456789"]))
    said = f"You said: {PROMPT} with sk-0123456789!"
    pieces = [said[at : at + size] for at in range(0, len(said), size)]
    lines = [json.dumps({"type": "text", "text": piece, "id": number}) for number, piece in enumerate(pieces)]
    out = [ready for number, line in enumerate(lines) for ready in sieve.push(number, line)] + sieve.flush()
    assert [number for number, _ in out] == list(range(len(pieces)))
    heard = "".join(json.loads(line)["text"] for _, line in out)
    assert len(heard) == len(said)
    for words in ("notes", "log in", "hunter2", "curit", "sk-0", "456789"):
        assert words not in heard
    assert heard.startswith("You said: ")


def test_pieces_that_only_begin_like_the_prompt_are_recorded_as_they_are() -> None:
    sieve = Sieve[int](Scrubber(["Hello agent, how are you?"], []))
    lines = [json.dumps({"text": piece}) for piece in ("Hello", " agent", " Smith", "H", "i")]
    out = [ready for number, line in enumerate(lines) for ready in sieve.push(number, line)] + sieve.flush()
    assert [line for _, line in out] == lines


def test_lines_that_wait_for_the_rest_of_an_echo_do_not_pile_up() -> None:
    sieve = Sieve[int](Scrubber(["Hello agent, how are you?"], []))
    sieve.push(0, '{"text": "Hello"}')
    waiting = 1
    for number in range(1, 1000):
        waiting += 1 - len(sieve.push(number, '{"other": "x"}'))
        assert waiting <= 201


@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        ("pw hunter2", "hunter2"),
        ("sk-ab", "sk-ab"),
        ("/clear", "clear"),
        ("4711", "4711"),
        ("hunter2!", "hunter2"),
        ("\u6211\u7684\u5bc6\u7801\u662f\u732b", "\u5bc6\u7801"),
    ],
)
def test_a_short_prompt_that_is_no_ordinary_word_is_taken_out_of_a_line(prompt: str, word: str) -> None:
    scrub = Scrubber([prompt], [])
    for echo in (prompt, prompt.title(), f"New session: {prompt}"):
        assert word not in json.loads(scrub(json.dumps({"title": echo})))["title"].lower()
    assert word not in scrub.plain(f"cannot answer {prompt}")


@pytest.mark.parametrize("prompt", ["yes", "go on", "continue"])
def test_a_short_prompt_of_an_ordinary_word_stays_where_it_is_not_the_users(prompt: str) -> None:
    line = json.dumps({"type": "text", "text": f"I say {prompt}, {prompt}!"})
    assert Scrubber([prompt], [])(line) == line


def test_what_the_agent_says_of_the_matter_stays() -> None:
    line = json.dumps({"type": "text", "text": "I read notes.txt; the login with that password failed."})
    assert Scrubber([PROMPT], [])(line) == line


def test_a_tool_result_in_the_users_name_stays() -> None:
    block = {"type": "tool_result", "tool_use_id": "1", "content": "total 12"}
    line = json.dumps({"type": "user", "message": {"role": "user", "content": [block]}})
    assert Scrubber([PROMPT], [])(line) == line


def test_a_word_of_the_protocol_that_is_also_a_secret_stays_where_parsers_need_it() -> None:
    clean = json.loads(Scrubber([], ["message", "content"])('{"type": "message", "content": "a content"}'))
    assert clean == {"type": "message", "content": "a *******"}


def test_a_secret_in_a_key_that_is_there_twice_is_not_kept() -> None:
    assert "sk-0123456789" not in Scrubber([], ["sk-0123456789"])('{"a": "sk-0123456789", "a": 1}')


def test_a_secret_that_is_written_as_a_number_is_not_kept() -> None:
    assert json.loads(Scrubber([], ["123456789"])('{"pin": 123456789}')) == {"pin": 0}


@pytest.mark.slow
def test_a_prompt_of_megabytes_is_recognised() -> None:
    prompt = " ".join(f"word{number}" for number in range(300_000))
    scrub = Scrubber([prompt], [])
    assert "word299" not in scrub(json.dumps({"role": "x", "text": prompt}))
    assert "word2001 word2002" not in scrub(json.dumps({"text": prompt[20_000:40_000]}))
