"""Ship PyArctic's code to executors, so that they run the version of the driver.

    python -m pyarctic.spark.shipping FOLDER

builds the archive for `spark-submit --py-files` and prints its path.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE = Path(__file__).parents[1]
_SUFFIXES = (".py", ".typed", ".properties")
_shipped: set[str] = set()


def ship(spark: SparkSession) -> None:
    """Send the package to the executors, once per application. Its dependencies must be installed there already."""
    if is_remote(spark):
        remote: Any = spark
        if remote.session_id not in _shipped:
            remote.addArtifacts(str(archive()), pyfile=True)
            _shipped.add(remote.session_id)
        return
    context = spark.sparkContext
    # Under `spark-submit --py-files` the driver itself may run from the archive that all executors get.
    submitted = {Path(path).name for path in str(context.getConf().get("spark.submit.pyFiles", "")).split(",")}
    if context.applicationId not in _shipped and not (is_archived() and archive().name in submitted):
        context.addPyFile(str(archive()))
    _shipped.add(context.applicationId)


@cache
def archive() -> Path:
    """The archive with the package: the one that this process runs from, or a new one that is kept until the process ends,
    because executors may fetch it at any time."""
    if is_archived():
        return _PACKAGE.parent
    # A name unique to this process: Spark does not accept two files of the same name from different folders.
    return build_archive(_archive_folder(), f"pyarctic-{_archive_folder().name}.zip")


@cache
def _archive_folder() -> Path:
    import atexit

    folder = Path(tempfile.mkdtemp(prefix="arctic-ship-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def is_archived() -> bool:
    """Whether this process imported the package from an archive."""
    return _PACKAGE.parent.is_file()


def build_archive(folder: Path, name: str = "pyarctic.zip") -> Path:
    """Build the archive of the package for `--py-files`, `addPyFile` or `addArtifacts`."""
    path = folder / name
    if is_archived():
        return Path(shutil.copyfile(_PACKAGE.parent, path))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for file in sorted(_PACKAGE.rglob("*")):
            if file.is_file() and file.suffix in _SUFFIXES:
                target.write(file, Path(_PACKAGE.name) / file.relative_to(_PACKAGE))
    return path


def is_remote(spark: SparkSession) -> bool:
    """Whether this is a Spark Connect session, which has no Spark context in this process."""
    return "connect" in type(spark).__module__


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        sys.stderr.write("usage: python -m pyarctic.spark.shipping FOLDER\n")
        return 2
    sys.stdout.write(f"{build_archive(Path(arguments[0]))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
