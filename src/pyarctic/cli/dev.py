"""`arctic dev`: a service, an optimizer, and tables that are written, to see how they work together."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyarctic._environment import environment
from pyarctic.cli.ending import at_signals
from pyarctic.cli.init import FILE_NAME, TEXT, create_files
from pyarctic.cli.session import JsonOption, note
from pyarctic.cli.view.output import emit_lines
from pyarctic.errors import ArcticError, UsageError
from pyarctic.units import format_quantity, parse_duration

if TYPE_CHECKING:
    from pyarctic.cli.sample_tables import SampleWriter
    from pyarctic.client import Client
    from pyarctic.server import RunningService

SERVICE_TEXT = """
# Everything happens sooner than in production.
service:
  refresh-tables: {interval: 5s, min-interval: 5s, max-interval: 30s, discover-interval: 5s}
  planning: {min-plan-interval: 5s}
  retry: {scan: 1s, interval: 5s}
  commit: {interval: 0s}

# Only programs on this machine reach it.
http: {auth: none}
"""
_WORKERS = 2
_REFRESH_SECONDS = 0.5
_SHOWN_KINDS = ("table", "process", "commit", "optimizer")
Show = Callable[["Client", list[dict[str, Any]]], None]


def dev(
    keep: Annotated[
        str | None,
        typer.Option("--keep", metavar="FOLDER", help="Keep everything there; call it again to go on with it."),
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="End after this time (default: at Ctrl-C).")
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")] = 1630,
    as_json: JsonOption = False,
) -> None:
    """Run a service and an optimizer on sample tables.

    \b
    Examples:
      arctic dev
      arctic dev --keep lake --for 5min

    Everything is in a temporary folder that is removed at the end. The service accepts requests without a token, from this
    machine only. With --json each event is a line of JSON on stdout.
    """
    seconds = _seconds(duration)
    ended = threading.Event()
    with at_signals(ended.set), ExitStack() as stack:
        folder = stack.enter_context(_folder(keep))
        writers = _start(stack, folder, port)
        with _shown(as_json=as_json) as show:
            _watch(show, ended, seconds)
        for writer in writers:
            writer.stop()
        note(f"{format_quantity(sum(writer.commits for writer in writers), 'commit')} of the sample writers; ending")


def _seconds(duration: str | None) -> float | None:
    if duration is None:
        return None
    try:
        return parse_duration(duration).total_seconds()
    except ValueError:
        raise UsageError(f"{duration!r} is not a duration", hint="Write it as 30s or 5min.") from None


@contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    """A folder with a configuration, which is used from now on."""
    from pyarctic.config import use

    with ExitStack() as stack:
        if keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="arctic-dev-", ignore_cleanup_errors=True)))
        else:
            folder = Path(keep).absolute()
        if not (folder / FILE_NAME).exists():
            from pyarctic.cli.sample_tables import CATALOG

            create_files(folder, folder / FILE_NAME, TEXT.format(catalog=CATALOG) + SERVICE_TEXT)
        use(folder / FILE_NAME)
        yield folder


def _start(stack: ExitStack, folder: Path, port: int) -> list[SampleWriter]:
    """Start everything. It ends with the stack, in the reverse order."""
    from pyarctic.cli.sample_tables import SAMPLES, SampleWriter
    from pyarctic.config import load
    from pyarctic.logs import write_logs
    from pyarctic.server import serve

    log = stack.enter_context((folder / "arctic.log").open("a", encoding="utf-8"))
    write_logs("text", "info", log)
    stack.callback(write_logs, "text", "error")
    writers = [SampleWriter(sample) for sample in SAMPLES]
    running = stack.enter_context(serve(load(), host="127.0.0.1", port=port, folder=folder / "state"))
    running.server.start()
    stack.callback(running.server.stop)
    stack.enter_context(environment({"ARCTIC_URL": running.url}))  # writers report their commits
    _start_optimizer(stack, running)
    for writer in writers:
        writer.start()
        stack.callback(writer.stop)
    note(f"service at {running.url}, log in {folder}/arctic.log; in another terminal:")
    note(f"  export ARCTIC_URL={running.url} ARCTIC_CONFIG={folder / FILE_NAME}", style="bold")
    return writers


def _start_optimizer(stack: ExitStack, running: RunningService) -> None:
    from pyarctic.client import Address, OptimizerClient
    from pyarctic.optimizer import Optimizer
    from pyarctic.optimizing.execute import open_engine

    engine = open_engine("local", _WORKERS)
    optimizer = Optimizer(OptimizerClient(Address.find(running.url)), engine, heartbeat_seconds=2)
    thread = threading.Thread(target=optimizer.run, name="arctic-optimizer", daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(optimizer.stop)


@contextmanager
def _shown(*, as_json: bool) -> Iterator[Show]:
    """What shows events: lines of JSON, or a view for people."""
    if as_json:
        yield lambda _, events: emit_lines(events)
        return
    from pyarctic.cli.view.live_page import live_view

    with live_view("Sample tables; Ctrl-C ends") as view:
        yield view.show


def _watch(show: Show, ended: threading.Event, seconds: float | None) -> None:
    """Show what happens until the end."""
    from pyarctic.client import connect

    deadline = None if seconds is None else time.monotonic() + seconds
    with connect() as client:
        events: SimpleQueue[dict[str, Any]] = SimpleQueue()
        threading.Thread(target=_collect, args=(events,), name="arctic-events", daemon=True).start()
        while not ended.wait(_REFRESH_SECONDS) and (deadline is None or time.monotonic() < deadline):
            show(client, list(_taken(events)))


def _collect(events: SimpleQueue[dict[str, Any]]) -> None:
    """Collect what happens from now on, until the service ends."""
    from pyarctic.client import connect

    with suppress(ArcticError), connect() as client:
        for event in client.follow(kind=_SHOWN_KINDS):
            events.put(event)


def _taken(events: SimpleQueue[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    try:
        while True:
            yield events.get_nowait()
    except Empty:
        return
