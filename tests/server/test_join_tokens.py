"""Join tokens over HTTP: codes, secrets shown once, replays, and the line to run (spec 10, "Join tokens")."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from corral.server.install_line import install_line
from tests.world import World

PATH = "/api/v1/orgs/acme/clusters/default/enrollment-tokens"


def make(world: World, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    # json.dumps writes what httpx would refuse to send: half characters.
    headers = {"Content-Type": "application/json", **headers}
    answer = world.client("admin").post(PATH, content=json.dumps(body).encode(), headers=headers)
    return answer.status_code, answer.json()


def test_a_token_is_made_with_its_line(world: World) -> None:
    status, made = make(world, {"labels": {"pool": "h100"}, "ttl_seconds": 86400})
    assert status == 201
    assert set(made) == {"id", "token", "labels", "expires_at", "install"}
    assert made["labels"] == {"pool": "h100"}
    assert made["expires_at"] == "2026-03-02T12:00:00Z"
    assert made["token"].startswith("corj_")
    assert "\n" not in made["install"]
    assert made["token"] in made["install"]
    assert "h100" not in made["install"]


def test_a_token_lives_an_hour_unless_asked(world: World) -> None:
    assert make(world, {})[1]["expires_at"] == "2026-03-01T13:00:00Z"


@pytest.mark.parametrize("ttl", [59, 604801, 60.5, "3600", True, None, [], {}])
def test_a_bad_ttl_has_its_code(world: World, ttl: object) -> None:
    status, answer = make(world, {"ttl_seconds": ttl})
    assert (status, answer["code"]) == (400, "INVALID_TTL")


@pytest.mark.parametrize(
    ("labels", "code"),
    [
        ({"gpu": "x"}, "RESERVED_LABEL"),
        ({"Pool": "x"}, "INVALID_LABEL"),
        ({"pool": "a b"}, "INVALID_LABEL"),
        ({"pool": 7}, "INVALID_LABEL"),
        ({"pool": None}, "INVALID_LABEL"),
        ({"pool": "\ud800"}, "INVALID_LABEL"),
        (["pool"], "INVALID_REQUEST"),
        ("pool", "INVALID_REQUEST"),
        (None, "INVALID_REQUEST"),
    ],
)
def test_bad_labels_have_their_code(world: World, labels: object, code: str) -> None:
    status, answer = make(world, {"labels": labels}, **{"Idempotency-Key": "k"})
    assert (status, answer["code"]) == (400, code)


def test_a_replay_gives_the_same_token_without_its_secret(world: World) -> None:
    body = {"labels": {"pool": "h100"}}
    _, first = make(world, body, **{"Idempotency-Key": "k1"})
    status, again = make(world, body, **{"Idempotency-Key": "k1"})
    assert status == 201
    assert again == {**first, "token": None, "install": None}
    assert make(world, {"labels": {"pool": "a100"}}, **{"Idempotency-Key": "k1"})[0] == 422
    assert len(world.client("admin").get(PATH).json()["items"]) == 1


def test_the_eleventh_token_on_the_hosted_cluster_is_refused(world: World) -> None:
    for _ in range(10):
        assert make(world, {})[0] == 201
    status, answer = make(world, {})
    assert (status, answer["code"]) == (403, "LIMIT_REACHED")
    assert answer["details"] == {"limit": 10, "machines": 0, "tokens": 10, "contact": ""}


def test_tokens_are_listed_in_pages_without_secrets_and_revoked(world: World) -> None:
    made = [make(world, {})[1] for _ in range(3)]
    first = world.client("admin").get(PATH, params={"page_size": 2}).json()
    rest = world.client("admin").get(PATH, params={"page_size": 2, "page_token": first["next_page_token"]}).json()
    listed = [*first["items"], *rest["items"]]
    assert {one["id"] for one in listed} == {one["id"] for one in made}
    assert rest["next_page_token"] is None
    assert all(one["token"] not in str(listed) for one in made)
    assert world.client("admin").delete(f"{PATH}/{made[0]['id']}").status_code == 204
    assert world.client("admin").delete(f"{PATH}/{made[0]['id']}").status_code == 404
    assert len(world.client("admin").get(PATH).json()["items"]) == 2


def test_a_token_of_another_cluster_or_organisation_is_not_found(world: World) -> None:
    assert world.client("rival").post(PATH, json={}).status_code == 404
    made = make(world, {})[1]
    theirs = f"/api/v1/orgs/rival/clusters/default/enrollment-tokens/{made['id']}"
    assert world.client("rival").delete(theirs).status_code == 404
    assert world.client("admin").post(PATH.replace("default", "other"), json={}).status_code == 404


def test_a_requests_host_never_reaches_the_line(world: World) -> None:
    made = make(world, {}, Host="evil.example", **{"X-Forwarded-Host": "evil.example", "Forwarded": "host=evil"})[1]
    assert "evil" not in made["install"]
    assert "http://corral.test/api/v1/install.sh" in made["install"]


def test_the_sites_own_ca_is_pinned_in_the_line(world: World) -> None:
    world.app.state.ca_pem = "-----BEGIN CERTIFICATE-----\nMIIB+a/b=\n-----END CERTIFICATE-----\n"
    line = make(world, {})[1]["install"]
    assert "MIIB+a/b=" in line
    assert '--cacert "$c"' in line
    assert '--ca-file "$c"' in line


def test_an_address_with_shell_characters_stays_one_word() -> None:
    line = install_line("https://a.example/$(id);'`x`", "corj_t", None)
    assert "'https://a.example/$(id);'\"'\"'`x`/api/v1/install.sh'" in line


HOSTILE = [
    "$(touch {canary})",
    "`touch {canary}`",
    "';touch {canary};'",
    '";touch {canary};"',
    "x\ntouch {canary}",
    "a&b",
    "|sh",
]
ODD = {"-rf": "--token-file", "--": "-", "..": "../../etc/passwd", "_": ":", ".": "-e"}
"""The oddest labels that are welcome."""


@pytest.mark.parametrize("text", HOSTILE)
def test_labels_that_a_shell_would_take_for_commands_are_refused(world: World, text: str) -> None:
    assert make(world, {"labels": {"pool": text}})[1]["code"] == "INVALID_LABEL"
    assert make(world, {"labels": {text: "x"}})[1]["code"] == "INVALID_LABEL"


def test_the_line_is_the_same_whatever_the_labels_are(world: World) -> None:
    plain, odd = make(world, {})[1], make(world, {"labels": ODD})[1]
    assert odd["labels"] == ODD
    assert odd["install"].replace(odd["token"], plain["token"]) == plain["install"]


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize("ca", [None, "-----BEGIN CERTIFICATE-----\n$(>x)`>x`'\"\n-----END CERTIFICATE-----\n"])
def test_the_line_runs_only_the_sites_script_and_gives_it_the_token(
    world: World, tmp_path: Path, shell: str, ca: str | None
) -> None:
    """With a stub for curl, which writes down what it was asked and answers a script that tells what it got."""
    world.app.state.ca_pem = ca
    made = make(world, {"labels": ODD})[1]
    here, programs, scratch, asked = (tmp_path / name for name in ("here", "bin", "tmp", "asked"))
    for folder in (here, programs, scratch):
        folder.mkdir()
    for name in ("sh", "mktemp", "rm", "cat"):
        (programs / name).symlink_to(str(shutil.which(name)))
    stub = programs / "curl"
    answer = 'echo "$@"; while [ "$1" != --token-file ]; do shift; done; cat "$2"'
    stub.write_text(f"#!/bin/sh\necho \"$*\" >{asked}\necho '{answer}'\n")
    stub.chmod(0o755)
    executable = str(shutil.which(shell))
    assert subprocess.run([executable, "-n", "-c", made["install"]], check=False, timeout=20).returncode == 0
    env = {"PATH": str(programs), "TMPDIR": str(scratch)}
    ran = subprocess.run(
        [executable, "-c", made["install"]],
        env=env,
        cwd=here,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    arguments, token = ran.stdout.splitlines()
    assert token == made["token"]
    assert arguments.startswith("--url http://corral.test --token-file ")
    assert made["token"] not in arguments + asked.read_text()
    assert asked.read_text().split()[-1] == "http://corral.test/api/v1/install.sh"
    assert list(scratch.iterdir()) == []
    assert list(here.iterdir()) == []


def test_a_token_revoked_before_answers_as_one_that_never_was(world: World) -> None:
    made = make(world, {})[1]
    assert world.client("admin").delete(f"{PATH}/{made['id']}").status_code == 204
    answers = [world.client("admin").delete(f"{PATH}/{id}").json() for id in (made["id"], "absent")]
    assert {answer["code"] for answer in answers} == {"NOT_FOUND"}
    assert len({answer["message"] for answer in answers}) == 1


def test_a_token_is_made_from_a_workspace(world: World) -> None:
    path = "/api/v1/orgs/acme/workspaces/private/enrollment-tokens"
    headers = {"Idempotency-Key": "k"}
    first = world.client("admin").post(path, json={"labels": {"pool": "h100"}}, headers=headers)
    again = world.client("admin").post(path, json={"labels": {"pool": "h100"}}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == {**first.json(), "token": None, "install": None}
    assert world.client("member").post(path, json={}).status_code == 404
    assert world.client("lead").post(path.replace("private", "research"), json={}).status_code == 403


def test_from_a_workspace_with_several_clusters_one_must_be_named(world: World) -> None:
    world.client("operator").post("/api/v1/orgs/acme/dedicated-clusters", json={"slug": "big", "name": "Big"})
    path, admin = "/api/v1/orgs/acme/workspaces/private/enrollment-tokens", world.client("admin")
    refused = admin.post(path, json={})
    assert (refused.status_code, refused.json()["code"]) == (400, "CLUSTER_REQUIRED")
    assert refused.json()["details"] == {"field": "cluster"}
    assert admin.post(path, json={"cluster": "big"}).status_code == 201
    assert admin.post(path, json={"cluster": "absent"}).status_code == 404
    assert len(admin.get(PATH.replace("default", "big")).json()["items"]) == 1
    assert admin.get(PATH).json()["items"] == []
