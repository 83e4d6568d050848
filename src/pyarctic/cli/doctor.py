"""`arctic doctor`: check the environment."""

from __future__ import annotations

from pyarctic.cli.checks import CHECK_COLUMNS, exit_on_fault, run_checks
from pyarctic.cli.session import Format, FormatOption, JsonOption, WideOption, resolve_format, spinner
from pyarctic.cli.view.output import Frame, emit
from pyarctic.units import format_quantity


def doctor(output_format: FormatOption = Format.TABLE, as_json: JsonOption = False, wide: WideOption = False) -> None:
    """Check versions, Java, the configuration and the catalogs.

    \b
    Examples:
      arctic doctor
      arctic doctor --json

    The exit code is 1 if there is a fault.
    """
    with spinner("checking"):
        checks = list(run_checks())
    counts = {state: sum(check.state == state for check in checks) for state in ("warn", "fault")}
    remark = f"{format_quantity(counts['warn'], 'warning')}, {format_quantity(counts['fault'], 'fault')}"
    frame = Frame(columns=CHECK_COLUMNS, rows=[check.to_dict() for check in checks], noun="checks", remark=remark)
    emit(frame, output_format=resolve_format(output_format, as_json), wide=wide, limit=0)
    exit_on_fault(checks)
