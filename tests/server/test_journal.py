"""Events and audit over HTTP: who sees what, filters, pages, and a live stream that misses and repeats nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import delete, update

from corral.domain import secrets
from corral.domain.events import Entry, Subject
from corral.server import live
from corral.server.routes import journal as routes
from corral.store.engine import Database
from corral.store.tables.orgs import members, workspace_members
from corral.store.tables.site import sites
from corral.store.tables.users import api_tokens
from corral.store.transaction import SITE, Actor, Wake
from corral.usecases import access, clusters
from tests.live_server import DEADLINE_S, Site, eventually, live_server
from tests.world import World


@pytest.fixture
def world(db: Database, tmp_path: Path) -> World:
    return World(db, tmp_path)


def record(world: World, type: str = "workload.active", workspace: str | None = "acme/research", **data: Any) -> None:
    org = (workspace or "acme").partition("/")[0]
    subject = Subject(org=world.ids.orgs[org], workspace=world.ids.workspaces[workspace] if workspace else None)
    with world.db.write() as tx:
        tx.record(Entry(type, subject, data), SITE)


def numbers(answer: Any) -> list[int]:
    return [item["data"]["n"] for item in answer.json()["items"]]


def test_a_member_sees_events_of_their_workspaces_only(world: World) -> None:
    record(world, n=1)
    record(world, workspace="acme/private", n=2)
    record(world, workspace=None, n=3, type="cluster.node.up")
    record(world, workspace="rival/research", n=4)
    assert numbers(world.client("admin").get("/api/v1/orgs/acme/events")) == [3, 2, 1]
    assert numbers(world.client("member").get("/api/v1/orgs/acme/events")) == [1]
    assert numbers(world.client("outsider").get("/api/v1/orgs/acme/events")) == []
    assert numbers(world.client("rival").get("/api/v1/orgs/rival/events")) == [4]


def test_filters_narrow_and_never_widen(world: World) -> None:
    record(world, n=1)
    record(world, n=2, type="workload.failed")
    record(world, workspace="acme/private", n=3)
    admin, member = world.client("admin"), world.client("member")
    events = "/api/v1/orgs/acme/events"
    assert numbers(admin.get(events, params={"type": "workload.failed"})) == [2]
    assert numbers(admin.get(events, params={"type": ["workload.*"], "workspace": "research"})) == [2, 1]
    for typo in ("work%", "workload.faild", "*", "workload.x.*"):
        assert admin.get(events, params={"type": typo}).json()["code"] == "INVALID_REQUEST"
    assert member.get(events, params={"workspace": "private"}).status_code == 404
    assert member.get(events, params={"workspace": "nowhere"}).status_code == 404
    assert numbers(admin.get(events, params={"until": "2026-03-01T12:00:00Z"})) == []
    assert numbers(admin.get(events, params={"since": "2026-03-01T13:00:00+01:00"})) == [3, 2, 1]
    assert admin.get(events, params={"since": "yesterday"}).json()["code"] == "INVALID_REQUEST"
    assert admin.get(events, params={"machine": "m1"}).json()["code"] == "INVALID_REQUEST"


def test_events_of_a_cluster_that_was_left_are_found_by_its_name_and_id_as_its_usage_is(world: World) -> None:
    admin, cluster = world.client("admin"), world.ids.clusters["default"]
    with world.db.write() as tx:
        subject = Subject(org=world.ids.orgs["acme"], cluster=cluster)
        tx.record(Entry("cluster.node.up", subject, {"n": 7}), SITE)
    with world.act("admin", "acme", "research") as ctx:
        access.remove(ctx, "default")
    with world.act("admin", "acme") as ctx:
        clusters.leave(ctx, "default")
    for name in ("default", cluster):
        found = admin.get("/api/v1/orgs/acme/events", params={"cluster": name, "type": "cluster.node.up"})
        assert numbers(found) == [7]
        assert admin.get("/api/v1/orgs/acme/usage", params={"cluster": name}).status_code == 200
    for path in ("events", "usage"):
        assert admin.get(f"/api/v1/orgs/acme/{path}", params={"cluster": "absent"}).status_code == 404


def test_audit_and_events_are_views_of_one_journal(world: World) -> None:
    record(world, n=1)  # an event
    record(world, n=2, type="workload.ssh_keys")  # audit
    record(world, n=3, type="workload.created")  # both
    admin = world.client("admin")
    assert numbers(admin.get("/api/v1/orgs/acme/events")) == [3, 1]
    assert numbers(admin.get("/api/v1/orgs/acme/audit")) == [3, 2]
    assert world.client("member").get("/api/v1/orgs/acme/audit").status_code == 403


def test_pages_hold_everything_once(world: World) -> None:
    for n in range(25):
        record(world, n=n)
    admin, seen, token = world.client("admin"), [], None
    while True:
        params = {"page_size": 10, **({"page_token": token} if token else {})}
        answer = admin.get("/api/v1/orgs/acme/events", params=params)
        seen += numbers(answer)
        token = answer.json()["next_page_token"]
        if token is None:
            break
    assert seen == list(range(24, -1, -1))
    bad = admin.get("/api/v1/orgs/acme/events", params={"page_token": "bm90IGEgbnVtYmVy"})
    assert (bad.status_code, bad.json()["code"]) == (400, "INVALID_REQUEST")


class Listener:
    """Reads one SSE stream in a thread; can break off and go on with Last-Event-ID."""

    def __init__(self, site: Site, token: str, last: str | None = None, **params: str) -> None:
        self.frames: list[dict[str, str]] = []
        self.ended = threading.Event()
        self._site, self._token, self._last, self._params = site, token, last, params
        self._stop = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        eventually(lambda: self.frames or self.ended.is_set())

    def _run(self) -> None:
        headers = {"Authorization": f"Bearer {self._token}"} | ({"Last-Event-ID": self._last} if self._last else {})
        url = f"{self._site.url}/api/v1/orgs/acme/events/stream"
        try:
            with httpx.stream("GET", url, headers=headers, params=self._params, timeout=30) as response:
                frame: dict[str, str] = {}
                for line in response.iter_lines():
                    if self._stop:
                        return
                    if line:
                        name, _, value = line.partition(": ")
                        frame[name] = value
                    elif frame:
                        self.frames.append(frame)
                        frame = {}
        except httpx.HTTPError:
            pass
        finally:
            self.ended.set()

    @property
    def numbers(self) -> list[int]:
        return [json.loads(f["data"])["data"]["n"] for f in self.frames if f.get("data", "{}") != "{}"]

    @property
    def last_id(self) -> str:
        return next(f["id"] for f in reversed(self.frames) if "id" in f)

    def join(self) -> None:
        self._stop = True
        self._thread.join(30)


@contextmanager
def listening(world: World) -> Iterator[Site]:
    with live_server(world.db) as site:
        yield site


def test_a_stream_broken_off_goes_on_where_it_was(world: World) -> None:
    with listening(world) as site:
        first = Listener(site, world.tokens["member"])
        for n in range(20):
            record(world, n=n)
        eventually(lambda: len(first.numbers) == 20)
        resume = [f["id"] for f in first.frames if f.get("data", "{}") != "{}"][9]
        first._stop = True
        record(world, n=20)  # wakes the reader, which stops
        first.join()
        record(world, workspace="acme/private", n=99)
        second = Listener(site, world.tokens["member"], last=resume)
        eventually(lambda: len(second.numbers) >= 11)
        second._stop = True
        record(world, n=21)
        second.join()
    assert first.numbers[:10] + second.numbers[:11] == list(range(21))


def test_16_writers_are_streamed_in_order_without_gap_or_repeat(world: World) -> None:
    each = 15

    def write(writer: int) -> None:
        for n in range(each):
            record(world, n=writer * each + n)

    with listening(world) as site:
        listeners = [Listener(site, world.tokens["admin"]) for _ in range(4)]
        writers = [threading.Thread(target=write, args=(number,)) for number in range(16)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        for listener in listeners:
            eventually(lambda listener=listener: len(listener.numbers) == 16 * each)  # type: ignore[misc]
            listener._stop = True
        record(world, n=-1)
        for listener in listeners:
            listener.join()
    sequences = [[int(f["id"].rpartition(".")[2]) for f in one.frames[1:]] for one in listeners]
    for listener, seqs in zip(listeners, sequences, strict=True):
        assert sorted(listener.numbers[: 16 * each]) == list(range(16 * each))
        assert seqs == sorted(set(seqs))
        assert listener.numbers[: 16 * each] == listeners[0].numbers[: 16 * each]


@pytest.mark.parametrize("cursor", ["other-site.5", "nonsense", "{incarnation}.999999999", "x.-1"])
def test_a_cursor_that_is_not_this_journals_answers_reset(world: World, cursor: str) -> None:
    with listening(world) as site:
        listener = Listener(
            site, world.tokens["admin"], last=cursor.format(incarnation=site.app.state.live.incarnation)
        )
        assert listener.frames[0].get("event") == "reset"
        listener._stop = True
        record(world, n=1)
        listener.join()


def test_a_revoked_token_ends_the_stream_before_the_next_event(world: World) -> None:
    token = world.token("admin", ["org:read"], name="listener")
    with listening(world) as site:
        listener = Listener(site, token)
        with world.db.write() as tx:
            parsed = secrets.parse(secrets.API, token)
            assert parsed is not None
            tx.run(update(api_tokens).where(api_tokens.c.public_id == parsed.public_id).values(revoked_at=tx.now))
            tx.wake(Wake.STREAMS, world.ids.users["admin"])
            subject = Subject(org=world.ids.orgs["acme"])
            tx.record(Entry("token.revoked", subject), Actor("site", None, "site"))
        record(world, n=1)
        assert listener.ended.wait(20)
        listener.join()
    assert listener.numbers == []


def test_colleagues_do_not_see_where_somebody_sits_but_the_audit_says_it(world: World) -> None:
    subject = Subject(org=world.ids.orgs["acme"], workspace=world.ids.workspaces["acme/research"])
    with world.db.write() as tx:
        actor = Actor("user", world.ids.users["lead"], "lead", "203.0.113.7", "request-7")
        tx.record(Entry("workload.created", subject, {"n": 1}), actor)
    told = world.client("member").get("/api/v1/orgs/acme/events").json()["items"][0]
    assert told["actor"] == "lead"
    assert not {"address", "request_id"} & set(told)
    with listening(world) as site:
        listener = Listener(site, world.tokens["member"], last=f"{site.app.state.live.incarnation}.0")
        eventually(lambda: listener.numbers == [1])
        listener._stop = True
        record(world, n=2)
        listener.join()
    assert "203.0.113.7" not in json.dumps(listener.frames)
    audit = world.client("admin").get("/api/v1/orgs/acme/audit").json()["items"]
    assert [(one["address"], one["request_id"]) for one in audit if one["data"] == {"n": 1}] == [
        ("203.0.113.7", "request-7")
    ]


def leave(world: World, login: str) -> None:
    """Take somebody out of the workspace, and tell."""
    with world.db.write() as tx:
        tx.run(delete(workspace_members).where(workspace_members.c.user_id == world.ids.users[login]))
        tx.wake(Wake.STREAMS, world.ids.users[login])


def test_a_right_lost_while_a_stream_is_let_in_is_not_overlooked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = routes._resolve, []

    def resolve_then_leave(*given: Any) -> Any:
        ears = real(*given)
        calls.append(1)
        if len(calls) == 1:
            leave(world, "member")
        return ears

    monkeypatch.setattr(routes, "_resolve", resolve_then_leave)
    with listening(world) as site:
        listener = Listener(site, world.tokens["member"])
        record(world, n=1)
        eventually(lambda: len(calls) == 2)
        with world.db.write() as tx:
            tx.run(delete(members).where(members.c.user_id == world.ids.users["member"]))
            tx.wake(Wake.STREAMS, world.ids.users["member"])
        record(world, n=2)
        assert listener.ended.wait(20)
        listener.join()
    assert listener.numbers == []


def test_only_who_may_have_lost_a_right_is_looked_at_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real, looked = routes._resolve, []

    def resolve(*given: Any) -> Any:
        ears = real(*given)
        looked.append(ears.user_id)
        return ears

    monkeypatch.setattr(routes, "_resolve", resolve)
    member, admin = world.ids.users["member"], world.ids.users["admin"]
    with listening(world) as site:
        listeners = [Listener(site, world.tokens[who]) for who in ("member", "admin")]
        with world.db.write() as tx:
            tx.wake(Wake.STREAMS, member)
            tx.wake(Wake.STREAMS, world.ids.workspaces["acme/research"])
        record(world, n=1)
        for listener in listeners:
            eventually(lambda listener=listener: listener.numbers == [1])  # type: ignore[misc]
            listener._stop = True
        record(world, n=2)
        for listener in listeners:
            listener.join()
    assert sorted(looked) == sorted([member, admin, member])


@contextmanager
def busy(world: World) -> Iterator[None]:
    """Another organisation has news all the time."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(0.02):
            record(world, workspace="rival/research", n=0)

    teller = threading.Thread(target=tell)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def test_an_expired_token_ends_its_stream_also_on_a_busy_site(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "HEARTBEAT_S", 0.2)
    token = world.token("admin", ["org:read"], name="listener")
    parsed = secrets.parse(secrets.API, token)
    assert parsed is not None
    with listening(world) as site, busy(world):
        listener = Listener(site, token)
        with world.db.write() as tx:  # time passes: nobody is woken
            tx.run(update(api_tokens).where(api_tokens.c.public_id == parsed.public_id).values(expires_at=tx.now))
        assert listener.ended.wait(10)
        listener.join()


