"""The one way out: signed, to addresses that were judged, and nothing that a target could use against the site."""

from __future__ import annotations

import asyncio
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from corral.controllers.deliveries import Job
from corral.domain.errors import Refusal
from corral.domain.targets import NOT_REACHED, Url
from corral.domain.webhooks import Outcome
from corral.server import messages as messages_module
from corral.server.lookups import Lookups, Room
from corral.server.messages import CHECKS_AT_ONCE, NOT_TAKEN, Messages, joined
from corral.server.outbound import OF_DELIVERIES, Asker, Outbound
from corral.server.sealing import SiteKey
from corral.usecases.deliveries import Due
from corral.usecases.sealing import CANNOT_BE_OPENED
from tests.live_server import eventually
from tests.receivers import Answer, Receiver, http_receiver, mail_server, stuck_receiver

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
LOOPBACK = (ip_network("127.0.0.0/8"),)
SOMEBODY = Asker("acme", "user-1", ())
SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/"
NOWHERE = Outcome(None, error=NOT_REACHED)
AT_MOST_S = 15.0
"""Sooner than whatever else would end what a test is about; never how long it takes."""


@pytest.fixture
def key(tmp_path: Path) -> SiteKey:
    return SiteKey(tmp_path / "state")


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with http_receiver() as made:
        yield made


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Receiver]:
    with http_receiver(tmp_path / "ca", "hooks.example.com") as made:
        yield made


def due(key: SiteKey, url: str, body: str = '{"a":"ä"}') -> Due:
    return Due("0190", "org", "hook", body, 0, url=url, secret=key.seal(SECRET, "hook"))


def send(key: SiteKey, url: str, opened: Sequence[Any] = LOOPBACK, **given: Any) -> Outcome:
    return send_due(key, due(key, url), opened, **given)


def send_due(key: SiteKey, one: Due, opened: Sequence[Any] = LOOPBACK, **given: Any) -> Outcome:
    async def run() -> Outcome:
        outbound = Outbound(key, Messages(), **given)
        try:
            async with asyncio.timeout(AT_MOST_S):
                return await outbound.send(Job([one], tuple(opened)))
        finally:
            await outbound.aclose()

    return asyncio.run(run())


def to(*addresses: str) -> Callable[[str, int], Sequence[str]]:
    return lambda host, port: addresses


def test_a_delivery_is_signed_as_standard_webhooks_says(key: SiteKey, receiver: Receiver) -> None:
    assert send(key, f"{receiver.url}/in?x=1") == Outcome(204)
    (one,) = receiver.received
    assert one.path == "/in?x=1" and one.headers["content-type"] == "application/cloudevents+json"
    assert one.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert Webhook(SECRET).verify(one.body, one.headers) == {"a": "ä"}
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(one.body + b" ", one.headers)


def test_sent_again_it_has_the_same_id(key: SiteKey, receiver: Receiver) -> None:
    for _ in range(2):
        send(key, receiver.url)
    assert [one.headers["webhook-id"] for one in receiver.received] == ["msg_0190", "msg_0190"]


def test_tls_is_checked_for_the_name_though_the_address_was_looked_up_before(key: SiteKey, secure: Receiver) -> None:
    url = f"https://hooks.example.com:{secure.port}/"
    assert send(key, url, resolver=to("127.0.0.1"), trust=secure.trust) == Outcome(204)
    assert secure.received[0].headers["host"] == f"hooks.example.com:{secure.port}"
    other = f"https://other.example.com:{secure.port}/"
    assert send(key, other, resolver=to("127.0.0.1"), trust=secure.trust) == NOWHERE
    assert send(key, url, resolver=to("127.0.0.1"), trust=ssl.create_default_context()) == NOWHERE
    assert len(secure.received) == 1


def test_a_name_is_resolved_once_and_what_was_judged_is_connected_to(key: SiteKey, receiver: Receiver) -> None:
    asked: list[str] = []

    def rebinding(host: str, port: int) -> Sequence[str]:
        # A public address for whoever checks, a private one for whoever connects.
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    assert send(key, f"http://hooks.example.com:{receiver.port}/", resolver=rebinding) == Outcome(204)
    assert asked == ["hooks.example.com"]


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::1"], ["169.254.169.254"], ["::ffff:127.0.0.1"], []]
)
def test_an_address_inside_is_never_connected_to(key: SiteKey, receiver: Receiver, addresses: list[str]) -> None:
    url = f"https://hooks.example.com:{receiver.port}/"
    assert send(key, url, opened=(), resolver=to(*addresses)) == NOWHERE
    assert send(key, f"http://hooks.example.com:{receiver.port}/", opened=(), resolver=to(*addresses)) == NOWHERE
    assert not receiver.received


