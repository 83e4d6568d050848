"""SQL catalogs in a SQLite file: what is wrong with the file, told before SQLAlchemy or SQLite tells it less clearly."""

from __future__ import annotations

import re
from pathlib import Path

from pyarctic.errors import ArcticError, ConfigError, Unavailable

_URI = re.compile(r"sqlite(?:\+\w+)?:///(?P<path>[^?]+)")
_DRIVER = re.compile(r"^\((?:\w+\.)*(?P<error>\w+)\)\s*")
_CAUSES = {
    "unable to open database file": "Check the path in `uri`, and that you may read and write the file and its folder.",
    "readonly database": "Check that you may write the file and its folder.",
    "database is locked": "Another process is writing to the catalog. Try again in a moment.",
    "file is not a database": "Correct `uri`: the file is not one of SQLite.",
    "malformed": "The file is damaged. Restore it from a backup.",
    "disk is full": "Free some space where the file is, and try again.",
    "disk I/O error": "Check the disk, its free space and permissions, and try again.",
}


def check_sqlite_file(catalog: str, uri: str) -> None:
    """Raise a ConfigError if the catalog is to be in a SQLite file that cannot be: its folder is missing or a file."""
    match = _URI.fullmatch(uri)
    if match is None or match["path"].startswith((":", "file:")):  # in memory, or a URI of SQLite's own
        return
    path = Path(match["path"])
    folder = path.parent
    if path.is_dir():
        reason, hint = f"{path} is a folder", f"Name a file in it: sqlite:///{path}/catalog.db."
    elif folder.is_dir():
        return
    elif folder.exists():
        reason, hint = f"{folder} is a file, not a folder", "Correct `uri`."
    else:
        where = "" if folder.is_absolute() else f", in {Path.cwd()}"
        reason = f"the folder {folder} does not exist{where}"
        hint = f"Create it with `mkdir -p {folder}`, or correct `uri`."
    raise ConfigError(f"catalog {catalog!r} cannot be opened: {reason}", hint=hint, catalog=catalog, file=str(path))


def explain_sqlite_error(catalog: str, cause: Exception) -> ArcticError | None:
    """The error for an exception of SQLite; None if it is another database's."""
    original = getattr(cause, "orig", None)
    if original is None or type(original).__module__ != "sqlite3":
        return None
    text = _DRIVER.sub("", str(cause).splitlines()[0])
    hint = next((hint for part, hint in _CAUSES.items() if part in text), "Check the file that `uri` names.")
    return Unavailable(f"catalog {catalog!r}: SQLite says: {text}", hint=hint, catalog=catalog)
