"""What can be wrong with keyed tables, beside what can be wrong with any Iceberg table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pyarctic.iceberg.check import KINDS, Kind

_ROLL_BACK = "Roll the store back to the snapshot before the commit that added them."
_WRITE_AGAIN = "Reads and merges overlook the rows. Delete the keys and write the rows again (upsert)."

KEYED_KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "missing-change-store": Kind(
            severity="damage",
            title="the change store is missing or cannot be loaded",
            hint="Register its last metadata file again. Without it, changes that are not merged yet are lost.",
        ),
        "missing-key-columns": Kind(
            severity="damage",
            title="the primary key names columns that the table does not have",
            hint="Correct the table property mixed-format.primary-key-fields, or add the columns again.",
        ),
        "different-specs": Kind(
            severity="damage",
            title="the stores are partitioned differently",
            hint="The partition spec of a store was changed directly. Change it back.",
        ),
        "different-schemas": Kind(
            severity="damage",
            title="the stores have different columns",
            hint="One of them was changed directly. Bring the change store to the schema of the base store.",
        ),
        "schema-behind": Kind(
            severity="note",
            title="the change store has an older schema",
            hint="A schema change was interrupted. The next write to the table completes it.",
        ),
        "merged-sequences-lost": Kind(
            severity="damage",
            title="it is not known which changes are merged",
            hint="Register an older metadata file of the base store, or roll it back to a snapshot that tells.",
        ),
        "merged-too-far": Kind(
            severity="damage",
            title="changes count as merged that were never written",
            hint="Changes to come would be ignored. Roll the base store back to the snapshot before its last merge.",
        ),
        "unknown-partition": Kind(
            severity="damage",
            title="merged sequences are stored for partitions that the table cannot have",
            hint="They have no effect. Roll the base store back to the snapshot before the commit that wrote them.",
        ),
        "forbidden-deletes": Kind(
            severity="damage", title="a store has delete files that its format does not allow", hint=_ROLL_BACK
        ),
        "null-keys": Kind(severity="damage", title="rows have no key", hint=_WRITE_AGAIN),
        "wrong-node": Kind(severity="damage", title="rows are in files of other tree nodes", hint=_WRITE_AGAIN),
        "wrong-offsets": Kind(severity="damage", title="changes have impossible offsets", hint=_ROLL_BACK),
        "duplicate-keys": Kind(
            severity="damage",
            title="keys have several rows in the base store",
            hint="Reads return all of them. Find the engine that wrote them: it must not write files of the format itself.",
            repair="delete all rows of a key but the one that was committed last",
        ),
        "replaced-rows": Kind(
            severity="note",
            title="rows of the base store are replaced by rows that other engines appended",
            hint="Merged reads return the last row of a key; only reads of the base store itself see the others. "
            "`optimize` removes them as well.",
            repair="delete them by a commit",
        ),
        "unknown-order": Kind(
            severity="damage",
            title="which row of a key is the latest is not known",
            hint="Another engine has rewritten files of Base in which keys had several rows, so the table cannot be read. "
            "Delete the keys with an Iceberg engine that sees Base, and write them once more (upsert); or roll Base back to "
            "before the rewrite, optimize the table, and repeat it.",
        ),
        "ambiguous-changes": Kind(
            severity="damage",
            title="the merged rows cannot be read",
            hint="If a key was inserted twice in one transaction, write it once more (upsert).",
        ),
        "nodes-not-checked": Kind(
            severity="note",
            title="tree nodes were not checked",
            hint="A key column was widened: rows written before have another hash, and readers know that.",
        ),
    }
)
"""The kinds of problems of keyed tables, by their code."""

ALL_KINDS: Mapping[str, Kind] = MappingProxyType({**KINDS, **KEYED_KINDS})
"""All kinds of problems, by their code."""