def test_a_listener_hears_that_its_stream_lives_also_on_a_busy_site(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "HEARTBEAT_S", 0.2)
    with listening(world) as site, busy(world):
        listener = Listener(site, world.tokens["admin"])
        eventually(lambda: sum("" in frame for frame in listener.frames) >= 3)
        listener._stop = True
        listener.join()
    assert listener.numbers == []


def test_a_person_has_only_so_many_event_streams(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LISTENERS_OF_A_USER", 2)
    stream = "/api/v1/orgs/acme/events/stream"
    with listening(world) as site:
        listeners = [Listener(site, world.tokens[who]) for who in ("member", "member", "admin")]
        third = httpx.get(site.url + stream, headers={"Authorization": f"Bearer {world.tokens['member']}"})
        assert (third.status_code, third.json()["code"]) == (429, "RATE_LIMITED")
        for listener in listeners:
            listener._stop = True
        record(world, n=1)
        for listener in listeners:
            listener.join()
        eventually(lambda: not site.app.state.live._listeners)


def test_listeners_hear_and_lose_their_right_however_many_ask_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, go_on, waiting = routes._resolve, threading.Event(), threading.Semaphore(0)

    def resolve(door: Any, filters: Any) -> Any:
        if door.caller.token.startswith("made-up"):
            waiting.release()
            assert go_on.wait(DEADLINE_S)
        return real(door, filters)

    monkeypatch.setattr(routes, "_resolve", resolve)
    with listening(world) as site:
        listener = Listener(site, world.tokens["member"])
        askers = [threading.Thread(target=Listener, args=(site, f"made-up-{n}")) for n in range(live.THREADS + 2)]
        for asker in askers:
            asker.start()
        try:
            for _ in range(live.THREADS):
                assert waiting.acquire(timeout=DEADLINE_S)
            record(world, n=1)
            eventually(lambda: listener.numbers == [1])
            leave(world, "member")
            with world.db.write() as tx:
                tx.run(delete(members).where(members.c.user_id == world.ids.users["member"]))
                tx.wake(Wake.STREAMS, world.ids.users["member"])
            record(world, n=2)
            assert listener.ended.wait(DEADLINE_S)
        finally:
            go_on.set()
            for asker in askers:
                asker.join()
        listener.join()
    assert listener.numbers == [1]


def test_what_has_left_memory_is_read_from_the_database(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "RING_BYTES", 3 * live.OVERHEAD)
    with listening(world) as site:
        for n in range(20):
            record(world, n=n)
        ring = site.app.state.live._ring
        listener = Listener(site, world.tokens["admin"], last=f"{site.app.state.live.incarnation}.0")
        eventually(lambda: listener.numbers == list(range(20)))
        assert len(ring) <= 3
        listener._stop = True
        record(world, n=20)
        listener.join()


def test_a_listener_that_has_heard_all_looks_at_few_entries(
    sqlite_db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def seq(kept: live.Kept) -> int:
        looked.append(kept.seq)
        return kept.seq

    monkeypatch.setattr(live, "_seq", seq)
    ring = live.Live(sqlite_db)
    ring._keep([live.Kept(n, {}, b"") for n in range(1, 10_001)])
    ring.seq = 10_000
    assert ring.recent(9_998, 500) == ([live.Kept(9_999, {}, b""), live.Kept(10_000, {}, b"")], 10_000)
    assert ring.recent(10_000, 500) == ([], 10_000)
    assert len(looked) <= 30


def test_a_listener_who_was_away_longer_than_events_are_kept_is_told_to_list_again(world: World) -> None:
    record(world, n=1)
    with listening(world) as site:
        first = Listener(site, world.tokens["admin"])
        record(world, n=2)
        eventually(lambda: first.numbers == [2])
        old = first.last_id
        first.join()
        with world.db.write() as tx:
            tx.run(update(sites).values(journal_floor=int(old.rpartition(".")[2]) + 1))
        again = Listener(site, world.tokens["admin"], last=old)
        assert again.frames[0]["event"] == "reset"
        again.join()


@pytest.mark.parametrize("by", ["machine", "cluster", "workspace"])
def test_a_stream_tells_only_of_what_it_was_asked_about(world: World, by: str) -> None:
    one, other = world.add_machine("one"), world.add_machine("other")
    cluster = world.ids.clusters["default"]
    names = {"machine": one, "cluster": "default", "workspace": "research"}
    with listening(world) as site:
        listener = Listener(site, world.tokens["admin"], **{by: names[by]})
        org, research = world.ids.orgs["acme"], world.ids.workspaces["acme/research"]
        wanted = {
            "machine": Subject(org, cluster, machine=one),
            "cluster": Subject(org, cluster, machine=other),
            "workspace": Subject(org, workspace=research),
        }
        with world.db.write() as tx:
            for subject in (Subject(org), Subject(org, machine=other), Subject(world.ids.orgs["rival"], cluster)):
                tx.record(Entry("cluster.node.up", subject, {"n": 0}), SITE)
            tx.record(Entry("cluster.node.up", wanted[by], {"n": 1}), SITE)
        eventually(lambda: bool(listener.numbers))
        assert listener.numbers == [1]
        listener.join()