def test_a_name_that_leads_inside_only_when_it_is_sent_again_is_not_connected_to(
    key: SiteKey, receiver: Receiver
) -> None:
    answers = iter([["8.8.8.8"], ["127.0.0.1"]])
    outbound = Outbound(key, Messages(), resolver=lambda host, port: next(answers))
    outbound.check(SOMEBODY, Url("https", "hooks.example.com", receiver.port, "/"))
    one = Job([due(key, f"https://hooks.example.com:{receiver.port}/")], ())
    assert asyncio.run(outbound.send(one)) == NOWHERE
    assert not receiver.received


def test_an_address_that_does_not_answer_gives_way_to_the_next(key: SiteKey, receiver: Receiver) -> None:
    url = f"http://hooks.example.com:{receiver.port}/"
    assert send(key, url, resolver=to("127.0.0.9", "127.0.0.1")) == Outcome(204)


def test_a_redirect_is_not_followed(key: SiteKey, receiver: Receiver) -> None:
    with http_receiver() as inside:
        receiver.answer = lambda _: Answer(307, {"Location": inside.url})
        outcome = send(key, receiver.url)
        assert outcome.status == 307 and not outcome.taken and "redirect" in outcome.error
        assert not inside.received


def test_proxies_of_the_environment_are_not_asked(
    key: SiteKey, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_receiver() as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert send(key, receiver.url) == Outcome(204)
        assert not proxy.received


def test_nothing_of_an_answer_but_its_status_is_told(key: SiteKey, receiver: Receiver) -> None:
    receiver.answer = lambda _: Answer(500, {"X-Inside": "secret"}, b"secret " * 100_000)
    outcome = send(key, receiver.url)
    assert outcome == Outcome(500, error="It answered 500.")


@pytest.mark.parametrize(
    ("text", "seconds"), [("120", 120.0), ("0", 0.0), ("soon", None), ("-5", None), ("9" * 40, None), ("", None)]
)
def test_retry_after_is_read_as_seconds(key: SiteKey, receiver: Receiver, text: str, seconds: float | None) -> None:
    receiver.answer = lambda _: Answer(503, {"Retry-After": text})
    assert send(key, receiver.url).retry_after_s == seconds


def test_retry_after_is_read_as_a_date(key: SiteKey, receiver: Receiver) -> None:
    receiver.answer = lambda _: Answer(429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})
    seconds = send(key, receiver.url).retry_after_s
    assert seconds is not None and seconds < 0


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "then"), [(b"", b""), (b"", b"H"), (b"HTTP/1.1 200 OK\r\nX: ", b"y"), (b"nonsense", b"x")]
)
def test_a_target_that_never_finishes_is_left_in_time(key: SiteKey, begin: bytes, then: bytes) -> None:
    with stuck_receiver(begin, then) as port:
        assert send(key, f"http://127.0.0.1:{port}/", within_s=0.5) == NOWHERE


def test_a_body_that_never_ends_changes_nothing(key: SiteKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.server.posting.BODY_S", 0.2)
    with stuck_receiver(HEAD, b"x") as port:
        assert send(key, f"http://127.0.0.1:{port}/") == Outcome(200)


class Silent:
    """A resolver whose name server answers for some names only when a test is over."""

    def __init__(self, *prefixes: str) -> None:
        self.ended = threading.Event()
        self.running: list[str] = []
        self._prefixes = prefixes

    def __call__(self, host: str, port: int) -> Sequence[str]:
        if host.startswith(self._prefixes):
            self.running.append(host)
            self.ended.wait(AT_MOST_S * 2)
        return ["8.8.8.8"]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Silent]:
    monkeypatch.setattr("corral.server.lookups.WITHIN_S", 0.1)
    made = Silent("slow")
    yield made
    made.ended.set()


def test_a_name_server_that_does_not_answer_is_left_in_time(key: SiteKey, silent: Silent) -> None:
    outbound = Outbound(key, Messages(), resolver=silent)
    try:
        with pytest.raises(Refusal):
            outbound.check(SOMEBODY, Url("https", "slow.example.com", 443, "/"))
        assert asyncio.run(outbound.send(Job([due(key, "https://slow.example.com/")], ()))) == NOWHERE
    finally:
        asyncio.run(outbound.aclose())


