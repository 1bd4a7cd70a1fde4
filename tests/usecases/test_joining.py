"""One token makes one machine, whatever races and whatever is lost (spec 40, "Joining"; security cases 1-4)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import func, select

from corral.domain import join_tokens as rules
from corral.domain.errors import Refusal
from corral.store import journal
from corral.store import machines as machine_rows
from corral.store.engine import Database
from corral.store.tables.machines import machines
from corral.store.transaction import Scope
from corral.usecases import join_tokens, joining, removal
from corral.usecases.joining import Joined
from tests.conftest import Clock
from tests.live_server import agent_key
from tests.world import World


def make_token(world: World, labels: dict[str, str] | None = None, ttl: int = 3600) -> join_tokens.NewJoinToken:
    with world.act("admin", org="acme") as ctx:
        return join_tokens.create(ctx, "default", rules.asked(labels or {}, ttl))


def join(db: Database, token: str, key: str, hostname: str = "gpu-1") -> Joined | Refusal:
    with db.write() as tx:
        return joining.join(tx, replace(joining.asked(token, key, hostname, "0.1.0"), address="192.0.2.7"))


def joined(db: Database, token: str, key: str, hostname: str = "gpu-1") -> Joined:
    answer = join(db, token, key, hostname)
    assert isinstance(answer, Joined), answer
    return answer


def code(answer: Joined | Refusal) -> str:
    assert isinstance(answer, Refusal), answer
    return answer.code


def count_machines(db: Database) -> int:
    with db.read() as tx:
        return int(tx.scalar(select(func.count()).select_from(machines)))


def audit(world: World, type: str) -> list[dict[str, object]]:
    with world.db.read() as tx:
        want = journal.Filter(view="audit", types=[type])
        return [
            dict(row) for row in journal.newest_first(tx, Scope(world.ids.orgs["acme"]), want, before=None, limit=99)
        ]


def test_of_50_simultaneous_joins_with_one_token_one_makes_a_machine(world_on_both: World) -> None:
    token, start = make_token(world_on_both).token, threading.Barrier(50)

    def attempt(_: int) -> Joined | Refusal:
        start.wait()
        return join(world_on_both.db, token, agent_key())

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(attempt, range(50)))
    assert sum(isinstance(answer, Joined) for answer in answers) == 1
    assert [code(answer) for answer in answers if isinstance(answer, Refusal)] == ["TOKEN_USED"] * 49
    assert count_machines(world_on_both.db) == 1
    assert len(audit(world_on_both, "cluster.token.replayed")) == 49


def test_of_50_simultaneous_joins_with_one_key_all_get_one_machine(world_on_both: World) -> None:
    token, key, start = make_token(world_on_both).token, agent_key(), threading.Barrier(50)

    def attempt(_: int) -> str:
        start.wait()
        return joined(world_on_both.db, token, key).machine.id

    with ThreadPoolExecutor(50) as pool:
        assert len(set(pool.map(attempt, range(50)))) == 1
    assert count_machines(world_on_both.db) == 1


def test_simultaneous_joins_with_one_host_name_get_names_of_their_own(world_on_both: World) -> None:
    tokens = [make_token(world_on_both).token for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda token: joined(world_on_both.db, token, agent_key(), "GPU-1.lab"), tokens))
    assert sorted(answer.machine.name for answer in answers) == ["gpu-1", *(f"gpu-1-{n}" for n in range(2, 9))]


def test_the_same_key_resumes_after_the_tokens_expiry(world_on_both: World, clock: Clock) -> None:
    token, key = make_token(world_on_both, ttl=60).token, agent_key()
    first = joined(world_on_both.db, token, key)
    clock.forward(3600)
    assert joined(world_on_both.db, token, key, "renamed") == first


def test_another_key_is_refused_and_audited_also_after_the_expiry(world_on_both: World, clock: Clock) -> None:
    token = make_token(world_on_both, ttl=60)
    machine = joined(world_on_both.db, token.token, agent_key()).machine
    clock.forward(3600)
    assert code(join(world_on_both.db, token.token, agent_key(), "evil\x1b[2J")) == "TOKEN_USED"
    (entry,) = audit(world_on_both, "cluster.token.replayed")
    assert entry["machine_id"] == machine.id
    assert entry["address"] == "192.0.2.7"
    assert token.token not in str(entry)


def test_an_expired_token_makes_no_machine(world_on_both: World, clock: Clock) -> None:
    token = make_token(world_on_both, ttl=60).token
    clock.forward(60)
    assert code(join(world_on_both.db, token, agent_key())) == "TOKEN_EXPIRED"
    assert count_machines(world_on_both.db) == 0


def test_a_revoked_token_is_unknown(world_on_both: World) -> None:
    token = make_token(world_on_both)
    with world_on_both.act("admin", org="acme") as ctx:
        join_tokens.revoke(ctx, "default", token.id)
    assert code(join(world_on_both.db, token.token, agent_key())) == "TOKEN_UNKNOWN"


def test_the_secret_counts_not_the_public_id(world_on_both: World) -> None:
    one, other = make_token(world_on_both).token, make_token(world_on_both).token
    mixed = rules_secret(one, other)
    assert code(join(world_on_both.db, mixed, agent_key())) == "TOKEN_UNKNOWN"


def rules_secret(public_of: str, secret_of: str) -> str:
    """Return a well-formed token with one's public id and another's secret."""
    import base64
    import zlib

    body = "_".join(["corj", public_of.split("_")[1], secret_of.split("_")[2]])
    check = base64.b32encode(zlib.crc32(body.encode()).to_bytes(4, "big")).decode().rstrip("=").lower()
    return f"{body}_{check}"


@pytest.mark.parametrize("dress", ["\ufeff{}\n", "  {}\r\n", "\n\n{}\t", "{}\x00"])
def test_a_token_file_with_a_mark_newlines_or_spaces_joins(world: World, dress: str) -> None:
    joined(world.db, dress.format(make_token(world).token), agent_key())


@pytest.mark.parametrize("text", ["", "corj_", "x" * 500, "cora_aaaaaaaaaa_" + "a" * 39 + "_aaaaaaa"])
def test_what_is_no_token_is_unknown(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        joining.asked(text, agent_key(), "h", "0.1.0")
    assert refused.value.code == "TOKEN_UNKNOWN"


def test_a_token_with_a_wrong_letter_is_unknown(world: World) -> None:
    token = make_token(world).token
    wrong = token[:30] + ("a" if token[30] != "a" else "b") + token[31:]
    with pytest.raises(Refusal) as refused:
        joining.asked(wrong, agent_key(), "h", "0.1.0")
    assert refused.value.code == "TOKEN_UNKNOWN"


def test_a_removed_machines_key_is_dead_for_ever_and_its_token_stays_used(world_on_both: World) -> None:
    token, key = make_token(world_on_both).token, agent_key()
    name = joined(world_on_both.db, token, key).machine.name
    with world_on_both.act("admin", org="acme") as ctx:
        removal.remove(ctx, "default", name, force=False)
    assert code(join(world_on_both.db, token, key)) == "MACHINE_REMOVED"
    assert code(join(world_on_both.db, make_token(world_on_both).token, key)) == "MACHINE_REMOVED"
    assert code(join(world_on_both.db, rules_secret(token, make_token(world_on_both).token), key)) == "MACHINE_REMOVED"
    assert code(join(world_on_both.db, token, agent_key())) == "TOKEN_USED"
    again = joined(world_on_both.db, make_token(world_on_both).token, agent_key())
    assert again.machine.name == name


def test_a_machine_that_is_enrolled_spends_no_second_token(world_on_both: World) -> None:
    key = agent_key()
    joined(world_on_both.db, make_token(world_on_both).token, key)
    second = make_token(world_on_both).token
    assert code(join(world_on_both.db, second, key)) == "CONFLICT"
    joined(world_on_both.db, second, agent_key())


def test_a_machine_gets_its_tokens_labels(world_on_both: World) -> None:
    token = make_token(world_on_both, {"pool": "h100", "rack": "r1", "team": "red"}).token
    answer = joined(world_on_both.db, token, agent_key(), "Node_7.example.com")
    assert (answer.machine.name, answer.org, answer.cluster) == ("node-7", "acme", "default")
    with world_on_both.db.read() as tx:
        row = machine_rows.get(tx, Scope(world_on_both.ids.orgs["acme"]), answer.machine.id)
    assert row is not None
    assert (row["pool"], row["site"], row["rack"], row["labels"]) == ("h100", "", "r1", {"team": "red"})
    assert (row["state"], row["address"], row["release"]) == ("idle", "192.0.2.7", "0.1.0")


@pytest.mark.parametrize("hostname", ["", "../../etc", "a/b\x00c", "\u202egnp", "x" * 300, "-", "ＧＰＵ"])
def test_any_host_name_gives_a_plain_name(world_on_both: World, hostname: str) -> None:
    name = joined(world_on_both.db, make_token(world_on_both).token, agent_key(), hostname).machine.name
    assert name.replace("-", "a").isalnum()
    assert name.isascii()
    assert len(name) <= 63
