"""Delete files: which data files they apply to, and which rows they delete.

`match_deletes` pairs the data files of a file list with their deletes. `PositionDeletes` reads position delete files and
deletion vectors, `EqualityDeletes` indexes equality deletes by key; `KeyIndex` is that index for keys with any version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.iceberg.delete.delete_files import EqualityDeletes, KeyColumns, PositionDeletes, check_not_encrypted
    from pyarctic.iceberg.delete.deletion_vectors import Positions
    from pyarctic.iceberg.delete.key_index import Codes, KeyIndex, Mask, encode_keys, hash_rows, is_exact_code
    from pyarctic.iceberg.delete.matching import (
        DELETE_SCOPES,
        EQUALITY,
        FILE_SCOPED,
        GLOBAL_EQUALITY,
        PARTITION_SCOPED,
        DeleteMatches,
        match_deletes,
    )
    from pyarctic.iceberg.manifest.partition_keys import PARTITION_KEY

__all__ = [
    "DELETE_SCOPES",
    "EQUALITY",
    "FILE_SCOPED",
    "GLOBAL_EQUALITY",
    "PARTITION_KEY",
    "PARTITION_SCOPED",
    "Codes",
    "DeleteMatches",
    "EqualityDeletes",
    "KeyColumns",
    "KeyIndex",
    "Mask",
    "PositionDeletes",
    "Positions",
    "check_not_encrypted",
    "encode_keys",
    "hash_rows",
    "is_exact_code",
    "match_deletes",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "delete_files": ("EqualityDeletes", "KeyColumns", "PositionDeletes", "check_not_encrypted"),
        "deletion_vectors": ("Positions",),
        "key_index": ("Codes", "KeyIndex", "Mask", "encode_keys", "hash_rows", "is_exact_code"),
        "matching": (
            "DeleteMatches",
            "EQUALITY",
            "FILE_SCOPED",
            "GLOBAL_EQUALITY",
            "DELETE_SCOPES",
            "PARTITION_KEY",
            "PARTITION_SCOPED",
            "match_deletes",
        ),
    },
)
