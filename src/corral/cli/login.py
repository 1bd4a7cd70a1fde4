"""`corral login` and `corral logout`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from corral.cli.output import details, emit, note, safe, say
from corral.cli.place import Place, at
from corral.cli.root import Command
from corral.client import config
from corral.client.errors import CorralError

if TYPE_CHECKING:
    from corral.client.login import Link
    from corral.client.models import LoggedIn, Me


@click.command(cls=Command)
@click.argument("link", required=False)
@click.option("--user", metavar="LOGIN", help="Log in by password as this person; LINK is the site's address.")
@click.option("--login", "wanted", metavar="LOGIN", help="With an invitation: the login you want to have.")
@click.option("--name", help="With an invitation: your name. Default: the login.")
@click.option("--password", "ask_password", is_flag=True, help="With a link: set a password too (asked, not shown).")
@click.option("--password-stdin", is_flag=True, help="Read the password from stdin.")
@click.option("--join", is_flag=True, help="Accept an invitation as who you are logged in as.")
@click.option("--change-password", is_flag=True, help="Set or change your password.")
@at()
def login(
    place: Place,
    link: str | None,
    user: str | None,
    wanted: str | None,
    name: str | None,
    ask_password: bool,
    password_stdin: bool,
    join: bool,
    change_password: bool,
) -> None:
    """Log in with the one-time LINK you were given, or by password: corral login URL --user NAME

    Without LINK: say who you are logged in as, and where.
    """
    if change_password:
        _change_password(place)
    elif link is None:
        me = place.corral.me()
        emit(me.raw, lambda: _draw_me(place, me))
    elif user is not None:
        _by_password(link, user, from_stdin=password_stdin)
    else:
        password = _password("Password to set", from_stdin=password_stdin) if ask_password or password_stdin else None
        _by_link(link, _Person(wanted, name, password), join=join)


class _Person:
    """Who somebody with a link wants to be."""

    def __init__(self, login: str | None, name: str | None, password: str | None) -> None:
        self.login, self.name, self.password = login, name, password


def _by_link(text: str, person: _Person, *, join: bool) -> None:
    from corral.client.login import parse_link, site_of, use_link

    link = parse_link(text)
    if link.secret is None:
        raise click.UsageError("That is an address, no one-time link. Log in there by password: --user NAME")
    known = config.load().sites.get(link.url)
    site = site_of(link, known.ca if known else None)
    if join:
        site = replace(site, token=_token_of(known))
    try:
        result = use_link(site, link.secret, login=person.login, name=person.name, password=person.password)
    except CorralError as error:
        if error.details.get("field") != "login" or not sys.stdin.isatty():
            raise
        wanted = click.prompt("Login you want to have", err=True)
        result = use_link(site, link.secret, login=wanted, name=person.name, password=person.password)
    _welcome(site, result)


def _token_of(known: config.Site | None) -> str:
    if known is None or known.token is None:
        raise CorralError("NOT_LOGGED_IN", "You are not logged in to this site. Leave --join out, or log in first.")
    return known.token


def _by_password(text: str, user: str, *, from_stdin: bool) -> None:
    from corral.client.login import by_password, parse_link, site_of

    link: Link = parse_link(text)
    known = config.load().sites.get(link.url)
    site = site_of(link, known.ca if known else None)
    password = sys.stdin.readline().rstrip("\n") if from_stdin else click.prompt("Password", hide_input=True, err=True)
    _welcome(site, by_password(site, user, password))


def _password(label: str, *, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\n")
    return str(click.prompt(label, hide_input=True, confirmation_prompt=True, err=True))


def _welcome(site: config.Site, result: LoggedIn) -> None:
    """Keep the token, and say what is next."""
    known = config.load()
    before = known.sites.get(site.url, site)
    kept = replace(before, ca=site.ca, token=result.token or site.token)
    if before.org not in [org.slug for org in result.orgs]:
        kept = replace(kept, org=None, workspace=None)
    config.save(known.with_site(kept))
    public = {key: value for key, value in result.raw.items() if key != "token"}

    def draw() -> None:
        say(f"Logged in to {safe(site.url)} as {safe(result.user.login)}.")
        if result.orgs:
            say("Organisations: " + ", ".join(f"{safe(org.slug)} ({org.role})" for org in result.orgs))
        elif result.user.operator:
            say("You run this site. Make an organisation: corral org create NAME")

    emit({"url": site.url, **public}, draw)


def _draw_me(place: Place, me: Me) -> None:
    pinned = "this site's own CA" if place.site.ca else "the system's"
    details(
        [
            ("site", place.site.url),
            ("login", me.login),
            ("name", me.name),
            ("operator", me.operator or None),
            ("organisations", [f"{org.slug} ({org.role})" for org in me.orgs]),
            ("token may", me.scopes),
            ("trusts", pinned if place.site.url.startswith("https") else None),
        ]
    )


def _change_password(place: Place) -> None:
    present = click.prompt("Present password (empty: none)", hide_input=True, default="", show_default=False, err=True)
    place.corral.set_password(_password("New password", from_stdin=False), present or None)
    emit({"changed": True}, lambda: say("Changed. Your other logins have ended; API tokens go on."))


@click.command(cls=Command)
@at()
def logout(place: Place) -> None:
    """Revoke this login's token, and forget the site here."""
    site = place.site
    if site.token:
        try:
            place.corral.revoke_token(site.token.split("_")[1])
        except CorralError as error:
            if error.status not in (401, 404):
                note(f"The token could not be revoked ({safe(error.message)}). It stays valid until it expires.")
    config.save(config.load().without(site.url))
    emit({"url": site.url, "logged_out": True}, lambda: say(f"Logged out of {safe(site.url)}."))
