"""Joining (spec 40, "Joining"): the key is made and safe on disk first, then the token is shown to the site.

A join whose answer was lost is simply made again: the same key gets the same machine.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from pathlib import Path

import corral
from corral.agent.backoff import Jitter
from corral.agent.inventory import host
from corral.agent.inventory.files import printable
from corral.agent.link import removed_by, retry_after
from corral.agent.records import forget
from corral.agent.site import Site
from corral.agent.state import CA, KEY, MACHINE, TOMBSTONE, Machine, StateError, StateFolder, clean_token
from corral.protocol import codec
from corral.protocol.messages import PROTOCOL_VERSION, JoinAnswer, JoinRequest

JOIN_PATH = "/api/v1/agent/join"
MAX_ANSWER = 1 << 20
TIMEOUT_S = 30.0


class JoinRefused(Exception):
    """The site says no; asking again does not help. The message is for people."""


class JoinUnanswered(Exception):
    """The site could not be asked; asking again may help."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


@dataclass(frozen=True)
class Attempt:
    """One way to the site."""

    site: Site
    wait_s: float
    """Tries that get no answer are repeated for so long."""
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def join(state: StateFolder, token_file: Path, attempt: Attempt) -> Machine:
    """Make this host a machine of the site; return which. The token file is removed then.

    Errors: `StateError`, `JoinRefused`, `JoinUnanswered`.
    """
    token = _token(token_file)
    _clear_the_buried(state)
    key = state.make_key()
    answer = _until_answered(attempt, _request(token, key))
    machine = Machine(attempt.site.url, answer.machine, answer.name, answer.org, answer.cluster, answer.incarnation)
    if attempt.site.ca:
        state.write_text(CA, attempt.site.ca)
    else:
        state.remove(CA)
    state.write(MACHINE, machine)
    _remove_token(token_file, attempt.say)
    return machine


def _token(path: Path) -> str:
    try:
        return clean_token(path.read_bytes()[:4096])
    except OSError as error:
        raise StateError(f"the token file {path} cannot be read: {error.strerror}") from error


def _remove_token(path: Path, say: Callable[[str], None]) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        say(f"warning: the used token file {path} could not be removed: {error.strerror}")


def _clear_the_buried(state: StateFolder) -> None:
    """A machine that was removed joins anew: with a new key it is a new machine."""
    stone = state.tombstone()
    if stone is None:
        return
    if not stone.done:
        raise StateError(
            f"this host was machine {stone.name}, which was removed; its work still has to end. "
            "Start the agent once (corral agent run), then join again"
        )
    state.remove(KEY)
    state.remove(MACHINE)
    forget(state)
    for name in state.names("work"):
        state.remove(name)
    state.remove(TOMBSTONE)


def _request(token: str, key: str) -> JoinRequest:
    return JoinRequest(
        token=token,
        key=key,
        hostname=host.hostname(),
        protocol=PROTOCOL_VERSION,
        release=corral.__version__,
        arch=host.arch(),
    )


def _until_answered(attempt: Attempt, request: JoinRequest) -> JoinAnswer:
    jitter = Jitter(1.0, 15.0)
    give_up = attempt.clock() + attempt.wait_s
    while True:
        try:
            return ask(attempt.site, request)
        except JoinUnanswered as unanswered:
            delay = jitter.next(unanswered.wait_s)
            if attempt.clock() + delay >= give_up:
                raise
            attempt.say(f"{unanswered}; trying again in {delay:.0f} s")
            attempt.sleep(delay)


def ask(site: Site, request: JoinRequest) -> JoinAnswer:
    """Show the token to the site once. Errors: `JoinRefused`, `JoinUnanswered`."""
    body = json.dumps(codec.to_plain(request)).encode()
    headers = {"Content-Type": "application/json", "User-Agent": f"corral-agent/{corral.__version__}"}
    http = urllib.request.Request(site.url + JOIN_PATH, body, headers)  # noqa: S310 (`Site` takes http and https only)
    try:
        with site.http.open(http, timeout=TIMEOUT_S) as answer:
            return _joined(answer.read(MAX_ANSWER))
    except urllib.error.HTTPError as error:
        with error:
            raise _said_no(error.code, error.headers, _body(error)) from error
    except urllib.error.URLError as error:
        raise JoinUnanswered(f"{site.url} cannot be reached: {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise JoinUnanswered(f"the answer of {site.url} was cut off: {error}") from error


def _joined(body: bytes) -> JoinAnswer:
    try:
        return codec.from_plain(JoinAnswer, json.loads(body))
    except (ValueError, RecursionError) as error:
        raise JoinUnanswered("the site's answer was cut off or is not Corral's") from error


def _body(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read(MAX_ANSWER)
    except (OSError, HTTPException):
        return b""


def _said_no(status: int, headers: Message, body: bytes) -> Exception:
    if removed_by(status, body) is not None:
        return JoinRefused(
            "this host's machine was removed in Corral. Start the agent once (corral agent run): it ends the old "
            "machine's work; then join again with a new token"
        )
    message = _message(body) or f"HTTP {status}"
    if 300 <= status < 400:
        return JoinRefused(f"the site answers with a redirect (HTTP {status}); use its own address")
    if status in (408, 425, 429) or status >= 500:
        return JoinUnanswered(f"the site cannot join this machine now: {message}", retry_after(dict(headers.items())))
    if status == 404 and not _message(body):
        return JoinRefused("no Corral answers at this address; check the URL")
    return JoinRefused(message)


def _message(body: bytes) -> str:
    try:
        answer = json.loads(body)
        return printable(str(answer["message"]), 1000)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
