"""What reports cost: a steady window without other work, then one with people who list machines meanwhile."""

from __future__ import annotations

import time

from bench.figures import Result, memory_mib, say, spending
from bench.ground import Site1k
from bench.load import Requests, sending
from corral.client.journal import Filter
from tests.e2e.stack import ORG

SETTLE_S = 12.0
"""First reports are spread over 10 s; a window begins when every machine is in its rhythm."""
LISTS_A_SECOND = 20


def measure(site: Site1k, seconds: float) -> Result:
    """Return figures of two windows of `seconds` each, and of the whole."""
    time.sleep(SETTLE_S)
    say(f"fleet: {seconds:.0f} s of reports alone")
    alone = _window(site, seconds)
    say(f"fleet: {seconds:.0f} s of reports and {LISTS_A_SECOND} lists a second")
    lists = Requests(f"{site.nodes}?page_size=100", clients=1, seconds=seconds, pause_s=1 / LISTS_A_SECOND)
    with sending(site.login, lists) as seen:
        both = _window(site, seconds)
    up = sum(1 for machine in site.stack.owner.org(ORG).cluster(site.stack.cluster).machines(state="up"))
    went_down = sum(1 for _ in site.stack.owner.org(ORG).events(Filter(types=["cluster.node.down"])))
    return {
        "machines": site.count,
        "gpus": site.count * 8,
        "tls": site.login.url.startswith("https"),
        "reports_alone": alone,
        "reports_and_lists": {**both, "list_100": seen},
        "rss_mib": memory_mib(site.stack.site_pid),
        "machines_up": up,
        "wrongly_down": went_down,
        "joined_s": site.machines.started["joined_s"],
        "all_connected_s": site.machines.started["connected_s"],
    }


def _window(site: Site1k, seconds: float) -> Result:
    site.machines.forget()
    before = site.machines.stats()
    with spending(site.stack.site_pid) as spent:
        time.sleep(seconds)
        after = site.machines.stats()
    reports = after["reports_answered"] - before["reports_answered"]
    return {
        "reports_per_second": round(reports / spent.wall_s, 1),
        "cpu_percent_of_a_core": spent.percent,
        "cpu_us_per_report": round(1e6 * spent.cpu_s / reports) if reports else None,
        "report_p50_ms": after["ack_p50_ms"],
        "report_p99_ms": after["ack_p99_ms"],
        "report_most_ms": after["ack_max_ms"],
    }
