"""Checking tables of all kinds, and repairing what can be repaired without losing a row.

`check_table` gives a `CheckReport`. Keyed tables are checked as two Iceberg tables that must fit each other: keys are
unique, every row is in a file of its node, and merged sequences agree with the change store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.tables.check.kinds import ALL_KINDS
    from pyarctic.tables.check.report import CheckReport, Finding, Repair
    from pyarctic.tables.check.table_check import TableCheck, check_table

__all__ = ["ALL_KINDS", "CheckReport", "Finding", "Repair", "TableCheck", "check_table"]

__getattr__ = lazy_exports(
    __name__,
    {
        "kinds": ("ALL_KINDS",),
        "report": ("CheckReport", "Finding", "Repair"),
        "table_check": ("TableCheck", "check_table"),
    },
)
