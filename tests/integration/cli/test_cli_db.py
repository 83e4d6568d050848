"""`arctic db`: what administrators do with the database of the service, on every kind there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyarctic.ams.rows import PlanRow
from pyarctic.ams.store import KEYS, SqlStore
from tests.support.ams_rows import claim, commit, move, process, task
from tests.support.cli_library import Arctic, Ran
from tests.support.stores import DATABASES, DatabaseUrls, fresh_database


def filled(url: str) -> None:
    store = SqlStore.open(url)
    with store.begin() as transaction:
        transaction.insert(process(), commit(), claim("ünï/" * 200), PlanRow(process_id="p1", data=bytes(range(256)) * 4096))
        transaction.insert(*(task(number) for number in range(1200)))
        transaction.record([move(str(number)) for number in range(700)])
    store.hold_lease("somebody", "http://10.0.0.7:1630", 60)
    store.close()


def content(url: str) -> dict[str, list[object]]:
    store = SqlStore.open(url)
    with store.read() as view:
        rows = {kind.__name__: list(view.find(kind)) for kind in KEYS}
    store.close()
    return rows


def refused(arctic: Arctic, code: int, *arguments: str) -> Ran:
    ran = arctic(*arguments)
    assert ran.code == code, ran
    return ran


@pytest.mark.parametrize("kind", DATABASES)
def test_the_status_of_a_database(arctic: Arctic, kind: str, database_urls: DatabaseUrls) -> None:
    with fresh_database(kind, database_urls) as url:
        filled(url)
        ran = arctic("db", "status", "--database", url, "--json")
        shown = ran.json
        assert shown["server"].split()[0] == kind
        assert (shown["revision"], shown["newest_revision"]) == ("0002", "0002")
        assert (shown["rows"]["tasks"], shown["rows"]["events"]) == (1200, 700)
        assert (shown["leader"]["url"], shown["leader"]["number"]) == ("http://10.0.0.7:1630", 1)
        text = arctic("db", "status", "--database", url).out
        assert "http://10.0.0.7:1630" in text


@pytest.mark.parametrize("kind", DATABASES)
def test_a_backup_is_restored_into_every_kind(
    arctic: Arctic, kind: str, database_urls: DatabaseUrls, tmp_path: Path
) -> None:
    file = tmp_path / "backup.db"
    with fresh_database(kind, database_urls) as url:
        filled(url)
        before = content(url)
        made = arctic("db", "backup", str(file), "--database", url, "--json").json
        assert made == {"file": str(file), "rows": 1200 + 700 + 4}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".backup")] == []
    for other in DATABASES:
        with fresh_database(other, database_urls) as url:
            restored = arctic("db", "restore", str(file), "--database", url, "--json").json
            assert restored["rows"] == made["rows"]
            assert content(url) == before
            store = SqlStore.open(url)
            assert store.hold_lease("another", "u", 60).number == 2, "nobody takes itself for the leader of the copy"
            with store.begin() as transaction:
                transaction.record([move()])
            assert [event.number for event in store.events_after(699)] == [700, 701]
            store.close()
            again = refused(arctic, 4, "db", "restore", str(file), "--database", url)
            assert "empty database" in again.err


def test_the_default_is_the_database_of_the_configuration(arctic: Arctic, tmp_path: Path) -> None:
    missing = refused(arctic, 2, "db", "status", "--state", str(tmp_path / "state"))
    assert "does not exist" in missing.err
    (tmp_path / "state").mkdir()
    assert "arctic serve" in refused(arctic, 3, "db", "status", "--state", str(tmp_path / "state")).err
    assert list((tmp_path / "state").iterdir()) == [], "nothing is created"
    arctic("db", "upgrade", "--state", str(tmp_path / "state"), "--yes")
    shown = arctic("db", "status", "--state", str(tmp_path / "state"), "--json").json
    assert shown["database"] == str(tmp_path / "state" / "arctic.db")
    assert shown["leader"] is None


def test_an_old_database_is_told_and_upgraded(arctic: Arctic, tmp_path: Path) -> None:
    import sqlite3

    golden = Path(__file__).parents[2] / "data" / "ams" / "0001.sql"
    file = tmp_path / "old.db"
    connection = sqlite3.connect(file)
    connection.executescript(golden.read_text(encoding="utf-8"))
    connection.close()
    url = f"sqlite:///{file}"
    told = refused(arctic, 1, "db", "status", "--database", url)
    assert "0001; the newest is 0002" in told.out
    assert "upgrade" in told.err
    assert "arctic db upgrade" in refused(arctic, 4, "db", "backup", str(tmp_path / "b.db"), "--database", url).err
    assert not (tmp_path / "b.db").exists()
    arctic("db", "upgrade", "--database", url, "--yes")
    arctic("db", "status", "--database", url)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_passwords_are_not_shown(arctic: Arctic, kind: str) -> None:
    ran = refused(arctic, 3, "db", "status", "--database", f"{kind}://somebody:s3cret@127.0.0.1:9/arctic")
    assert "s3cret" not in ran.out + ran.err


def test_a_backup_replaces_no_file(arctic: Arctic, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    SqlStore.open(url).close()
    (tmp_path / "there.db").write_text("mine")
    assert "there already" in refused(arctic, 2, "db", "backup", str(tmp_path / "there.db"), "--database", url).err
    assert (tmp_path / "there.db").read_text() == "mine"
    assert "no file" in refused(arctic, 2, "db", "restore", str(tmp_path / "none.db"), "--database", url).err


def test_a_look_creates_no_file(arctic: Arctic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "arctic serve" in refused(arctic, 3, "db", "status", "--database", "sqlite:///none.db").err
    assert not (tmp_path / "none.db").exists()