def test_look_ups_that_hang_for_one_person_or_organisation_refuse_nobody_else(key: SiteKey, silent: Silent) -> None:
    """Whoever asked gave up, and the thread is still busy: it counts until it ends."""
    outbound = Outbound(key, Messages(), resolver=silent)

    def ask(org: str, user: str, host: str) -> str:
        try:
            outbound.check(Asker(org, user, ()), Url("https", host, 443, "/"))
        except Refusal as refusal:
            return refusal.code
        return "found"

    asked = [ask("acme", f"user-{number % 3}", f"slow-{number}.example.com") for number in range(10)]
    assert asked == ["INVALID_URL"] * 4 + ["RATE_LIMITED"] * 6 and len(silent.running) == 4
    assert ask("acme", "user-9", "fast.example.com") == "RATE_LIMITED"
    assert ask("rival", "user-7", "fast.example.com") == "found"
    for number in range(3):
        ask("rival", "user-7", f"slow-{number + 20}.example.com")
    assert len(silent.running) == 6, "a person has two at once"
    silent.ended.set()
    eventually(lambda: ask("acme", "user-9", "fast.example.com") == "found")
    asyncio.run(outbound.aclose())


def test_people_do_not_wait_for_deliveries_nor_deliveries_for_people(key: SiteKey, silent: Silent) -> None:
    outbound = Outbound(key, Messages(), resolver=silent)

    async def deliver(org: str, count: int) -> None:
        urls = [f"https://slow-{org}-{number}.example.com/" for number in range(count)]
        jobs = [Job([replace(due(key, url), org_id=org)], ()) for url in urls]
        assert set(await asyncio.gather(*(outbound.send(job) for job in jobs))) == {NOWHERE}

    async def run() -> None:
        for number in range(15):
            await deliver(f"org-{number}", 8)
        outbound.check(SOMEBODY, Url("https", "fast.example.com", 443, "/"))

    asyncio.run(run())
    assert len(silent.running) == OF_DELIVERIES.most
    asyncio.run(outbound.aclose())


def test_a_name_that_kept_silent_is_looked_up_among_its_like_until_it_answers(key: SiteKey, silent: Silent) -> None:
    asked = Lookups(silent, Room(2, (2,)), Room(1, (1,)))
    for _ in range(2):
        with pytest.raises(TimeoutError):
            asked.wait(("acme",), "slow.example.com", 443)
    with pytest.raises(Refusal):  # the one place there is for such names
        asked.wait(("rival",), "slow.example.com", 443)
    assert asked.wait(("acme",), "fast.example.com", 443) == ["8.8.8.8"]
    silent.ended.set()

    def answered() -> bool:
        try:
            return asked.wait(("acme",), "slow.example.com", 443) == ["8.8.8.8"]
        except Refusal:  # the one before has not ended yet
            return False

    eventually(answered)
    assert not asked._names
    asked.close()


def test_nobody_listens_there_is_told_like_everything_else(key: SiteKey) -> None:
    with stuck_receiver() as port:
        pass
    assert send(key, f"http://127.0.0.1:{port}/") == NOWHERE
    assert send(key, "https://does-not-exist.invalid/") == NOWHERE


def test_names_that_cannot_be_looked_up_are_refused_and_break_nothing(key: SiteKey) -> None:
    outbound = Outbound(key, Messages())
    for host in (
        "x" * 300,
        "a..b",
        "does-not-exist.invalid",
        "0x7f.1",
        "2130706433",
        "localhost",
        "127.0.0.1",
        "[::1]",
    ):
        with pytest.raises(Refusal) as refusal:
            outbound.check(SOMEBODY, Url("https", host, 443, "/"))
        assert refusal.value.code == "INVALID_URL"
    asyncio.run(outbound.aclose())


def test_a_secret_that_another_key_sealed_is_said_and_nothing_is_sent(
    key: SiteKey, receiver: Receiver, tmp_path: Path
) -> None:
    foreign = due(SiteKey(tmp_path / "other"), receiver.url)
    assert send_due(key, foreign) == Outcome(None, error=CANNOT_BE_OPENED)
    mixed_up = Due("0190", "org", "another", "{}", 0, url=receiver.url, secret=key.seal(SECRET, "hook"))
    assert send_due(key, mixed_up) == Outcome(None, error=CANNOT_BE_OPENED)
    assert not receiver.received


# -- mail and chat


def mail(key: SiteKey, port: int, host: str = "127.0.0.1") -> Due:
    target = f"mailto://bot:pw@{host}:{port}?to=ops@example.com&from=corral@example.com"
    body = '{"title":"Machine gpu-1 is down","text":"Since noon"}'
    return Due("0190", "org", "rule", body, 0, target=key.seal(target, "rule"))


def test_mail_is_sent(key: SiteKey) -> None:
    with mail_server() as box:
        assert send_due(key, mail(key, box.port)).taken
    (one,) = box.mails
    assert one["Subject"] == "Machine gpu-1 is down" and "ops@example.com" in str(one["To"])
    assert "Since noon" in str(one.get_payload(0) if one.is_multipart() else one.get_payload())


