"""`corral site`: what the operator of a site does. The database, not the API, is asked by serve, migrate and doctor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from corral.cli import site_orgs
from corral.cli.output import column, details, emit, print_json, say, state_style, table
from corral.cli.place import Place, at
from corral.cli.prices import site_prices
from corral.cli.root import Group
from corral.client.errors import CorralError

if TYPE_CHECKING:
    from corral.server.config import Config


def _state_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/corral")
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "corral"


@click.group(cls=Group)
def site() -> None:
    """Run a site."""


def _config_options(command: Any) -> Any:
    """The options that say which site this is; each also comes from CORRAL_… in the environment."""
    command = click.option(
        "--state-dir",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="CORRAL_STATE_DIR",
        help="Where the site keeps its files. Default: /var/lib/corral, or ~/.local/state/corral if not root.",
    )(command)
    return click.option(
        "--database",
        envvar="CORRAL_DATABASE",
        metavar="URL",
        help="sqlite:///FILE or postgresql://USER@HOST/NAME. Default: SQLite in the state folder.",
    )(command)


def _config(database: str | None, state_dir: Path | None, **more: Any) -> Config:
    from corral.server.config import Config

    folder = (state_dir or _state_dir()).absolute()
    return Config(database or f"sqlite:///{folder}/corral.db", folder, **more)


@contextmanager
def _setup_errors() -> Iterator[None]:
    """Show what is wrong with a setting, and the next step."""
    from corral.server.setup_error import SetupError

    try:
        yield
    except SetupError as error:
        step = f"\nnext: {error.next_step}" if error.next_step else ""
        raise click.ClickException(f"{error.message}{step}") from error


@site.command()
@_config_options
@click.option("--host", default="127.0.0.1", envvar="CORRAL_HOST", show_default=True, help="Address to listen on.")
@click.option("--port", default=7443, envvar="CORRAL_PORT", show_default=True, type=click.IntRange(0, 65535))
@click.option("--public-url", default="", envvar="CORRAL_PUBLIC_URL", help="How people and machines reach the site.")
@click.option(
    "--tls",
    default="auto",
    envvar="CORRAL_TLS",
    show_default=True,
    type=click.Choice(["auto", "own", "off", "files", "proxy"]),
    help="auto: off on loopback, else the site's own certificate (or --tls-cert).",
)
@click.option("--tls-cert", type=click.Path(path_type=Path), envvar="CORRAL_TLS_CERT", help="PEM certificate.")
@click.option("--tls-key", type=click.Path(path_type=Path), envvar="CORRAL_TLS_KEY", help="Its PEM key.")
@click.option("--tls-ca", type=click.Path(path_type=Path), envvar="CORRAL_TLS_CA", help="The CA to pin, if private.")
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    envvar="CORRAL_TRUSTED_PROXY",
    metavar="ADDRESS",
    help="Believe forwarded headers from here. May be repeated.",
)
@click.option(
    "--log-level",
    default="info",
    envvar="CORRAL_LOG_LEVEL",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
)
def serve(database: str | None, state_dir: Path | None, **settings: Any) -> None:
    """Run the control plane until it is told to stop. Logs go to stderr as JSON."""
    from corral.server.serve import serve as run

    with _setup_errors():
        run(_config(database, state_dir, **settings), say)


@site.command()
@_config_options
def migrate(database: str | None, state_dir: Path | None) -> None:
    """Bring the database to this release's schema. Back it up first; SQLite is migrated at start by itself."""
    from corral.server.serve import database_of, make_state_dir
    from corral.store import migrate as chain

    config = _config(database, state_dir)
    with _setup_errors():
        make_state_dir(config.state_dir)
        db = database_of(config)
    try:
        before = chain.current(db)
        chain.upgrade(db)
        after = chain.current(db)
    finally:
        db.close()
    emit(
        {"before": before, "after": after},
        lambda: say(f"Migrated from {before or 'empty'} to {after}." if before != after else f"Already at {after}."),
    )


