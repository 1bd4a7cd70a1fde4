"""`corral org`: organisations and the people in them."""

from __future__ import annotations

from dataclasses import replace

import click

from corral.cli.confirm import typed_name
from corral.cli.links import draw_link
from corral.cli.output import Column, age, column, details, emit, safe, say, table, until
from corral.cli.place import Place, at
from corral.cli.root import Group
from corral.client import config

ROLES = click.Choice(["owner", "admin", "member"])


@click.group(cls=Group)
def org() -> None:
    """Organisations and their members."""


@org.command("list")
@at()
def list_orgs(place: Place) -> None:
    """The organisations you are in; operators see all."""
    rows = [one.raw for one in place.corral.orgs()]
    columns = [
        column("NAME", "slug"),
        column("SHOWN AS", "name"),
        column("YOUR ROLE", "role"),
        column("CONTACT", "contact"),
    ]
    emit(rows, lambda: table(rows, columns, "You are in no organisation yet. Ask one of its owners to invite you."))


@org.command()
@click.argument("slug")
@click.option("--name", help="How it is shown. Default: the short name.")
@click.option("--contact", default="", help="Whom its people may ask for more.")
@at()
def create(place: Place, slug: str, name: str | None, contact: str) -> None:
    """Make an organisation (operators). Then invite its first owner: corral org invite-owner."""
    made = place.corral.create_org(slug, name, contact)
    emit(
        made.raw,
        lambda: say(
            f"Made '{safe(made.slug)}'. Next, its first owner: corral org invite-owner --org {safe(made.slug)}"
        ),
    )


@org.command()
@click.argument("name", required=False)
@at("org")
def show(place: Place, name: str | None) -> None:
    """One organisation."""
    one = (place.corral.org(name) if name else place.org).show()
    pairs = [("name", one.slug), ("shown as", one.name), ("your role", one.role), ("contact", one.contact)]
    emit(one.raw, lambda: details([*pairs, ("made", one.raw.get("created_at"))]))


@org.command()
@click.argument("name")
@at()
def use(place: Place, name: str) -> None:
    """Make an organisation the default for your commands here."""
    place.corral.org(name).show()
    known = config.load()
    site = known.sites.get(place.site.url, place.site)
    config.save(known.with_site(replace(site, org=name, workspace=None)))
    emit({"org": name}, lambda: say(f"Commands act in '{safe(name)}' from now on."))


@org.command()
@click.argument("shown_as")
@at("org")
def rename(place: Place, shown_as: str) -> None:
    """Change how the organisation is shown (owners)."""
    one = place.org.change(name=shown_as)
    emit(one.raw, lambda: say(f"'{safe(one.slug)}' is now shown as '{safe(one.name)}'."))


@org.command()
@click.argument("line")
@at("org")
def contact(place: Place, line: str) -> None:
    """Set whom people may ask for more (owners): shown where nothing can be created. "" for nobody."""
    one = place.org.change(contact=line)
    emit(one.raw, lambda: say(f"Contact: {safe(one.contact) or 'nobody'}"))


@org.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for the name.")
@at()
def remove(place: Place, name: str, yes: bool) -> None:
    """Remove an organisation that has nothing left (operators). Its people lose it at once."""
    typed_name("remove the organisation", name, yes=yes)
    place.corral.org(name).remove()
    emit({"org": name, "removed": True}, lambda: say(f"'{safe(name)}' is removed."))


@org.command()
@at("org")
def members(place: Place) -> None:
    """The people in the organisation."""
    rows = [one.raw for one in place.org.members()]
    columns = [
        column("LOGIN", "login"),
        column("NAME", "name"),
        column("ROLE", "role"),
        Column("SINCE", lambda row: age(row["joined_at"])),
    ]
    emit(rows, lambda: table(rows, columns))


@org.command()
@click.option("--role", type=ROLES, default="member", show_default=True)
@click.option("--login", help="Only for this login. Default: whoever has the link.")
@click.option("--ttl", type=int, metavar="SECONDS", help="How long it works. Default: 7 days.")
@at("org")
def invite(place: Place, role: str, login: str | None, ttl: int | None) -> None:
    """Make a one-time invitation and print the link to hand over (owners)."""
    draw_link(place.org.invite(role, login, ttl), f"Invites one person as {role}")


@org.command("invite-owner")
@click.option("--login", help="Only for this login. Default: whoever has the link.")
@click.option("--ttl", type=int, metavar="SECONDS", help="How long it works. Default: 7 days.")
@at("org")
def invite_owner(place: Place, login: str | None, ttl: int | None) -> None:
    """Make the invitation of an organisation's first owner (operators)."""
    draw_link(place.org.invite_owner(login, ttl), "Invites the first owner")


@org.command()
@at("org")
def invitations(place: Place) -> None:
    """The invitations that may still be used."""
    rows = [one.raw for one in place.org.invitations()]
    columns = [
        column("ID", "id"),
        column("ROLE", "role"),
        column("FOR", "login"),
        column("BY", "by"),
        Column("EXPIRES", lambda row: until(row["expires_at"])),
    ]
    emit(rows, lambda: table(rows, columns, "No open invitation."))


@org.command("revoke-invitation")
@click.argument("id")
@at("org")
def revoke_invitation(place: Place, id: str) -> None:
    """Revoke an invitation, by its id."""
    place.org.revoke_invitation(id)
    emit({"id": id, "revoked": True}, lambda: say("Revoked."))


@org.command("set-role")
@click.argument("login")
@click.argument("role", type=ROLES)
@at("org")
def set_role(place: Place, login: str, role: str) -> None:
    """Give a member another role."""
    one = place.org.set_role(login, role)
    emit(one.raw, lambda: say(f"{safe(one.login)} is {one.role} now."))


@org.command("remove-member")
@click.argument("login")
@click.option("--yes", is_flag=True, help="Do not ask for the login.")
@at("org")
def remove_member(place: Place, login: str, yes: bool) -> None:
    """Take somebody out of the organisation: they lose it at once, open sessions included."""
    typed_name("take them out", login, yes=yes)
    place.org.remove_member(login)
    emit({"login": login, "removed": True}, lambda: say(f"{safe(login)} is no member any more."))


@org.command()
@at("org")
def looks(place: Place) -> None:
    """When and why the site's operator could read your organisation's data (break-glass); admins."""
    rows = [one.raw for one in place.org.looks()]
    columns = [
        column("ID", "id"),
        column("OPERATOR", "operator"),
        Column("BEGAN", lambda row: f"{age(row['created_at'])} ago"),
        Column("LIVES", lambda row: f"until {until(row['expires_at'])}" if row["live"] else "no"),
        column("REASON", "reason", flow=True),
    ]
    emit(rows, lambda: table(rows, columns, "The operator never looked into this organisation."))


@org.command("end-look")
@click.argument("id")
@at("org")
def end_look(place: Place, id: str) -> None:
    """End a look of the operator's at once, by its id (owners, operators)."""
    place.org.end_look(id)
    emit({"id": id, "ended": True}, lambda: say("Ended."))


@org.command("login-link")
@click.argument("login")
@at("org")
def login_link(place: Place, login: str) -> None:
    """Make a one-time link for a member who lost their password (owners)."""
    draw_link(place.org.login_link(login), f"Lets {safe(login)} in")
