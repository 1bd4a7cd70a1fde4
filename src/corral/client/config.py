"""What this user knows of sites: `~/.config/corral/config.json` (0600), and the environment, which wins.

    {"current": URL, "sites": {URL: {"token", "ca", "org", "workspace"}}}

`ca` is the pinned CA certificate (PEM) or null: the system's own trust. Standard library only.
Environment: CORRAL_CONFIG (another file), CORRAL_URL, CORRAL_TOKEN, CORRAL_CA (a PEM file),
CORRAL_ORG, CORRAL_WORKSPACE.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from corral.client.errors import NOT_LOGGED_IN, CorralError


@dataclass(frozen=True)
class Site:
    """How to reach one site, as one person."""

    url: str
    token: str | None = None
    ca: str | None = None
    org: str | None = None
    workspace: str | None = None


@dataclass(frozen=True)
class Known:
    """Every site this user has logged in to."""

    current: str | None = None
    sites: Mapping[str, Site] = field(default_factory=dict)

    def with_site(self, site: Site, *, current: bool = True) -> Known:
        return Known(site.url if current else self.current, {**self.sites, site.url: site})

    def without(self, url: str) -> Known:
        rest = {known: site for known, site in self.sites.items() if known != url}
        return Known(next(iter(rest), None) if self.current == url else self.current, rest)


def path(env: Mapping[str, str] = os.environ) -> Path:
    if env.get("CORRAL_CONFIG"):
        return Path(env["CORRAL_CONFIG"])
    base = Path(env["XDG_CONFIG_HOME"]) if env.get("XDG_CONFIG_HOME") else Path("~/.config").expanduser()
    return base / "corral" / "config.json"


def load(file: Path | None = None) -> Known:
    """Read what is known; nothing when there is no file. Errors: `CorralError` (not readable, not ours)."""
    file = path() if file is None else file
    try:
        data = json.loads(file.read_text())
        sites = {url: Site(url, **{k: row.get(k) for k in _FIELDS}) for url, row in data["sites"].items()}
        return Known(data.get("current"), sites)
    except FileNotFoundError:
        return Known()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorralError(
            "BAD_CONFIG", f"{file} cannot be read: {error}. Correct or remove it, then run `corral login`."
        ) from error


def save(known: Known, file: Path | None = None) -> None:
    """Write the file whole or not at all; only its owner may read it."""
    file = path() if file is None else file
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    rows = {url: {k: v for k, v in asdict(site).items() if k in _FIELDS} for url, site in known.sites.items()}
    new = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
            json.dump({"current": known.current, "sites": rows}, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def current(env: Mapping[str, str] = os.environ) -> Site:
    """Return the site to talk to. Errors: `CorralError` `NOT_LOGGED_IN` where none is known."""
    url = env.get("CORRAL_URL", "").rstrip("/") or load(path(env)).current
    if not url:
        raise CorralError(NOT_LOGGED_IN, "No site is known here. Run `corral login LINK`, or set CORRAL_URL.")
    return site(url, env)


def site(url: str, env: Mapping[str, str] = os.environ) -> Site:
    """Return what is known of the site at `url`; the environment is about the site that it names, or about any."""
    known = load(path(env)).sites.get(url) or Site(url)
    if env.get("CORRAL_URL", url).rstrip("/") != url:
        return known
    return replace(
        known,
        ca=_ca_file(env["CORRAL_CA"]) if env.get("CORRAL_CA") else known.ca,
        token=env.get("CORRAL_TOKEN") or known.token,
        org=env.get("CORRAL_ORG") or known.org,
        workspace=env.get("CORRAL_WORKSPACE") or known.workspace,
    )


def _ca_file(file: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, ValueError) as error:
        raise CorralError("BAD_CONFIG", f"CORRAL_CA: {file} cannot be read: {error}. Name a PEM file.") from error


_FIELDS = ("token", "ca", "org", "workspace")
