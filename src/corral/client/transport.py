"""Requests that survive a bad network: retried where that is safe, under one Idempotency-Key.

A POST carries a key, so a retry after a lost answer makes nothing twice. 429 and 503 are
waited out as `Retry-After` says; other waits grow with full jitter.
"""

from __future__ import annotations

import random
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx

from corral import __version__
from corral.client.config import Site
from corral.client.errors import BAD_ANSWER, UNREACHABLE, UNTRUSTED, CorralError

TRIES = 5
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 8.0
_PASSING = frozenset({429, 502, 503, 504})
Params = Mapping[str, Any]


class Transport:
    """HTTP to one site. `sleep` is replaced in tests."""

    def __init__(self, site: Site, *, timeout_s: float = 60.0, sleep: Callable[[float], None] = time.sleep) -> None:
        self.site = site
        self._sleep = sleep
        headers = {"User-Agent": f"corral/{__version__}"}
        if site.token:
            headers["Authorization"] = f"Bearer {site.token}"
        self._http = httpx.Client(
            base_url=site.url,
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=10.0),
            verify=ssl_context(site),
            follow_redirects=False,
        )

    def close(self) -> None:
        self._http.close()

    def call(
        self, method: str, path: str, body: Any = None, params: Params | None = None, *, once: bool = False
    ) -> Any:
        """Return the answer's JSON (None when it has none). Errors: `CorralError`.

        `once`: never sent twice (a one-time link would be used up by the first).
        """
        headers = {"Idempotency-Key": str(uuid.uuid4())} if method == "POST" and not once else {}
        given = {k: v for k, v in (params or {}).items() if v is not None}
        lost = False
        for attempt in range(1, TRIES + 1):
            last = once or attempt == TRIES
            try:
                response = self._http.request(method, path, json=body, params=given, headers=headers)
            except httpx.TransportError as error:
                if last or _hopeless(error):
                    raise unreachable(self.site.url, error) from error
                lost = True
                self._sleep(_wait(attempt))
                continue
            except httpx.InvalidURL as error:
                raise unreachable(self.site.url, error) from error
            if lost and method == "DELETE" and response.status_code == 404:
                return None  # the try whose answer was lost had done it
            if last or response.status_code not in _PASSING:
                return read_answer(response)
            self._sleep(_retry_after(response, attempt))
        raise AssertionError("the last try returns or raises")

    def pages(self, path: str, params: Params | None = None) -> Iterator[dict[str, Any]]:
        """Yield a list's items, page by page, as they are asked for."""
        token = None
        while True:
            page = self.call("GET", path, params={"page_size": 200, **(params or {}), "page_token": token})
            if not isinstance(page, dict) or not isinstance(page.get("items"), list):
                raise CorralError(BAD_ANSWER, f"{path} did not answer with a list. Is {self.site.url} a Corral site?")
            yield from page["items"]
            token = page.get("next_page_token")
            if not token:
                return

    @contextmanager
    def stream(
        self, path: str, params: Params | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        """Open a response that goes on (SSE). Errors: `CorralError`; httpx.TransportError when it breaks off later."""
        given = {k: v for k, v in (params or {}).items() if v is not None}
        timeout = httpx.Timeout(60.0, connect=10.0)
        with self._http.stream("GET", path, params=given, headers=dict(headers or {}), timeout=timeout) as response:
            if response.status_code != 200:
                response.read()
                read_answer(response)
            yield response

    def pause(self, seconds: float) -> None:
        self._sleep(seconds)

    def wait(self, attempt: int) -> None:
        """Wait before try number `attempt` + 1, with full jitter."""
        self._sleep(_wait(attempt))


def ssl_context(site: Site) -> ssl.SSLContext:
    """Trust the pinned CA and nothing else; without one, what the system trusts."""
    return ssl.create_default_context(cadata=site.ca) if site.ca else ssl.create_default_context()


def quoted(name: str) -> str:
    """Return `name` as one part of a path. Errors: `CorralError` for what would be another path."""
    if name in ("", ".", ".."):
        raise CorralError("INVALID_NAME", f"'{name}' is no name. Check what was given.")
    return quote(name, safe="")


def read_answer(response: httpx.Response) -> Any:
    """Return the JSON of a good answer; raise the `CorralError` that another one is."""
    try:
        data = response.json() if response.content else None
    except ValueError:
        data = response.text if response.is_success else None
    if response.is_success:
        return data
    if isinstance(data, dict) and isinstance(data.get("code"), str):
        details = data.get("details")
        raise CorralError(
            data["code"],
            str(data.get("message", "")),
            details if isinstance(details, dict) else {},
            str(data.get("request_id", "")),
            response.status_code,
        )
    raise CorralError(
        BAD_ANSWER,
        f"{response.request.url.host} answered {response.status_code}, not as a Corral site does. Check the address.",
        status=response.status_code,
    )


def unreachable(url: str, error: Exception) -> CorralError:
    """Return the error for an answer that did not come, with what to do about it."""
    text = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return CorralError(
            UNTRUSTED,
            f"The certificate of {url} is not trusted here: {text}. Log in with a link that pins the site's CA "
            "(…&ca=…), or give the CA with CORRAL_CA.",
        )
    return CorralError(UNREACHABLE, f"{url} does not answer: {text}. Check the address and that the site runs.")


def _hopeless(error: httpx.TransportError) -> bool:
    return isinstance(error, (httpx.UnsupportedProtocol, httpx.LocalProtocolError)) or "CERTIFICATE_VERIFY" in str(
        error
    )


def _wait(attempt: int) -> float:
    return random.uniform(0, min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt))  # noqa: S311 - jitter, not a secret


def _retry_after(response: httpx.Response, attempt: int) -> float:
    given = response.headers.get("retry-after", "")
    return min(float(given), 60.0) if given.isdigit() else _wait(attempt)
