"""No body, header, name or query makes a 5xx, a hang, or code (spec 60, line 8): every route, on both databases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from corral.usecases.attempts import Attempts
from tests.server.walk import CALLERS, STREAMS, TABLE, Line, Walk, walking

WRITING = [line for line in TABLE if line.method in ("POST", "PUT", "PATCH", "DELETE")]
WITH_BODY = [line for line in TABLE if line.body is not None]
NAMED = [line for line in TABLE if "{" in line.path and line.method != "WS"]
NOT_JSON = {
    "nothing": b"",
    "a brace": b"{",
    "words": b"hello there",
    "not UTF-8": b'{"name": "\xff\xfe"}',
    "UTF-16": '{"name": "x"}'.encode("utf-16"),
    "deep lists": b"[" * 10_000,
    "deep objects": b'{"a":' * 10_000,
    "deep and closed": b"[" * 10_000 + b"]" * 10_000,
    "deep inside": b'{"name": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "a long number": b'{"name": ' + b"9" * 5000 + b"}",
}
NO_OBJECT = [b"[]", b'"text"', b"1", b"null", b"true", b"NaN"]
HOSTILE_NAMES = ["a/b", "..", "../../etc/passwd", "a\0b", "\u202eevil", "x" * 300, "", " ", "\x1b[31mred", "\ufeff"]
HOSTILE_VALUES: list[Any] = [*HOSTILE_NAMES, None, True, -1, 10**30, 0.5, [], {}, [None], [["x"]], {"a": {"b": []}}]
IN_A_PATH = [
    "%00",
    "a%00b",
    "..%2f..",
    "%2e%2e",
    "%E2%80%AE",
    "%FF%FE",
    "x" * 300,
    "a%0Ab",
    "%20",
    "'%20OR%20'1",
    "%F0%9F%92%A9",
]
NAMES_OF_THINGS = {"slug", "login"}


@pytest.fixture(scope="module")
def walk(module_db_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    with walking(module_db_url, tmp_path_factory.mktemp("hostile")) as made:
        yield made


def _who(line: Line) -> str:
    """Return the first who is let in."""
    return CALLERS[line.who.index("+")]


def send(walk: Walk, line: Line, content: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    """Send raw bytes as somebody who is let in; check the shape of what is refused."""
    who = _who(line)
    headers = {"content-type": "application/json", **headers}
    answer = walk.world.client(who).request(line.method, walk.url(line, who), content=content, headers=headers)
    return answer.status_code, _checked(answer.status_code, answer.content, content)


def _checked(status: int, body: bytes, sent: object) -> dict[str, Any]:
    assert status < 500, (sent, body)
    if status < 400:
        return {}
    answer: dict[str, Any] = json.loads(body)
    assert set(answer) == {"code", "message", "details", "request_id"}, answer
    assert answer["code"].isupper() and answer["message"]
    assert "\x1b" not in answer["message"] and "\u202e" not in answer["message"]
    return answer


@pytest.mark.parametrize("line", WITH_BODY, ids=str)
def test_a_body_that_is_no_json_object_is_refused(walk: Walk, line: Line) -> None:
    for name, content in NOT_JSON.items():
        status, answer = send(walk, line, content)
        if content or answer:  # a body that may be left out may be empty
            assert (status, answer.get("code")) == (400, "INVALID_REQUEST"), name
            if content:
                assert "JSON in UTF-8: " in answer["message"] and "send it again" in answer["message"], (name, answer)
    for content in NO_OBJECT:
        status, answer = send(walk, line, content)
        if content != b"null" or answer:
            assert (status, answer.get("code")) == (400, "INVALID_REQUEST"), content


@pytest.mark.parametrize("line", WRITING, ids=str)
def test_a_body_of_10_megabytes_is_refused_unread(walk: Walk, line: Line) -> None:
    status, answer = send(walk, line, b'{"name": "' + b"x" * (10 * 1024 * 1024) + b'"}')
    assert (status, answer.get("code")) == (413, "TOO_LARGE")


@pytest.mark.parametrize("line", WITH_BODY, ids=str)
def test_an_unknown_field_is_refused(walk: Walk, line: Line) -> None:
    status, answer = send(walk, line, json.dumps({**(line.body or {}), "surprise": 1}).encode())
    if line.path.startswith("/api/v1/agent/"):
        return  # the agents' protocol grows: unknown fields are ignored there
    assert (status, answer.get("code")) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize("line", WITH_BODY, ids=str)
def test_no_value_of_any_field_is_too_much(walk: Walk, line: Line) -> None:
    for name in sorted(_fields(walk, line) | set(line.body or {})):
        for value in HOSTILE_VALUES:
            content = json.dumps({**(line.body or {}), name: value}).encode()
            status, answer = send(walk, line, content)
            if name in NAMES_OF_THINGS and value in HOSTILE_NAMES and value != "":
                assert 400 <= status < 500 and answer["code"], (name, value)
        for raw in (b'"\\ud800"', b"1e400", b"-0", b"NaN", b"Infinity"):
            rest = json.dumps({key: value for key, value in (line.body or {}).items() if key != name}).encode()
            joint = b", " if rest != b"{}" else b""
            send(walk, line, rest[:-1] + joint + json.dumps(name).encode() + b": " + raw + b"}")


@pytest.mark.parametrize("line", NAMED, ids=str)
def test_no_name_in_a_path_is_too_much(walk: Walk, line: Line) -> None:
    who = _who(line)
    for parameter in [part[1:-1] for part in line.path.split("/") if part.startswith("{")]:
        for name in IN_A_PATH:
            url = walk.url(line, who, **{parameter: name})
            if line.path in STREAMS and parameter != "org":
                continue
            answer = walk.world.client(who).request(line.method, url, json=line.body)
            _checked(answer.status_code, answer.content, url)
            assert answer.status_code >= 400, url


@pytest.mark.parametrize("line", [line for line in TABLE if line.method == "GET" and line.scope], ids=str)
def test_no_query_is_too_much(walk: Walk, line: Line) -> None:
    who = _who(line)
    if line.path in STREAMS:
        return
    for name in _queries(walk, line):
        for value in ("%00", "a%00b", "%FF", "-1", "9" * 40, "x" * 300, "AAAA", "_w", "%E2%80%AE", "", "1e9"):
            url = f"{walk.url(line, who)}?{name}={value}"
            answer = walk.world.client(who).get(url)
            _checked(answer.status_code, answer.content, url)


@pytest.mark.parametrize("key", ["x" * 256, "", " ", "a\tb", "\u00e9".encode().decode("latin-1")])
def test_an_idempotency_key_is_short_and_printable(walk: Walk, key: str) -> None:
    headers = {"Idempotency-Key": key.encode("latin-1")}
    answer = walk.world.client("operator").post("/api/v1/orgs", json={"slug": "a", "name": "A"}, headers=headers)
    _checked(answer.status_code, answer.content, key)


@pytest.mark.parametrize("token", ["", "x", "cora_", "cora_" + "a" * 58, "\u00e9", "x" * 5000, "cora_x y"])
def test_whatever_is_sent_as_a_token_is_401(walk: Walk, token: str) -> None:
    for scheme in ("Bearer", "bearer", "Basic", ""):
        headers = {"Authorization": f"{scheme} {token}".encode()}
        answer = walk.world.client().get("/api/v1/me", headers=headers)
        assert answer.status_code == 401
        assert _checked(401, answer.content, token)["code"] == "UNAUTHENTICATED"


@pytest.mark.parametrize("text", [*HOSTILE_NAMES, "\\ud800" * 12, "\\u0000" * 12, "\\ud800"])
def test_no_login_or_password_is_too_much(walk: Walk, text: str) -> None:
    written = text if text.startswith("\\u") else json.dumps(text)[1:-1]
    nobody = walk.world.client()
    walk.world.app.state.attempts = Attempts()
    for content in (
        f'{{"login": "{written}", "password": "wrong password"}}',
        f'{{"login": "member", "password": "{written}"}}',
        f'{{"link": "{written}", "login": "ada", "password": "{written}"}}',
        f'{{"link": "{walk.link}", "login": "ada", "password": "{written}", "name": "Ada"}}',
        f'{{"link": "{walk.link}", "login": "{written}", "password": "wrong password"}}',
        f'{{"link": "{walk.link}", "login": "ada", "name": "{written}"}}',
    ):
        path = "/api/v1/login/link" if "link" in content else "/api/v1/login"
        answer = nobody.post(path, content=content.encode(), headers={"content-type": "application/json"})
        _checked(answer.status_code, answer.content, content)


def _operation(walk: Walk, line: Line) -> dict[str, Any]:
    found: dict[str, Any] = walk.world.app.openapi()["paths"].get(line.path, {}).get(line.method.lower(), {})
    return found


def _fields(walk: Walk, line: Line) -> set[str]:
    """Return the names of the body's fields, by the OpenAPI document."""
    content = _operation(walk, line).get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = content.get("schema", {})
    for choice in (schema, *schema.get("anyOf", ())):
        if "$ref" in choice:
            name = choice["$ref"].rpartition("/")[2]
            return set(walk.world.app.openapi()["components"]["schemas"][name].get("properties", {}))
    return set()


def _queries(walk: Walk, line: Line) -> list[str]:
    return [one["name"] for one in _operation(walk, line).get("parameters", ()) if one["in"] == "query"]
