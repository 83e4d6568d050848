"""The tutorial, as it stands in docs/tutorials/cdc-from-kafka.md: its code runs, and prints what the page shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.services.kafka import Kafka
from tests.support import jars

pytestmark = pytest.mark.jvm

_PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "cdc-from-kafka.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = "arctic table show demo.shop.orders"
_RUN_COMMAND = f"""
import subprocess, sys
subprocess.run([sys.executable, "-m", "pyarctic.cli", *{_COMMAND.split()[1:]!r}, "--json"], check=True)
"""
_END = "--- end of block"
_SECONDS = 240


@dataclass(frozen=True, kw_only=True)
class Step:
    code: str
    shown: str
    """What the page shows below the code, if anything."""


def steps() -> list[Step]:
    blocks: list[tuple[str, str]] = _BLOCK.findall(_PAGE.read_text())
    found = []
    for (kind, text), (next_kind, next_text) in zip(blocks, [*blocks[1:], ("python", "")], strict=True):
        if kind == "python":
            is_shown = next_kind == "text"
            found.append(Step(code=text, shown=next_text if is_shown else ""))
        elif text.strip() == _COMMAND:
            found.append(Step(code=_RUN_COMMAND, shown=""))
    return found


def replaced(text: str, old: str, new: str) -> str:
    assert old in text, f"the tutorial does not say {old} any more"
    return text.replace(old, new)


def test_tutorial(kafka: Kafka, tmp_path: Path) -> None:
    kafka.create_topic("shop.public.orders", partitions=2)
    settings = {
        "spark.jars": ",".join(map(str, jars.KAFKA_SOURCE.paths())),
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(tmp_path / "scratch"),
        "spark.sql.shuffle.partitions": "2",
    }
    told = steps()
    text = "".join(f"{step.code}\nprint({_END!r}, flush=True)\n" for step in told)
    text = replaced(text, '"127.0.0.1:9092"', repr(kafka.servers))
    text = replaced(text, "file:///tmp/", f"{tmp_path.as_uri()}/")
    packages = re.search(r"^JARS = .*$", text, re.MULTILINE)
    assert packages is not None
    text = text.replace(packages.group(), f"JARS = {settings!r}")
    catalog = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": f"{tmp_path.as_uri()}/warehouse"}
    (tmp_path / "arctic.yaml").write_text(json.dumps({"catalogs": {"demo": catalog}}))
    job = tmp_path / "tutorial.py"
    job.write_text(text)
    done = subprocess.run([sys.executable, job], cwd=tmp_path, capture_output=True, text=True, timeout=_SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    *printed, rest = done.stdout.split(f"{_END}\n")
    assert rest == ""
    assert len(printed) == len(told) > 8
    for step, output in zip(told, printed, strict=True):
        if step.code != _RUN_COMMAND:
            assert output.rstrip() == step.shown.rstrip(), step.code
    [table] = [json.loads(output) for step, output in zip(told, printed, strict=True) if step.code == _RUN_COMMAND]
    assert (table["kind"], table["records"]) == ("keyed", 0)
    changed = table["change_store"]
    assert (changed["snapshots"], changed["inserted_records"], changed["deleted_records"]) == (2, 7, 5)
    assert sum(bool(step.shown) for step in told) == 5
