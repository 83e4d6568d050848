"""Names of the files that a commit writes. They tell the snapshot of the commit, so that the files of one that was killed
are found by listing a folder: manifests, manifest lists, metadata files, rebased deletes, statistics.

`snap-<snapshot>-<attempt>-<id>.avro`, `<id>-m<N>.avro`, `<version>-<id>.metadata.json`, `00000-0-<id>-<N>-deletes.parquet`
"""

from __future__ import annotations

import re
import secrets
from uuid import UUID

_HALF = 64
_ID = re.compile(r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4})-[0-9a-f]{4}-[0-9a-f]{12}")


def new_file_id(snapshot_id: int) -> UUID:
    """An id for names of files. The first half tells the snapshot. The second is random: two processes that commit the same
    change never write to one path, where a file of one may be in the table."""
    return UUID(int=snapshot_id << _HALF | secrets.randbits(_HALF))


def told_snapshot(path: str) -> int | None:
    """The snapshot that the name of a file tells, if a commit wrote it; other names with an id tell one that does not
    exist."""
    found = _ID.search(path.rpartition("/")[2])
    return int(found[1].replace("-", ""), 16) if found else None
