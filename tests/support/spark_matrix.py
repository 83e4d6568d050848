"""Run the tests of the data paths on each version of Spark that PyArctic supports: `python -m tests.support.spark_matrix`.

The version of the development environment comes first. The others are installed into `.cache/spark-VERSION` from their own
lock files, and found before it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_TESTS = "tests/spark/test_versions.py"
INSTALLED_VERSION, OTHER_VERSIONS = "4.1", ("4.0", "3.5")


def main() -> int:
    results = {INSTALLED_VERSION: _run_tests(INSTALLED_VERSION, None)}
    results |= {version: _run_tests(version, _installed(version)) for version in OTHER_VERSIONS}
    for version, code in results.items():
        print(f"Spark {version}: {'passed' if code == 0 else 'failed'}")  # noqa: T201
    return max(results.values())


def _installed(version: str) -> Path:
    """The folder of a version; it is filled unless it has what the lock file says."""
    lock = _ROOT / f"requirements-spark-{version}.lock"
    folder = _ROOT / ".cache" / f"spark-{version}"
    stamp = folder / ".lock"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(folder, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        subprocess.run([*pip, "--no-deps", "--target", str(folder), "--requirement", str(lock)], check=True)
        stamp.write_text(digest)
    return folder


def _run_tests(version: str, folder: Path | None) -> int:
    path = os.pathsep.join(filter(None, (str(folder) if folder else "", os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path, "SPARK_SERIES": version}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", _TESTS], cwd=_ROOT, env=environment, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
