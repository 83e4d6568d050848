"""Measure CPU seconds and memory of this process, and run a piece of work in a separate process."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.figures import console

Outcome = dict[str, Any]


def measure(run: Callable[[], Any], repeat: int = 1) -> Outcome:
    """CPU seconds of the best of several runs, and the result, so that both sides can be compared."""
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        result = run()
        best = min(best, time.process_time() - start)
    return {"cpu_seconds": best, "result": result}


def peak_mb() -> float:
    """The peak memory of this process."""
    # Not getrusage: on Linux its maximum is inherited from the parent process.
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_work(work: str, argument: object) -> Outcome:
    """Run one piece of work in a new process."""
    with console.status(f"measuring {work}"):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.work", work, str(argument)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    outcome: Outcome = json.loads(done.stdout)
    return outcome


def run_in_turns(ours: str, theirs: str, argument: object, other_argument: object = None) -> tuple[Outcome, Outcome]:
    """Run both three times in turns and return the best of each: on a shared machine single runs are too noisy."""
    runs = [(run_work(ours, argument), run_work(theirs, other_argument or argument)) for _ in range(3)]
    our_best, their_best = (min(side, key=lambda outcome: outcome["cpu_seconds"]) for side in zip(*runs, strict=True))
    return our_best, their_best


def format_both(ours: Outcome, theirs: Outcome) -> str:
    return (
        f"{ours['cpu_seconds']:.2f} s to {theirs['cpu_seconds']:.2f} s CPU; "
        f"{ours['peak_mb']:,.0f} MB to {theirs['peak_mb']:,.0f} MB"
    )
