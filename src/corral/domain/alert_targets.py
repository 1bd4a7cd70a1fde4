"""Mail and chat services that alert rules may tell: which, and what of their addresses may be shown.

Addresses are those of the apprise library. It knows far more services and parameters than are let in here: some run
programs, read files of the site, or leave out what makes a connection safe. And it reads addresses in its own way, so
what two readers could take differently is refused; `server/tell.py` judges again by what the library itself read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from corral.domain.errors import Refusal
from corral.domain.ids import shown

TARGET_MAX = 2000
SHOWN_MAX = 300

MAIL = ("mailto", "mailtos")
SERVICES: Mapping[str, str] = {
    "mailto": "e-mail, in the open or by STARTTLS (mode=starttls)",
    "mailtos": "e-mail over TLS",
    "slack": "Slack",
    "discord": "Discord",
    "tgram": "Telegram",
    "gchat": "Google Chat",
    "workflows": "Microsoft Teams",
    "wxteams": "Webex",
    "zulip": "Zulip",
    "pagerduty": "PagerDuty",
    "opsgenie": "Opsgenie",
    "pover": "Pushover",
    "mmosts": "Mattermost",
    "rockets": "Rocket.Chat",
    "matrixs": "Matrix",
    "ntfys": "ntfy",
    "gotifys": "Gotify",
    "nctalks": "Nextcloud Talk",
}
OWN_HOST = (*MAIL, "workflows", "mmosts", "rockets", "matrixs", "ntfys", "gotifys", "nctalks")
"""Services whose address names the host to talk to."""
PARAMETERS = frozenset(
    {
        *("to", "from", "name", "cc", "bcc", "reply", "smtp", "mode", "user", "pass", "format", "channel", "thread"),
        *("priority", "region", "severity", "group", "class", "sig", "ver", "id", "wrap", "pa", "key", "token"),
        *("topic", "silent", "image", "footer", "avatar", "team", "botname", "msgtype", "workspace"),
    }
)
_SCHEME = re.compile(r"([a-z][a-z0-9]*)://[!-~]+")
_PARTS = re.compile(r"[,;#\\]")
"""At `,` and `;` the library parts services and parameters; `#` ends an address for others, but not for it."""
_HIDDEN = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Target:
    """An address of a service. `hosts` are those that it names itself, to be checked as a webhook's is."""

    url: str
    service: str
    shown: str
    hosts: tuple[str, ...]


def target(text: str) -> Target:
    """Return an address that rules may tell. Errors: `INVALID_URL`, which never repeats the address."""
    known = _SCHEME.fullmatch(text)
    if known is None or len(text) > TARGET_MAX:
        raise _no_target(f"write it as apprise does, in at most {TARGET_MAX} printable ASCII characters")
    if known[1] not in SERVICES:
        raise _no_target(f"{shown(known[1])} is no service that is told here. Use one of: {', '.join(SERVICES)}")
    _check_unambiguous(text)
    # As the library does: all after the first '?', with names in lower case.
    before, _, query = text.partition("?")
    try:
        parts = urlsplit(before)
        host = parts.hostname or ""
        parts.port  # noqa: B018  # reading it is what checks it
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        raise _no_target("it cannot be read") from None
    given = {name.lower(): value for name, value in pairs}
    for name in given:
        if name not in PARAMETERS:
            raise _no_target(f"the parameter {shown(name)} is not taken here. Leave it out")
    if parts.netloc.count("@") > 1 or (known[1] == "rockets" and "@" in parts.path):
        raise _no_target("what comes before the host has '@' or '/' in it: write them as %40 and %2F")
    return Target(text, known[1], _shown(parts, given)[:SHOWN_MAX], _hosts(parts, host, given))


def _check_unambiguous(text: str) -> None:
    """Errors: `INVALID_URL`. Percent-encoded, `,` `;` and `#` are taken: the library decodes after it has parted."""
    if _PARTS.search(text):
        raise _no_target(r"write ',' as %2C, ';' as %3B, '#' as %23 and '\' as %5C")
    # The library decodes some parts more than once.
    decoded = text
    while (further := unquote(decoded)) != decoded:
        decoded = further
    if _HIDDEN.search(decoded):
        raise _no_target("it has control characters in it")


def _hosts(parts: SplitResult, host: str, given: Mapping[str, str]) -> tuple[str, ...]:
    if parts.scheme not in OWN_HOST:
        return ()
    # Mail may go by another server than the domain of its sender.
    server = given.get("smtp", "") if parts.scheme in MAIL else ""
    return tuple(name for name in (server or host,) if name)


def _shown(parts: SplitResult, given: Mapping[str, str]) -> str:
    """Return an address without anything that may be a secret: for mail who gets it, else service and host."""
    host = parts.hostname or ""
    if parts.scheme in MAIL:
        to = given.get("to") or f"{unquote(parts.username or '')}@{host}"
        return _printable(f"{parts.scheme}: {to}")
    return f"{parts.scheme}://{host}/…" if parts.scheme in OWN_HOST else f"{parts.scheme}://…"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _no_target(why: str) -> Refusal:
    return Refusal("INVALID_URL", f"The target cannot be used: {why}.", field="target")