@site.command()
@_config_options
@click.option("--tls-cert", type=click.Path(path_type=Path), envvar="CORRAL_TLS_CERT", help="As for serve.")
def doctor(database: str | None, state_dir: Path | None, tls_cert: Path | None) -> int:
    """Check database, clock, disk, certificate, artefact and agents, and say what to do. Exit 1: something is bad."""
    from corral.server.doctor import BAD, examine

    findings = examine(_config(database, state_dir, tls_cert=tls_cert))
    rows = [{"check": f.check, "result": f.result, "what": f.what, "next": f.next_step} for f in findings]
    bad = any(f.result == BAD for f in findings)
    columns = [
        column("CHECK", "check"),
        column("RESULT", "result", style=state_style),
        column("WHAT", "what", flow=True),
    ]
    emit({"ok": not bad, "checks": rows}, lambda: table(rows, [*columns, column("NEXT", "next", flow=True)]))
    return 1 if bad else 0


@site.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path(), help="Folder to write to.")
def artefact(out: Path) -> None:
    """Write the agent's artefact and its SHA256SUMS, for machines that cannot reach the site to install."""
    from corral.server import artefact as maker

    made = maker.build(out)
    pairs = [("written", str(made.pyz)), ("sha256", made.sha256)]
    emit(dict(pairs), lambda: details(pairs))


@site.command("operator-link")
@click.argument("login")
@_config_options
def operator_link(login: str, database: str | None, state_dir: Path | None) -> None:
    """Print a one-time link that lets an operator in again: for one who lost password and tokens."""
    from corral.domain.errors import Refusal
    from corral.server.serve import database_of
    from corral.usecases import site as use

    with _setup_errors():
        db = database_of(_config(database, state_dir))
    try:
        with db.write() as tx:
            secret = use.operator_link(tx, login)
    except Refusal as refusal:
        raise CorralError(refusal.code, refusal.message, status=404) from refusal
    finally:
        db.close()
    emit({"link": secret}, lambda: say(f"corral login 'URL-OF-THE-SITE/login#{secret}'"))


@site.command()
@_config_options
def restored(database: str | None, state_dir: Path | None) -> None:
    """Say that a back-up was put back in the database's place. Run it before the site is started again.

    Machines then get new work only once they have reported, so that what was placed after the back-up is adopted
    and nothing is placed twice. All API tokens, links and unused join tokens are revoked: people log in again.
    """
    from corral.domain.errors import Refusal
    from corral.server.serve import open_unserved
    from corral.server.setup_error import SetupError
    from corral.usecases import site as use

    try:
        with open_unserved(_config(database, state_dir)) as db, db.write() as tx:
            operators = list(use.restored(tx))
    except (SetupError, Refusal) as error:
        raise click.ClickException(str(error.message)) from error

    def draw() -> None:
        say("Noted. Start the site; then an operator logs in with a link of:")
        for login in operators:
            say(f"  corral site operator-link {login}")

    emit({"operators": operators}, draw)


@site.command()
def openapi() -> None:
    """Print the API's OpenAPI document, the same for the same release."""
    from corral.server.document import document

    print_json(document())


@site.command()
@click.option("--contact", help="Whom people of the site may ask for more.")
@click.option("--hosted-machine-limit", type=int, help="Machines an organisation may have on the hosted cluster.")
@click.option(
    "--private-target",
    "targets",
    multiple=True,
    metavar="NETWORK",
    help="Let webhooks and alert rules tell in this private network (10.0.0.0/8); repeatable, replaces; '' for none.",
)
@at()
def settings(place: Place, contact: str | None, hosted_machine_limit: int | None, targets: tuple[str, ...]) -> None:
    """Show the site's settings; with options, change them."""
    networks = [target for target in targets if target] if targets else None
    if contact is None and hosted_machine_limit is None and networks is None:
        shown = place.corral.site.show()
    else:
        shown = place.corral.site.change(
            contact=contact, hosted_machine_limit=hosted_machine_limit, private_targets=networks
        )
    emit(shown.raw, lambda: details(shown.raw.items()))


for _command in (
    site_orgs.clusters,
    site_orgs.give_back,
    site_orgs.delete_cluster,
    site_orgs.cluster_requests,
    site_orgs.answer,
    site_orgs.limit,
    site_orgs.break_glass,
    site_prices,
):
    site.add_command(_command)
