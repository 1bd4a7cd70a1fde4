"""The control plane's settings: one dataclass, filled by `corral site serve` and `corral demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Config:
    """`database` is a SQLAlchemy URL; the rest has defaults fit for one machine."""

    database: str
    state_dir: Path
    """Where the site keeps what is not in the database: its CA, its certificate, the agent's artefact."""
    host: str = "127.0.0.1"
    port: int = 7443
    public_url: str = ""
    """How people and machines reach the site; "" = made from host and port."""
    tls: str = "auto"
    """"auto" (the site's own CA, off on loopback), "own" (the site's own CA always), "off", "files", or "proxy"."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    """The CA to pin where `tls_cert` (or a proxy's certificate) comes from one that systems do not know."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses whose forwarded headers are believed; nobody's by default."""
    report_every_s: float = 10.0
    spread_s: float = 10.0
    """A session's first report comes within this many seconds, at random: a fleet must not report at once."""
    every_s: float = 2.0
    """How often last-seen is written down and silence is judged."""
    log_level: str = "info"
