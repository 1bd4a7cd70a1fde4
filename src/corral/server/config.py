"""The control plane's settings: one dataclass, filled by `corral site serve` and `corral demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Config:
    """Defaults fit for one machine. The text under each field is its line in docs/events-and-errors.md."""

    database: str
    """`sqlite:///FILE` or `postgresql://USER@HOST/NAME`. The command's default: SQLite in the state folder."""
    state_dir: Path
    """Where the site keeps what is not in the database: its CA, its certificate, the agent's artefact.
    The command's default: `/var/lib/corral`, or `~/.local/state/corral` for who is not root."""
    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` and `::` mean every one."""
    port: int = 7443
    """Port to listen on."""
    public_url: str = ""
    """How people and machines reach the site; "" = made from host and port."""
    tls: str = "auto"
    """"auto" (the site's own CA, off on loopback), "own" (the site's own CA always), "off", "files", or "proxy"."""
    tls_cert: Path | None = None
    """PEM certificate, its chain after it."""
    tls_key: Path | None = None
    """The certificate's PEM key."""
    tls_ca: Path | None = None
    """The CA to pin where `tls_cert` (or a proxy's certificate) comes from one that systems do not know."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses whose forwarded headers are believed; nobody's by default."""
    report_every_s: float = 10.0
    """How often machines are told to report, in seconds."""
    spread_s: float = 10.0
    """A session's first report comes within this many seconds, at random (sooner where few machines are
    connected): a fleet must not report at once."""
    every_s: float = 2.0
    """How often last-seen is written down and silence is judged, in seconds."""
    log_level: str = "info"
    """Log lines of this level and above: `debug`, `info`, `warning` or `error`."""
