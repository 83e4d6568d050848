"""The long form: every version on every catalog, with a summary."""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import product
from pathlib import Path

from tests.oracle import session
from tests.services import rest
from tests.stress import race
from tests.stress.catalogs import add_rest_to_spark


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long each race lasts")
    parser.add_argument("--only", default="", help="such as v3-rest")
    seconds, only = parser.parse_args().seconds, parser.parse_args().only
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
    return failed


if __name__ == "__main__":
    sys.exit(main())
