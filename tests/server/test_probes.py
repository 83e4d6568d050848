"""Whether the service is up, and ready."""

from __future__ import annotations

import pytest

from pyarctic.ams import Ams
from tests.server.requests import Api


def test_probes_need_no_token(api: Api, ams: Ams, monkeypatch: pytest.MonkeyPatch) -> None:
    assert api.http.get("/healthz").json() == {"status": "up"}
    assert api.http.get("/readyz").json() == {
        "ready": False,
        "role": "leader",
        "leader": None,
        "problems": ["the loops have not been started"],
        "crews": [],
    }
    ams.start()
    try:
        answer = api.http.get("/readyz")
        assert (answer.status_code, answer.json()["ready"], answer.json()["problems"]) == (200, True, [])
        silent = next(loop for loop in ams.loops if loop.name == "commits")
        monkeypatch.setattr(silent, "_seconds", -100.0)
        answer = api.http.get("/readyz")
        assert (answer.status_code, answer.json()["problems"]) == (503, ["the loop commits is silent"])
    finally:
        ams.stop()

    def broken() -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(ams.core.store, "read", broken)
    assert "the database does not answer" in api.http.get("/readyz").json()["problems"]