def test_a_service_that_refuses_is_told_in_words_of_our_own(key: SiteKey) -> None:
    with mail_server() as box:
        box.refuse = True
        assert send_due(key, mail(key, box.port)) == Outcome(None, error=NOT_TAKEN)


def test_a_service_inside_is_never_connected_to(key: SiteKey) -> None:
    with mail_server() as box:
        for host in ("127.0.0.1", "localhost", "0x7f.1"):
            assert send_due(key, mail(key, box.port, host), opened=()) == Outcome(None, error=NOT_TAKEN)
        assert not box.mails


def test_a_service_that_never_answers_is_ended_in_time(key: SiteKey) -> None:
    async def run(port: int) -> Outcome:
        outbound = Outbound(key, Messages(within_s=1.0))
        try:
            async with asyncio.timeout(AT_MOST_S):
                return await outbound.send(Job([mail(key, port)], LOOPBACK))
        finally:
            await outbound.aclose()

    with stuck_receiver() as port:
        assert asyncio.run(run(port)) == Outcome(None, error=NOT_TAKEN)


def test_closing_ends_what_runs(key: SiteKey) -> None:
    async def run(port: int) -> Outcome:
        messages = Messages()
        outbound = Outbound(key, messages)
        sending = asyncio.create_task(outbound.send(Job([mail(key, port)], LOOPBACK)))
        async with asyncio.timeout(AT_MOST_S):
            while not messages._running:
                await asyncio.sleep(0.01)
            await outbound.aclose()
            return await sending

    with stuck_receiver() as port:
        assert asyncio.run(run(port)) == Outcome(None, error=NOT_TAKEN)


def test_the_process_that_tells_gets_nothing_of_the_sites_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_DATABASE", "postgresql://user:secret@host/db")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    given = messages_module._environment()
    assert "secret" not in str(given) and "proxy" not in str(given)


def test_an_address_that_the_library_cannot_read_is_noticed() -> None:
    assert Messages().can_be_read("acme", SLACK)
    assert not Messages().can_be_read("acme", "slack://")


def test_few_addresses_are_checked_at_once_and_no_thread_waits_long_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages_module, "CHECK_WAIT_S", 0.1)
    ended, running = threading.Event(), []

    class Held(Messages):
        def _run(self, *given: Any) -> bool | None:
            running.append(given)
            ended.wait(AT_MOST_S * 2)
            return True

    messages = Held()

    def ask(org: str) -> str:
        try:
            return str(messages.can_be_read(org, SLACK))
        except Refusal as refusal:
            return refusal.code

    with ThreadPoolExecutor(8) as pool:
        first = [pool.submit(ask, org) for org in ("acme", "rival")]
        eventually(lambda: len(running) == CHECKS_AT_ONCE)
        assert [pool.submit(ask, org).result(AT_MOST_S) for org in ("acme", "third", "fourth")] == ["RATE_LIMITED"] * 3
        ended.set()
        assert [one.result(AT_MOST_S) for one in first] == ["True", "True"]
        assert ask("third") == "True"


def test_a_check_that_takes_too_long_says_nothing_of_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages_module, "CHECK_WITHIN_S", 0.0)
    with pytest.raises(Refusal) as refusal:
        Messages().can_be_read("acme", SLACK)
    assert refusal.value.code == "RATE_LIMITED"


def test_several_messages_make_one_that_names_them() -> None:
    one = {"title": "a", "text": "Organisation acme\nsince noon"}
    assert joined([one]) == one
    many = joined([{**one, "title": f"m{number}"} for number in range(30)])
    assert many["title"].startswith("30 alerts: m0") and "m19" in many["text"] and "m20" not in many["text"]
    assert "and 10 more" in many["text"] and many["text"].endswith("Organisation acme")


def test_the_ten_lines_of_the_documentation_check_a_signature(
    key: SiteKey, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs/alerts.md").read_text("utf-8")
    (lines,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(lines.splitlines()) <= 10
    shown: dict[str, Any] = {}
    exec(lines, shown)
    body = '{"type":"io.corral.test","subject":"webhook/1"}'
    send_due(key, Due("0190", "org", "hook", body, 0, url=receiver.url, secret=key.seal(SECRET, "hook")))
    (one,) = receiver.received
    assert shown["take"](one.body, one.headers, SECRET) == 204
    assert capsys.readouterr().out == "io.corral.test webhook/1\n"
    assert shown["take"](one.body.replace(b"1", b"2"), one.headers, SECRET) == 401


def test_a_site_that_tells_nobody_loads_nothing_for_it() -> None:
    """Idle it stays small (spec 60): what sends, and what seals, comes when it is needed."""
    code = "import sys, corral.server.app, corral.server.serve; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"apprise", "httpcore", "standardwebhooks", "requests", "cryptography"} & set(loaded)
