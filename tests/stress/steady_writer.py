"""A writer without pause, as a process of its own: `python -m tests.stress.steady_writer FOLDER NUMBER SECONDS`.

It writes one row after the other until the time is over, and prints how many it wrote. An error ends it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa

import pyarctic

TABLE = "lake.db.t"
SCHEMA = pa.schema([("id", pa.int64())])


def open_catalog(folder: Path) -> None:
    pyarctic.catalog("lake", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())


def _main(folder: Path, number: int, seconds: float) -> None:
    open_catalog(folder)
    table = pyarctic.table(TABLE)
    mode = "upsert" if table.kind == "keyed" else "insert"
    (folder / f"ready-{number}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    end, written = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        table.write(pa.table([[number * 1_000_000 + written]], schema=SCHEMA), mode)  # type: ignore[arg-type]
        written += 1
    sys.stdout.write(f"{written}\n")


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
