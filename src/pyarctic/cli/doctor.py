"""`arctic doctor`: one line per check."""

from __future__ import annotations

from pyarctic.cli.checks import CHECK_COLUMNS, all_checks, worst_exit
from pyarctic.cli.session import Format, FormatOption, JsonOption, WideOption, chosen, working
from pyarctic.cli.view.output import Frame, emit


def doctor(output_format: FormatOption = Format.TABLE, as_json: JsonOption = False, wide: WideOption = False) -> None:
    """Check versions, configuration, catalogs and Java.

    \b
    Example:
      arctic doctor

    The exit code is 1 when there is a fault.
    """
    with working("checking"):
        found = list(all_checks())
    counts = {state: sum(one.state == state for one in found) for state in ("warn", "fault")}
    remark = f"{counts['warn']} to look at, {counts['fault']} at fault"
    frame = Frame(columns=CHECK_COLUMNS, rows=[one.to_dict() for one in found], noun="checks", remark=remark)
    emit(frame, output_format=chosen(output_format, as_json), wide=wide, limit=0)
    worst_exit(found)
