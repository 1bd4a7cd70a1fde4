"""A database that cannot write says what to do, and works again when there is room (spec 60, line 8)."""

from __future__ import annotations

from sqlalchemy import event

from corral.store.database_errors import DatabaseError, is_full
from tests.world import World


def test_a_full_disk_is_told_and_over_when_there_is_room(world: World) -> None:
    owner, workspaces = world.client("owner"), "/api/v1/orgs/acme/workspaces"
    limit = {"pages": "(SELECT page_count FROM pragma_page_count)"}

    def hold_down(connection: object, *_: object) -> None:
        cursor = connection.cursor()  # type: ignore[attr-defined]  # the driver's own
        pages = cursor.execute("PRAGMA page_count").fetchone()[0]
        cursor.execute(f"PRAGMA max_page_count = {pages if limit else 1 << 30}")
        cursor.close()

    event.listen(world.db.writer, "checkout", hold_down)
    answers = [owner.post(workspaces, json={"slug": f"w{n}", "name": "n" * 90}) for n in range(60)]
    full = [answer for answer in answers if answer.status_code != 201]
    assert full, "the database never was full"
    assert {(one.status_code, one.json()["code"]) for one in full} == {(503, "UNAVAILABLE")}
    assert "disk" in full[0].json()["message"] and full[0].headers["retry-after"]
    limit.clear()
    assert owner.post(workspaces, json={"slug": "fits", "name": "Fits"}).status_code == 201


def test_only_a_full_disk_is_a_full_disk() -> None:
    assert not is_full(ValueError("database or disk is full"))
    assert not is_full(DatabaseError("x", {}, Exception("database is locked")))
