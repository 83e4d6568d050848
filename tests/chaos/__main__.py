"""The long form: `python -m tests.chaos --seconds 900 --faults 1000 --seed 7`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom

from tests.chaos.run import Run, Server, variables_of_no_one
from tests.services import mariadb, postgres


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=900, help="how long there are faults")
    parser.add_argument("--faults", type=int, default=1000, help="how many there are at least; for twice the time at most")
    parser.add_argument("--optimizers", type=int, default=2)
    parser.add_argument("--seed", default=None, help="that of an earlier run; by default a new one")
    parser.add_argument("--database", choices=["sqlite", "postgresql", "mariadb"], default="sqlite")
    parser.add_argument("--keep", action="store_true", help="keep the folder also if nothing is wrong")
    options = parser.parse_args()
    seed = options.seed or str(SystemRandom().randrange(10**9))
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    again = f"python -m tests.chaos --seconds {options.seconds:g} --faults {options.faults} --seed {seed}"
    again += f" --database {options.database}"
    sys.stdout.write(f"seed {seed}, in {folder}\n")
    sys.stdout.flush()
    variables_of_no_one()
    with ExitStack() as stack:
        server: Server | None = None
        if options.database == "postgresql":
            server = stack.enter_context(postgres.start(folder))
        elif options.database == "mariadb":
            server = stack.enter_context(mariadb.start(folder))
        run = Run(folder, seed, seconds=options.seconds, faults=options.faults, optimizers=options.optimizers, server=server)
        result = run.run()
    sys.stdout.write(f"{result}\n")
    if result.failures:
        sys.stdout.write(f"everything is kept in {folder}; once more: {again}\n")
        return 1
    if not options.keep:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
