"""Logging in: one-time links work exactly once, passwords tell nothing about who exists (spec 05, spec 50)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import update

from corral.domain import users as rules
from corral.domain.errors import Refusal
from corral.domain.permissions import Role, Rule, Who
from corral.store import journal
from corral.store import users as user_rows
from corral.store.engine import Database
from corral.store.journal import Filter
from corral.store.tables.users import users
from corral.store.transaction import Scope
from corral.usecases import login, members, orgs, passwords, site
from corral.usecases.attempts import Attempts
from corral.usecases.context import Context
from corral.usecases.identity import Caller, Place, enter
from corral.usecases.login import LinkAsk, LoggedIn
from tests.conftest import Clock
from tests.world import World

PASSWORD = "correct horse battery"


class Anonymous:
    """Somebody at a door without a login, or with an API token where a door reads one."""

    def __init__(self, db: Database, token: str | None = None, rule: Rule | None = None) -> None:
        self.caller = Caller(token, "192.0.2.9", "request-1")
        self._db = db
        self._rule = rule or Rule(Who.PUBLIC)

    @contextmanager
    def read(self) -> Iterator[Context]:
        with self._db.read() as tx:
            yield enter(tx, self.caller, self._rule, Place())

    @contextmanager
    def write(self) -> Iterator[Context]:
        with self._db.write() as tx:
            yield enter(tx, self.caller, self._rule, Place())


def use(world: World, ask: LinkAsk, token: str | None = None, attempts: Attempts | None = None) -> LoggedIn:
    return login.by_link(Anonymous(world.db, token), attempts or Attempts(), ask)


def invitation(world: World, role: Role = Role.MEMBER, login: str | None = None) -> str:
    with world.act("owner", "acme") as ctx:
        return orgs.invite(ctx, role, login, None).text


def set_password(world: World, who: str) -> None:
    hash = passwords.hashed(PASSWORD)
    with world.db.write() as tx:
        user_rows.change(tx, world.ids.users[who], password_hash=hash)


def audit(world: World, org: str | None = None) -> list[str]:
    """Return types of the newest audit entries, newest first, of an organisation or the site."""
    with world.act("operator", None) as ctx:
        scope = Scope(world.ids.orgs[org]) if org is not None else None
        return [row["type"] for row in journal.newest_first(ctx.tx, scope, Filter("audit"), before=None, limit=50)]


def code_of(act: Callable[[], object]) -> str:
    try:
        act()
    except Refusal as refusal:
        return refusal.code
    return "done"


@pytest.mark.parametrize("kind", ["invitation", "operator", "login"])
def test_of_20_who_use_a_link_at_once_one_gets_in(world_on_both: World, kind: str) -> None:
    world = world_on_both
    text = invitation(world)
    if kind == "login":
        with world.act("owner", "acme") as ctx:
            text = members.login_link(ctx, "member").text
    if kind == "operator":
        _forget_operator(world)
        with world.db.write() as tx:
            text = site.first_start(tx) or ""
    start = threading.Barrier(20)

    def race(number: int) -> str:
        start.wait()
        wanted = None if kind == "login" else f"racer{number}"
        return code_of(lambda: use(world, LinkAsk(text, wanted)))

    with ThreadPoolExecutor(20) as pool:
        codes = sorted(pool.map(race, range(20)))
    assert codes == ["LINK_USED"] * 19 + ["done"]


def _forget_operator(world: World) -> None:
    with world.db.write() as tx:
        tx.run(update(users).values(operator=False))


def test_the_operators_link_makes_the_operator_who_can_log_in(world: World) -> None:
    _forget_operator(world)
    with world.db.write() as tx:
        first = site.first_start(tx)
        second = site.first_start(tx)
    assert first and second
    assert code_of(lambda: use(world, LinkAsk(first, "root"))) == "LINK_EXPIRED"
    made = use(world, LinkAsk(second, "Root", "The Operator", PASSWORD))
    assert (made.user.login, made.user.name, made.user.operator) == ("root", "The Operator", True)
    again = login.by_password(Anonymous(world.db), Attempts(), "root", PASSWORD)
    assert again.token
    with world.db.write() as tx:
        assert site.first_start(tx) is None


def test_a_link_in_its_full_address_is_read_too(world: World) -> None:
    text = invitation(world)
    assert use(world, LinkAsk(f"https://corral.test/login#{text}&ca=00ff", "ada")).user.login == "ada"


def test_a_link_is_not_lost_by_a_login_that_is_taken(world: World) -> None:
    text = invitation(world)
    assert code_of(lambda: use(world, LinkAsk(text, "rival"))) == "UNAUTHENTICATED"
    assert code_of(lambda: use(world, LinkAsk(text, "a/b"))) == "INVALID_NAME"
    assert code_of(lambda: use(world, LinkAsk(text))) == "INVALID_REQUEST"
    assert use(world, LinkAsk(text, "ada")).orgs[0].slug == "acme"


def test_links_expire_and_can_be_revoked(world: World, clock: Clock) -> None:
    text = invitation(world)
    clock.forward(7 * 86400)
    assert code_of(lambda: use(world, LinkAsk(text, "ada"))) == "LINK_EXPIRED"
    text = invitation(world)
    with world.act("owner", "acme") as ctx:
        orgs.revoke_invitation(ctx, orgs.invitations(ctx, None, 10)[0].id)
    assert code_of(lambda: use(world, LinkAsk(text, "ada"))) == "LINK_EXPIRED"


@pytest.mark.parametrize("text", ["", "corl_x", "hello", "https://corral.test/login#", "\0", "corl_" + "a" * 57])
def test_what_is_no_link_is_refused(world: World, text: str) -> None:
    assert code_of(lambda: use(world, LinkAsk(text, "ada"))) == "UNAUTHENTICATED"


def test_an_invitation_dies_with_its_makers_role(world: World) -> None:
    world.add_member("boss", role=Role.OWNER)
    text = invitation(world)
    with world.act("boss", "acme") as ctx:
        members.set_role(ctx, "owner", Role.MEMBER)
    assert code_of(lambda: use(world, LinkAsk(text, "ada"))) == "LINK_EXPIRED"


def test_an_owner_invitation_of_the_operator_dies_when_there_is_an_owner(world: World) -> None:
    with world.act("operator") as ctx:
        orgs.create(ctx, "fresh", "Fresh", "")
    with world.act("operator", "fresh") as ctx:
        first, second = orgs.invite_owner(ctx, None, None).text, orgs.invite_owner(ctx, None, None).text
    assert use(world, LinkAsk(first, "ada")).orgs[0].role == "owner"
    assert code_of(lambda: use(world, LinkAsk(second, "eve"))) == "LINK_EXPIRED"
    with world.act("operator", "fresh") as ctx, pytest.raises(Refusal) as refused:
        orgs.invite_owner(ctx, None, None)
    assert refused.value.code == "CONFLICT"


def test_an_invitation_for_one_login_is_for_nobody_else(world: World) -> None:
    text = invitation(world, login="ada")
    assert code_of(lambda: use(world, LinkAsk(text, "eve"))) == "FORBIDDEN"
    assert code_of(lambda: use(world, LinkAsk(text), world.tokens["rival"])) == "FORBIDDEN"
    assert use(world, LinkAsk(text)).user.login == "ada"


def test_somebody_known_accepts_with_their_token_and_keeps_it(world: World) -> None:
    text = invitation(world, Role.ADMIN)
    joined = use(world, LinkAsk(text), world.tokens["rival"])
    assert joined.token is None
    assert [(org.slug, org.role) for org in joined.orgs] == [("acme", "admin"), ("rival", "owner")]
    assert audit(world, "acme")[0] == "org.member.joined"


def test_a_narrow_token_accepts_no_invitation(world: World) -> None:
    narrow = world.token("rival", ["org:read", "me"])
    text = invitation(world)
    assert code_of(lambda: use(world, LinkAsk(text), narrow)) == "FORBIDDEN"


def test_somebody_known_accepts_with_their_password(world: World) -> None:
    set_password(world, "rival")
    text = invitation(world)
    assert code_of(lambda: use(world, LinkAsk(text, "rival", password="something else"))) == "UNAUTHENTICATED"
    assert code_of(lambda: use(world, LinkAsk(text, "rival"))) == "UNAUTHENTICATED"
    joined = use(world, LinkAsk(text, "rival", password=PASSWORD))
    assert joined.token and len(joined.orgs) == 2


def test_a_member_has_nothing_to_accept(world: World) -> None:
    text = invitation(world)
    assert code_of(lambda: use(world, LinkAsk(text), world.tokens["member"])) == "CONFLICT"
    assert use(world, LinkAsk(text, "ada")).user.login == "ada"


def test_a_login_link_sets_a_new_password_and_ends_other_logins(world: World) -> None:
    set_password(world, "member")
    before = login.by_password(Anonymous(world.db), Attempts(), "member", PASSWORD).token
    with world.act("owner", "acme") as ctx:
        text = members.login_link(ctx, "member").text
    use(world, LinkAsk(text, password="another password"))
    with world.db.read() as tx, pytest.raises(Refusal) as refused:
        enter(tx, Caller(before), Rule(Who.SELF, "me"), Place())
    assert refused.value.code == "UNAUTHENTICATED"
    assert code_of(lambda: login.by_password(Anonymous(world.db), Attempts(), "member", PASSWORD)) == "UNAUTHENTICATED"
    assert login.by_password(Anonymous(world.db), Attempts(), "member", "another password").token


def test_an_owner_makes_no_login_link_for_somebody_of_another_organisation_too(world: World) -> None:
    world.add_member("member", "rival")
    with world.act("owner", "acme") as ctx, pytest.raises(Refusal) as refused:
        members.login_link(ctx, "member")
    assert refused.value.code == "FORBIDDEN"


def test_a_login_link_dies_when_its_owner_joins_another_organisation(world: World) -> None:
    with world.act("owner", "acme") as ctx:
        text = members.login_link(ctx, "member").text
    world.add_member("member", "rival")
    assert code_of(lambda: use(world, LinkAsk(text))) == "LINK_EXPIRED"


def test_a_wrong_password_and_an_unknown_login_get_the_same_answer(world: World) -> None:
    set_password(world, "member")
    answers = []
    for who in ("member", "nobody", "lead", "no login!"):
        with pytest.raises(Refusal) as refused:
            login.by_password(Anonymous(world.db), Attempts(), who, "not the password")
        answers.append((refused.value.code, refused.value.message, refused.value.details))
    assert answers == [answers[0]] * 4
    assert audit(world)[:4] == ["user.login_refused"] * 4


def test_an_unknown_login_costs_a_hash_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str | None] = []

    def matches(hash: str | None, password: str) -> bool:
        judged.append(hash)
        return False

    monkeypatch.setattr(passwords, "matches", matches)
    for who in ("nobody", "no login!"):
        assert code_of(partial(login.by_password, Anonymous(world.db), Attempts(), who, "x")) == "UNAUTHENTICATED"
    assert judged == [None, None]


def test_a_password_is_judged_outside_of_any_transaction(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    set_password(world, "member")
    wrote = threading.Event()

    def write() -> None:
        with world.db.write():
            wrote.set()

    def matches(hash: str | None, password: str) -> bool:
        writer = threading.Thread(target=write)
        writer.start()
        assert wrote.wait(10), "a write waited for a password"
        writer.join()
        return True

    monkeypatch.setattr(passwords, "matches", matches)
    assert login.by_password(Anonymous(world.db), Attempts(), "member", PASSWORD).token


def test_too_many_tries_wait_and_others_do_not(world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "matches", lambda hash, password: password == PASSWORD)
    attempts = Attempts()

    def attempt(who: str, password: str) -> str:
        return code_of(lambda: login.by_password(Anonymous(world.db), attempts, who, password))

    for _ in range(rules.TRIES_HERE.tries):
        assert attempt("member", "wrong password") == "UNAUTHENTICATED"
    with pytest.raises(Refusal) as refused:
        login.by_password(Anonymous(world.db), attempts, "member", PASSWORD)
    assert refused.value.code == "RATE_LIMITED"
    assert refused.value.details["retry_after_s"] == rules.TRIES_HERE.seconds
    assert attempt("lead", PASSWORD) == "done"
    clock.forward(rules.TRIES_HERE.seconds)
    assert attempt("member", PASSWORD) == "done"


def test_who_guesses_at_a_login_from_everywhere_locks_nobody_out(clock: Clock) -> None:
    attempts = Attempts()

    def tries(address: str) -> int:
        """Return how many wrong tries are let through at once."""
        for number in range(10):
            if code_of(lambda: attempts.charge("member", address, clock())) == "RATE_LIMITED":
                return number
        return 10

    attempts.charge("member", "home", clock())
    attempts.forgive("member", "home")
    for number in range(rules.TRIES_LOGIN.tries):
        attempts.charge("member", f"192.0.2.{number}", clock())
    assert tries("home") == rules.TRIES_HERE.tries
    assert tries("a hotel") == tries("another") == rules.TRIES_SLOWED.tries
    attempts.charge("lead", "a hotel", clock())
    clock.forward(rules.TRIES_SLOWED.seconds)
    assert tries("a hotel") == rules.TRIES_SLOWED.tries
    clock.forward(rules.TRIES_LOGIN.seconds)
    assert tries("a hotel") == rules.TRIES_HERE.tries


def test_an_address_that_tries_many_logins_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "matches", lambda hash, password: False)
    attempts = Attempts()
    codes = [
        code_of(partial(login.by_password, Anonymous(world.db), attempts, f"user{n}", "wrong password"))
        for n in range(rules.TRIES_ADDRESS.tries + 1)
    ]
    assert codes == ["UNAUTHENTICATED"] * rules.TRIES_ADDRESS.tries + ["RATE_LIMITED"]


def test_the_memory_of_tries_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.usecases.attempts.KEYS_MAX", 10)
    attempts = Attempts()
    for number in range(100):
        attempts.charge(f"user{number}", f"192.0.2.{number}", clock())
    assert len(attempts._tries) == 10


def test_logging_in_often_ends_the_oldest_logins_only(world: World, clock: Clock) -> None:
    doors = Anonymous(world.db)
    texts = []
    for _ in range(rules.LOGIN_TOKENS_MAX + 2):
        clock.forward(1)
        with world.act("owner", "acme") as ctx:
            link = members.login_link(ctx, "member").text
        texts.append(login.by_link(doors, Attempts(), LinkAsk(link)).token)
    alive = []
    for text in texts:
        with world.db.read() as tx:
            alive.append(code_of(partial(enter, tx, Caller(text), Rule(Who.SELF, "me"), Place())))
    assert alive == ["UNAUTHENTICATED"] * 2 + ["done"] * rules.LOGIN_TOKENS_MAX


def test_the_present_password_is_needed_to_change_it(world: World) -> None:
    me = Anonymous(world.db, world.tokens["member"], Rule(Who.SELF, "me"))
    login.change_password(me, Attempts(), None, PASSWORD)
    assert code_of(lambda: login.change_password(me, Attempts(), None, "x" * 12)) == "FORBIDDEN"
    assert code_of(lambda: login.change_password(me, Attempts(), PASSWORD, "short")) == "INVALID_REQUEST"
    login.change_password(me, Attempts(), PASSWORD, "x" * 12)
    assert login.by_password(Anonymous(world.db), Attempts(), "member", "x" * 12).token


def test_a_secret_never_stands_in_the_database(world: World) -> None:
    text = invitation(world)
    token = use(world, LinkAsk(text, "ada", password=PASSWORD)).token
    assert token and world.db.url.database
    files = [Path(world.db.url.database + end) for end in ("", "-wal")]
    stored = b"".join(file.read_bytes() for file in files if file.exists())
    assert b"ada" in stored
    for secret in (text, token, PASSWORD):
        assert secret.encode() not in stored
