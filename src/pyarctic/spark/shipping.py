"""PyArctic's own code on executors: what runs there is the very version that the driver has.

    python -m pyarctic.spark.shipping FOLDER

makes the archive for `spark-submit --py-files`, and prints its path.
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
    """Send the package to the executors, once for each application. Libraries it needs must be in their Python already."""
    if is_remote(spark):
        remote: Any = spark
        if remote.session_id not in _shipped:
            remote.addArtifacts(str(archive()), pyfile=True)
            _shipped.add(remote.session_id)
        return
    context = spark.sparkContext
    # Under `spark-submit --py-files` the driver itself may run out of the archive that all executors get.
    submitted = {Path(path).name for path in str(context.getConf().get("spark.submit.pyFiles", "")).split(",")}
    if context.applicationId not in _shipped and not (is_archived() and archive().name in submitted):
        context.addPyFile(str(archive()))
    _shipped.add(context.applicationId)


@cache
def archive() -> Path:
    """An archive with the package: the one that this process runs out of, or a new one that lasts as long as the process,
    since executors come for it when they need it."""
    if is_archived():
        return _PACKAGE.parent
    # The name is of this process: Spark does not take two files of one name from different places.
    return packed(_own_folder(), f"pyarctic-{_own_folder().name}.zip")


@cache
def _own_folder() -> Path:
    import atexit

    folder = Path(tempfile.mkdtemp(prefix="arctic-ship-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def is_archived() -> bool:
    """Whether this process has the package out of an archive."""
    return _PACKAGE.parent.is_file()


def packed(folder: Path, name: str = "pyarctic.zip") -> Path:
    """The package as an archive for `--py-files`, `addPyFile` or `addArtifacts`."""
    made = folder / name
    if is_archived():
        return Path(shutil.copyfile(_PACKAGE.parent, made))
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as target:
        for file in sorted(_PACKAGE.rglob("*")):
            if file.is_file() and file.suffix in _SUFFIXES:
                target.write(file, Path(_PACKAGE.name) / file.relative_to(_PACKAGE))
    return made


def is_remote(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect, which has no context in this process."""
    return "connect" in type(spark).__module__


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        sys.stderr.write("usage: python -m pyarctic.spark.shipping FOLDER\n")
        return 2
    sys.stdout.write(f"{packed(Path(arguments[0]))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
