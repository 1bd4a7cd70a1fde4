"""The SDK survives a bad network: retries make nothing twice, waits are as asked for, errors say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from corral import Corral, CorralError
from corral.client.transport import TRIES
from tests.client.scripted import CUT, Answer, Scripted, scripted

ORG = {"id": "1", "slug": "acme", "name": "Acme", "contact": "", "role": "owner", "created_at": "2026-03-01T12:00:00Z"}


@contextmanager
def sdk(*answers: Answer | str) -> Iterator[tuple[Corral, Scripted, list[float]]]:
    """Yield an SDK whose site answers as said, and the waits that it made."""
    waits: list[float] = []
    with scripted(answers) as site, Corral(site.url, "cora_x", sleep=waits.append) as corral:
        yield corral, site, waits


@pytest.mark.parametrize("trouble", [CUT, Answer(503), Answer(502), Answer(429)])
def test_a_post_is_tried_again_under_the_same_key(trouble: Answer | str) -> None:
    with sdk(trouble, trouble, Answer(201, ORG)) as (corral, site, waits):
        assert corral.create_org("acme").slug == "acme"
    keys = {asked.headers["idempotency-key"] for asked in site.asked}
    assert len(site.asked) == 3 and len(keys) == 1 and len(waits) == 2


def test_two_posts_have_two_keys() -> None:
    with sdk(Answer(201, ORG)) as (corral, site, _):
        corral.create_org("acme")
        corral.create_org("acme")
    assert len({asked.headers["idempotency-key"] for asked in site.asked}) == 2


def test_retry_after_is_obeyed() -> None:
    with sdk(Answer(429, headers={"Retry-After": "7"}), Answer(200, ORG)) as (corral, _, waits):
        corral.org("acme").show()
    assert waits == [7.0]


def test_other_waits_grow_and_are_bounded() -> None:
    with sdk(Answer(503)) as (corral, site, waits), pytest.raises(CorralError):
        corral.org("acme").show()
    assert len(site.asked) == TRIES and len(waits) == TRIES - 1
    assert all(0 <= wait <= 8 for wait in waits)


def test_a_refusal_is_not_tried_again_and_keeps_all_it_says() -> None:
    refusal = {"code": "NO_CAPACITY", "message": "None.", "details": {"machines": [1]}, "request_id": "r1"}
    with sdk(Answer(409, refusal)) as (corral, site, _), pytest.raises(CorralError) as caught:
        corral.create_org("acme")
    error = caught.value
    assert (error.code, error.status, error.request_id, error.details) == ("NO_CAPACITY", 409, "r1", {"machines": [1]})
    assert len(site.asked) == 1


def test_a_delete_whose_answer_was_lost_is_done() -> None:
    absent = Answer(404, {"code": "NOT_FOUND", "message": "", "details": {}, "request_id": ""})
    with sdk(CUT, absent) as (corral, _, _):
        corral.revoke_token("abc")
    with sdk(absent) as (corral, _, _), pytest.raises(CorralError):
        corral.revoke_token("abc")


def test_a_one_time_link_is_never_sent_twice() -> None:
    from corral.client.config import Site
    from corral.client.login import use_link

    with scripted([CUT]) as site, pytest.raises(CorralError) as caught:
        use_link(Site(site.url), "corl_x", login=None, name=None, password=None)
    assert caught.value.code == "UNREACHABLE" and len(site.asked) == 1


def test_lists_are_read_page_by_page_as_they_are_asked_for() -> None:
    pages: list[Answer | str] = [
        Answer(200, {"items": [ORG], "next_page_token": "two"}),
        Answer(200, {"items": [ORG, ORG], "next_page_token": None}),
    ]
    with sdk(*pages) as (corral, site, _):
        orgs = corral.orgs()
        next(orgs)
        assert len(site.asked) == 1
        assert len(list(orgs)) == 2
    assert "page_token=two" in site.asked[1].path


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, raw=b"<html>captive portal</html>"),
        Answer(200, ["no", "object"]),
        Answer(200, {**ORG, "slug": 5}),
        Answer(200, {k: v for k, v in ORG.items() if k != "slug"}),
        Answer(404, raw=b"nginx"),
        Answer(302, raw=b"", headers={"Location": "http://192.0.2.1/"}),
    ],
)
def test_what_is_no_corral_site_is_said_to_be_none(answer: Answer) -> None:
    with sdk(answer) as (corral, site, _), pytest.raises(CorralError) as caught:
        corral.org("acme").show()
    assert caught.value.code == "BAD_ANSWER" and len(site.asked) == 1


def test_an_older_sdk_reads_a_newer_site() -> None:
    with sdk(Answer(200, {**ORG, "colour": "blue"})) as (corral, _, _):
        org = corral.org("acme").show()
    assert org.raw["colour"] == "blue" and org.created_at is not None and org.created_at.tzinfo is not None


@pytest.mark.parametrize("name", ["a/b", "..%2f", "a?b=c", "a#b", "ä\u202e", "a b"])
def test_a_name_is_one_part_of_a_path_whatever_it_holds(name: str) -> None:
    with sdk(Answer(200, ORG)) as (corral, site, _):
        corral.org(name).show()
    assert site.asked[0].path.count("/") == 4 and "?" not in site.asked[0].path


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_is_another_path_is_refused(name: str) -> None:
    with sdk(Answer(200, ORG)) as (corral, site, _), pytest.raises(CorralError):
        corral.org(name)
    assert site.asked == []


EVENT: dict[str, Any] = {"id": "i.2", "seq": 2, "at": "2026-03-01T12:00:00Z", "type": "cluster.node.up", "data": {}}


def _stream(text: str) -> Answer:
    return Answer(200, raw=text.encode(), headers={"Content-Type": "text/event-stream"})


def test_a_stream_goes_on_where_it_broke_off() -> None:
    import json

    begin = "retry: 2000\nid: i.1\n: begin\ndata: {}\n\n: still here\n\n"
    first = f"{begin}id: i.2\nevent: cluster.node.up\ndata: {json.dumps(EVENT)}\n\n"
    second = f"id: i.3\nevent: cluster.node.up\ndata: {json.dumps({**EVENT, 'id': 'i.3', 'seq': 3})}\n\n"
    with sdk(_stream(first), CUT, _stream(second)) as (corral, site, _):
        events = corral.org("acme").follow_events()
        assert [next(events).seq, next(events).seq] == [2, 3]
    assert [asked.headers.get("last-event-id") for asked in site.asked] == [None, "i.2", "i.2"]


def test_a_restored_journal_is_told() -> None:
    with sdk(_stream("id: j.9\nevent: reset\ndata: {}\n\n")) as (corral, _, _):
        assert next(corral.org("acme").follow_events(after="i.2")).type == "reset"


def test_a_stream_that_is_refused_ends() -> None:
    refusal = {"code": "UNAUTHENTICATED", "message": "Log in.", "details": {}, "request_id": "r"}
    with sdk(Answer(401, refusal)) as (corral, site, _), pytest.raises(CorralError) as caught:
        next(corral.org("acme").follow_events())
    assert caught.value.code == "UNAUTHENTICATED" and len(site.asked) == 1
