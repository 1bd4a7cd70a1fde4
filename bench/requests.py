"""Simple requests: one authenticated GET after the other on one connection, and the longest list in one page."""

from __future__ import annotations

from bench.figures import Result, say, spending
from bench.ground import Site1k
from bench.load import Requests, send

SECONDS = 4.0


def measure(site: Site1k) -> Result:
    """The whole list is asked for when `site` has 1,000 machines or more: a page holds no more."""
    say("requests: GET /api/v1/me on one connection")
    found = {"get": _one(site, Requests("/api/v1/me", seconds=SECONDS))}
    say(f"requests: lists of {min(site.count, 1000)} machines")
    found["list_machines"] = _one(site, Requests(f"{site.nodes}?page_size=1000", seconds=SECONDS))
    return found


def _one(site: Site1k, requests: Requests) -> Result:
    with spending(site.stack.site_pid) as spent:
        seen = send(site.login, requests)
    return {**seen, "site_cpu_ms_each": round(1000 * spent.cpu_s / seen["requests"], 3)}
