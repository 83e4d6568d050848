"""The check of a table: one or two Iceberg tables, how they fit each other, and repairs."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from pyarctic.config import parse_table_name
from pyarctic.errors import Damaged, about
from pyarctic.iceberg.catalog import load_table
from pyarctic.iceberg.check import CheckedStore, CheckListener, Problem, StoreCheck, join_problems, problem_frame
from pyarctic.tables.check.keyed_rows import Duplicates, KeyedRowCheck
from pyarctic.tables.check.keys import KeyInspector
from pyarctic.tables.check.kinds import ALL_KINDS
from pyarctic.tables.check.repair import is_repairable, repair
from pyarctic.tables.check.report import CheckReport, Finding, Repair, make_findings
from pyarctic.tables.check.stores import check_contents, check_stores
from pyarctic.tables.format.file_names import Store
from pyarctic.tables.keyed_table import KeyedTable
from pyarctic.tables.names import open_table
from pyarctic.tables.table import Table


class _Silent:
    """Ignores progress."""

    def started(self, what: str, files: int) -> None: ...
    def advanced(self, files: int) -> None: ...


def check_table(
    name: str,
    *,
    rows: bool = True,
    all_snapshots: bool = False,
    repair: bool = False,
    dry_run: bool = False,
    listener: CheckListener | None = None,
) -> CheckReport:
    """Check a table by its name, and repair it if wanted; with `dry_run` the report says what would be repaired."""
    check = TableCheck.of_name(name, rows=rows, all_snapshots=all_snapshots, listener=listener)
    report = check.run()
    if not repair:
        return replace(report, repairs=())
    return report if dry_run else check.repair(report)


class TableCheck:
    """One check of a table: `run`, then `repair` with the report of it."""

    def __init__(
        self, table: Table, *, rows: bool = True, all_snapshots: bool = False, listener: CheckListener | None = None
    ) -> None:
        self._table = table
        self._rows = rows
        self._all_snapshots = all_snapshots
        self._listener = listener or _Silent()
        self._store_problems: list[Problem] = []
        self._duplicates: Duplicates = {}

    @classmethod
    def of_name(
        cls, name: str, *, rows: bool = True, all_snapshots: bool = False, listener: CheckListener | None = None
    ) -> TableCheck:
        """The check of a table by its name. A keyed table without its change store is checked as far as it exists."""
        try:
            return cls(open_table(name), rows=rows, all_snapshots=all_snapshots, listener=listener)
        except Damaged as error:
            parsed = parse_table_name(name)
            base = Table(parsed, load_table(parsed))  # raises the same error if its own metadata is damaged
            check = cls(base, rows=rows, all_snapshots=all_snapshots, listener=listener)
            check._store_problems.append(Problem("missing-change-store", error.message))
            return check

    def run(self) -> CheckReport:
        """Check everything. The report also has the repairs that are possible."""
        with about(table=self._table.name):
            if isinstance(self._table, KeyedTable):
                problems, files = self._check_keyed(self._table)
            else:
                checked = self._check_store(self._table, None)
                problems = {None: join_problems([checked.problems, problem_frame(self._store_problems)])}
                files = checked.files_checked
            findings = tuple(
                replace(finding, is_repairable=is_repairable(finding, self._store_of(finding)))
                for finding in make_findings(problems)
            )
            repairs = [self._planned(finding) for finding in findings if finding.is_repairable]
        return CheckReport(
            table=self._table.name,
            kind=self._table.kind,
            rows_read=self._rows,
            all_snapshots=self._all_snapshots,
            files_checked=files,
            findings=findings,
            repairs=tuple(repairs),
        )

    def repair(self, report: CheckReport) -> CheckReport:
        """Do the repairs of a report; afterwards each has its snapshot.

        Raises Rejected if others have committed since the check: nothing more is done then."""
        done = []
        # Totals last: the other repairs change them, too.
        ordered = sorted(report.repairs, key=lambda each: each.code == "wrong-summary")
        for each in ordered:
            finding = next(f for f in report.findings if (f.code, f.store) == (each.code, each.store))
            snapshot_id = repair(finding, self._store_of(finding), self._duplicates)
            done.append(replace(each, snapshot_id=snapshot_id))
        return replace(report, repairs=tuple(done))

    def _check_store(self, table: Table, inspector: KeyInspector | None) -> CheckedStore:
        inspect = inspector.inspect if inspector is not None else _see_nothing if self._rows else None
        return StoreCheck(table.view, self._listener, all_snapshots=self._all_snapshots, inspect=inspect).run()

    def _check_keyed(self, table: KeyedTable) -> tuple[dict[Store | None, pl.DataFrame], int]:
        of_both = check_stores(table.view, table.change_store.view)
        has_key = "missing-key-columns" not in of_both["code"]
        row_check = KeyedRowCheck(table) if self._rows and has_key else None
        base = self._check_store(table, row_check.base if row_check else None)
        change = self._check_store(table.change_store, row_check.change if row_check else None)
        problems: dict[Store | None, pl.DataFrame] = {
            None: of_both,
            "base": join_problems([base.problems, _contents(base, table, "base")]),
            "change": join_problems([change.problems, _contents(change, table.change_store, "change")]),
        }
        if row_check is not None:
            codes = {code for frame in problems.values() for code in frame["code"]}
            damage = {code for code in codes if ALL_KINDS[code].severity == "damage"}
            of_rows = row_check.finish(base, change, reported=damage)
            self._duplicates = of_rows.duplicates
            problems["base"] = join_problems([problems["base"], of_rows.base])
            problems["change"] = join_problems([problems["change"], of_rows.change])
        return problems, base.files_checked + change.files_checked

    def _store_of(self, finding: Finding) -> Table:
        if finding.store == "change" and isinstance(self._table, KeyedTable):
            return self._table.change_store
        return self._table

    def _planned(self, finding: Finding) -> Repair:
        return Repair(code=finding.code, store=finding.store, files=finding.files, rows=finding.rows)


def _see_nothing(_: object, __: object) -> list[Problem]:
    """For tables without a key: rows are read, and nothing more is known about them."""
    return []


def _contents(checked: CheckedStore, table: Table, store: Store) -> pl.DataFrame:
    if checked.current is None:
        return problem_frame([])
    return check_contents(checked.current.files, table.view.metadata, store)
