"""AWS Glue as moto plays it, in a process of its own, with tables in a local folder.

Moto forgets one thing that commits rest on: Glue refuses to update a table when the caller names a version that is not
the current one. `python -m tests.services.glue` is moto's server with that refusal.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.services.s3 import record_requests
from tests.support.processes import HOST, running, wait_for

if TYPE_CHECKING:
    from moto.core.responses import ActionResult
    from moto.glue.responses import GlueResponse

_ROOT = Path(__file__).parents[2]


@contextmanager
def start(folder: Path) -> Iterator[dict[str, str]]:
    """Start an empty Glue, give the properties of a PyIceberg catalog on it, and end it."""
    log, told = folder / "glue.log", folder / "glue-port"
    command = [sys.executable, "-m", "tests.services.glue"]
    with (
        told.open("wb") as output,
        running(command, log, stdin=subprocess.PIPE, stdout=output, cwd=_ROOT) as process,
    ):
        wait_for(lambda: told.read_text().endswith("\n"), log, process)
        yield {
            "type": "glue",
            "warehouse": (folder / "glue-warehouse").as_uri(),
            "glue.endpoint": f"http://{HOST}:{told.read_text().strip()}",
            "glue.region": "eu-north-1",
            "glue.access-key-id": "any",
            "glue.secret-access-key": "any",
        }


def serve() -> None:
    """Serve until the input ends, as it does when the test process ends."""
    from moto.glue.responses import GlueResponse
    from moto.server import ThreadedMotoServer

    _refuse_stale_updates(GlueResponse)
    server = ThreadedMotoServer(HOST, 0, verbose=False)
    server.start()
    assert server._server is not None
    server._server.app = record_requests(server._server.app)
    sys.stdout.write(f"{server.get_host_and_port()[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


def _refuse_stale_updates(responses: type[GlueResponse]) -> None:
    from moto.glue.exceptions import GlueClientError

    update, one_at_a_time = responses.update_table, threading.Lock()

    def update_table(self: GlueResponse) -> ActionResult:
        wanted = self.parameters.get("VersionId")
        with one_at_a_time:
            name = self.parameters["TableInput"]["Name"]
            table = self.glue_backend.get_table(self.parameters["DatabaseName"], name)
            if wanted is not None and wanted != table.as_dict()["VersionId"]:
                raise GlueClientError("ConcurrentModificationException", f"{name} is no longer at version {wanted}")
            return update(self)

    responses.update_table = update_table  # type: ignore[method-assign]


if __name__ == "__main__":
    serve()
