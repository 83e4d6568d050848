"""PyArctic's own code on executors: what runs there is the very version that the driver has."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE = Path(__file__).parents[1]
_shipped: set[int] = set()


def ship(spark: SparkSession) -> None:
    """Send the package to the session's executors, once. Libraries it needs must be in their Python already."""
    if id(spark) in _shipped:
        return
    with tempfile.TemporaryDirectory(prefix="arctic-ship-") as folder:
        archive = packed(Path(folder))
        if is_remote(spark):
            spark.addArtifacts(str(archive), pyfile=True)
        else:
            spark.sparkContext.addPyFile(str(archive))
    _shipped.add(id(spark))


def packed(folder: Path) -> Path:
    """The package as an archive for `--py-files`, `addPyFile` or `addArtifacts`."""
    archive = folder / "pyarctic.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for file in sorted(_PACKAGE.rglob("*")):
            if file.is_file() and file.suffix in (".py", ".typed", ".properties"):
                target.write(file, Path("pyarctic") / file.relative_to(_PACKAGE))
    return archive


def is_remote(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect, which has no context in this process."""
    return "connect" in type(spark).__module__
