"""Routes of tables: what is watched, what is planned, and what is in the way."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, cast

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pyiceberg.catalog import Catalog

from pyarctic.ams import Ams, ServiceSettings
from pyarctic.ams.store import MemoryStore
from pyarctic.server import Tokens, create_app
from tests.server.requests import TABLE, TOKEN, Api


@pytest.fixture
def watched(ams: Ams, table: str, api: Api) -> dict[str, Any]:
    """A table that was found, and not looked at yet."""
    ams.looks.discover()
    [found] = api.get("/tables")["items"]
    return dict(found)


def test_tables_are_filtered(ams: Ams, lake: Catalog, watched: dict[str, Any], api: Api) -> None:
    def names(**query: Any) -> list[str]:
        return [each["name"] for each in api.get("/tables", **query)["items"]]

    assert names(name="lake.*.ord*", catalog="lake", database="db", state="active") == ["lake.db.orders"]
    assert names(name="*.x") == names(catalog="other") == names(database="d") == names(state="paused") == []
    assert api.get("/tables", 422, state="lost")["errors"][0]["field"] == "query.state.0"
    assert api.get("/catalogs")["items"] == [{"name": "lake", "tables": 1, "states": {"active": 1}}]
    lake.drop_table("db.orders")
    ams.looks.discover()
    assert names() == []
    assert names(state="gone") == ["lake.db.orders"]
    assert api.get(TABLE, 404)["code"] == "not-found"


def test_a_table(ams: Ams, watched: dict[str, Any], api: Api) -> None:
    ams.looks.look(watched["uuid"])
    shown = api.get(TABLE)
    assert (shown["catalog"], shown["database"], shown["kind"], shown["partitions"]) == ("lake", "db", "native", 3)
    assert shown["base_snapshot_id"].isdigit()
    assert shown["files"]["rows"] == 1200
    assert shown["looked_at"].endswith("Z")
    assert api.get(f"{TABLE}/health")["health"]["score"] == shown["health"]
    events = api.get(f"{TABLE}/events", limit=1)
    assert events["items"][0]["table"] == "lake.db.orders"
    rest = api.get(f"{TABLE}/events", cursor=events["next"])["items"]
    assert rest[-1]["why"] == "it was found in its catalog"


def test_reported_commits(ams: Ams, watched: dict[str, Any], api: Api) -> None:
    report = {"store": "base", "table_uuid": watched["uuid"], "snapshot_id": "5", "parent_id": None, "sequence_number": 90}
    assert api.post(f"{TABLE}/commits", report, 202) == {"news": True}
    assert api.post(f"{TABLE}/commits", report, 200) == {"news": False}
    assert api.post(f"{TABLE}/commits", report | {"table_uuid": "other"}, 404)["facts"]["table_uuid"] == watched["uuid"]
    for wrong in ({"snapshot_id": "x"}, {"store": "log"}, {"sequence_number": -1}, {"sequence_number": 1 << 63}):
        assert api.post(f"{TABLE}/commits", report | wrong, 422)["code"] == "invalid-request"


def test_new_tables_are_watched_from_their_first_reported_commit(ams: Ams, lake: Catalog, table: str, api: Api) -> None:
    uuid = str(lake.load_table("db.orders").metadata.table_uuid)
    report = {"store": "base", "table_uuid": uuid, "snapshot_id": "5", "parent_id": None, "sequence_number": 1}
    assert api.get("/tables")["items"] == []
    assert api.post(f"{TABLE}/commits", report, 202) == {"news": True}
    assert [each["name"] for each in api.get("/tables")["items"]] == [table]
    absent = TABLE.replace("orders", "absent")
    assert api.post(f"{absent}/commits", report, 404)["code"] == "not-found"
    assert api.post(f"{absent}/processes", {}, 404)["code"] == "not-found"


def test_tables_that_are_excluded_are_not_watched(lake: Catalog, table: str) -> None:
    settings = ServiceSettings(exclude=("lake.db.o*",))
    with TestClient(create_app(Ams(MemoryStore(), settings), Tokens.of({"tester": TOKEN}))) as http:
        assert Api(http).post(f"{TABLE}/processes", {}, 404)["code"] == "not-found"


def test_processes_are_started_cancelled_and_retried(ams: Ams, watched: dict[str, Any], api: Api) -> None:
    answer = api.call("POST", f"{TABLE}/processes", {"kind": "full"})
    process = answer.json()["process"]
    assert (answer.status_code, process["trigger"], process["kinds"]) == (202, "demanded", ["full"])
    assert answer.headers["Location"] == f"/api/v1/processes/{process['id']}"
    again = api.post(f"{TABLE}/processes", {"kind": "full"}, 200)
    assert again["process"] is None
    assert process["id"] in again["reason"]
    assert api.post(f"{TABLE}/processes", {"kind": "huge"}, 422)["errors"][0]["field"] == "body.kind"
    [first] = api.get("/events", kind="process", key=process["id"], limit=1)["items"]
    assert (first["after"], first["by"]) == ("waiting", "tester")

    assert [task["number"] for task in api.get(f"/processes/{process['id']}/tasks")["items"]] == [0, 1, 2]
    tasks = api.get("/tasks", state="pending", group="default", limit=2)
    tasks["items"] += api.get("/tasks", state="pending", group="default", cursor=tasks["next"])["items"]
    assert sorted(task["number"] for task in tasks["items"]) == [0, 1, 2]
    assert api.get(f"/tasks/{process['id']}.1")["state"] == "pending"
    for unknown in ("x", f"{process['id']}.9", f"{process['id']}.{'9' * 30}", f"{process['id']}.²"):
        assert api.get(f"/tasks/{unknown}", 404)["code"] == "not-found"

    assert api.post(f"/processes/{process['id']}/cancel", {"why": "too dear"}, 202)["state"] == "cancelling"
    assert api.post(f"/processes/{process['id']}/cancel", None, 409)["code"] == "invalid-transition"
    ams.commits.commit(watched["uuid"])
    shown = api.get(f"/processes/{process['id']}")
    assert (shown["state"], shown["task_states"]) == ("cancelled", {"cancelled": 3})
    assert shown["commits"] == []
    retried = api.post(f"/processes/{process['id']}/retry", None, 202)["process"]
    assert (retried["kinds"], retried["id"] == process["id"]) == (["full"], False)
    assert [each["id"] for each in api.get("/processes", table="lake.db.orders")["items"]] == [retried["id"], process["id"]]
    assert [each["id"] for each in api.get("/processes", state="cancelled")["items"]] == [process["id"]]
    assert api.get("/processes", table="lake.db.other")["items"] == []


def test_a_pause(ams: Ams, watched: dict[str, Any], api: Api) -> None:
    paused = api.post(f"{TABLE}/pause", {"why": "a migration", "until": "2999-01-01T00:00:00+02:00"})
    assert (paused["state"], paused["paused_by"], paused["pause_reason"]) == ("paused", "tester", "a migration")
    assert paused["paused_until"] == "2998-12-31T22:00:00Z"
    [hindrance] = api.get(f"{TABLE}/explain")["service"]["hindrances"]
    assert (hindrance["code"], hindrance["until"]) == ("paused", "2998-12-31T22:00:00Z")
    ams.looks.look(watched["uuid"])
    assert api.get("/processes")["items"] == []
    again = api.post(f"{TABLE}/pause", {"why": "it takes longer"})
    assert (again["state"], again["pause_reason"], again["paused_until"]) == ("paused", "it takes longer", None)
    assert api.post(f"{TABLE}/resume")["state"] == "active"
    assert api.post(f"{TABLE}/resume", None, 409)["code"] == "invalid-transition"
    assert api.post(f"{TABLE}/pause", {"until": "2001-01-01T00:00:00Z"}, 400)["code"] == "usage"
    for wrong in ("2999-01-01T00:00:00", "9999-12-31T23:59:59-12:00"):
        assert api.post(f"{TABLE}/pause", {"until": wrong}, 422)["errors"][0]["field"] == "body.until"


def test_what_is_in_the_way(ams: Ams, watched: dict[str, Any], api: Api) -> None:
    explained = api.get(f"{TABLE}/explain")
    assert explained["service"]["hindrances"] == []
    assert explained["plan"]["partitions_needy"] == 3
    ams.looks.look(watched["uuid"])
    service = api.get(f"{TABLE}/explain", kind="full")["service"]
    assert [each["code"] for each in service["hindrances"]] == ["in-work", "no-optimizer"]
    assert service["processes"][0]["waits_for"] == ["3 of 3 tasks wait for an optimizer"]
    worker = api.register()
    assert [each["code"] for each in api.get(f"{TABLE}/explain")["service"]["hindrances"]] == ["in-work"]
    worker.poll(slots=2)
    [process] = api.get(f"{TABLE}/explain")["service"]["processes"]
    assert process["waits_for"] == [
        "1 of 3 tasks wait for an optimizer",
        "2 of 3 tasks wait for the end of their execution",
    ]


def test_evaluations_leave_threads_to_heartbeats(ams: Ams, watched: dict[str, Any], api: Api) -> None:
    worker = api.register()
    evaluations = cast("FastAPI", api.http.app).state.evaluations
    with ExitStack() as taken:
        for catalog in ("lake",) * 8 + ("other",) * 4:
            taken.enter_context(evaluations.place(catalog))
        for path in ("explain", "health"):
            assert api.get(f"{TABLE}/{path}", 503)["retryable"]
        assert api.post(f"{TABLE}/processes", {}, 503)["code"] == "unavailable"
        assert worker.api.post(f"/optimizers/{worker.id}/heartbeat", {})["stop"] == []
    assert api.get(f"{TABLE}/health")["health"]
