"""The long form: every version on every catalog, then optimizing beside statements of Spark, with a summary."""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import product
from pathlib import Path

from tests.oracle import session
from tests.services import rest
from tests.stress import live_writers, race
from tests.stress.catalogs import add_rest_to_spark


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long each race lasts")
    parser.add_argument(
        "--statements", type=int, default=100, help="how many statements optimizing must not disturb, in each mode"
    )
    parser.add_argument("--only", default="", help="such as v3-rest, or live-writers")
    options = parser.parse_args()
    seconds, only = options.seconds, options.only
    failed = 0
    with tempfile.TemporaryDirectory(prefix="stress-") as name:
        folder = Path(name)
        for part in ("oracle", "rest"):
            (folder / part).mkdir()
        with session.start(folder / "oracle") as oracle, rest.start(folder / "rest") as server:
            catalogs = {
                "sqlite": (session.NAME, dict(oracle.catalog.properties)),
                "rest": add_rest_to_spark(oracle.spark, server),
            }
            for version, (kind, (catalog, properties)) in product((2, 3), catalogs.items()):
                title = f"v{version}-{kind}"
                if only and only != title:
                    continue
                (folder / title).mkdir()
                result = race.run(title, folder / title, oracle.spark, catalog, properties, version=version, seconds=seconds)
                sys.stdout.write(f"{result}\n")
                sys.stdout.flush()
                failed += bool(result.faults)
            if only in ("", "live-writers"):
                failed += _live_writers(folder, oracle, options.statements)
    return failed


def _live_writers(folder: Path, oracle: session.Oracle, statements: int) -> int:
    """At most one statement in a hundred may fail because of optimizing."""
    results = []
    for version, mode in ((2, "copy-on-write"), (2, "merge-on-read"), (3, "merge-on-read")):
        title = f"v{version}-{mode}"
        (folder / f"live_writers-{title}").mkdir()
        results.append(
            live_writers.run(
                title,
                folder / f"live_writers-{title}",
                oracle.spark,
                session.NAME,
                oracle.catalog.properties,
                version=version,
                mode=mode,
                statements=statements,
            )
        )
        sys.stdout.write(f"{results[-1]}\n")
        sys.stdout.flush()
    failures = sum(len(result.failed) for result in results) / sum(result.statements for result in results)
    sys.stdout.write(f"{failures:.2%} of the statements failed\n")
    unwell = [result for result in results if result.wrong_rows or result.worst_other < 90]
    return int(failures > 0.01) + len(unwell)


if __name__ == "__main__":
    sys.exit(main())
