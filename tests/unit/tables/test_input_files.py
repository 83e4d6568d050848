"""Files of rows: every type as text, what is null, what is refused."""

from __future__ import annotations

import gzip
import io
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyarctic.errors import NotFound, UsageError
from pyarctic.tables import schema_of
from pyarctic.tables.write import infer_schema, open_input_file

TYPES = {
    "flag": "boolean",
    "small": "int",
    "large": "long",
    "ratio": "double",
    "price": "decimal(10, 2)",
    "day": "date",
    "hour": "time",
    "local": "timestamp",
    "at": "timestamptz",
    "name": "string",
    "code": "uuid",
    "four": "fixed[4]",
    "raw": "binary",
}
SCHEMA = schema_of([(name, type_, False) for name, type_ in TYPES.items()])
CODE = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")
VALUES = {
    "flag": True,
    "small": -1,
    "large": 1 << 53,
    "ratio": 0.5,
    "price": Decimal("1.10"),
    "day": date(2026, 1, 31),
    "hour": time(9, 30, 0, 500_000),
    "local": datetime(2026, 1, 31, 9, 30),  # noqa: DTZ001
    "at": datetime(2026, 1, 31, 7, 30, tzinfo=UTC),
    "name": "NA",
    "code": CODE.bytes,
    "four": b"\x00\x01\x02\xff",
    "raw": b"\x00\xff",
}
TEXTS = {
    "flag": "true",
    "small": "-1",
    "large": str(1 << 53),
    "ratio": "0.5",
    "price": "1.10",
    "day": "2026-01-31",
    "hour": "09:30:00.5",
    "local": "2026-01-31T09:30:00",
    "at": "2026-01-31T09:30:00+02:00",
    "name": "NA",
    "code": str(CODE),
    "four": "AAEC/w==",
    "raw": "AP8=",
}
NULLS = dict.fromkeys(TYPES)


def read(file: Any, schema: Any = SCHEMA) -> list[dict[str, Any]]:
    return [row for batch in file.batches(schema) for row in batch.to_pylist()]


def test_every_type_of_csv(tmp_path: Path) -> None:
    lines = [",".join(TEXTS), ",".join(TEXTS.values()), "," * (len(TEXTS) - 1)]
    (tmp_path / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    assert read(open_input_file(str(tmp_path / "a.csv"))) == [VALUES, NULLS]


def test_every_type_of_json(tmp_path: Path) -> None:
    bare = ("flag", "small", "large", "ratio")
    fields = ", ".join(f'"{name}": {text}' if name in bare else f'"{name}": "{text}"' for name, text in TEXTS.items())
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write(f'{{{fields}}}\n{{"small": null}}\n')
    assert read(open_input_file(str(tmp_path / "a.jsonl.gz"))) == [VALUES, NULLS]
    (tmp_path / "a.json").write_text('{"price": 1.10}\n', encoding="utf-8")
    assert read(open_input_file(str(tmp_path / "a.json")))[0]["price"] == Decimal("1.10")


def test_instants(tmp_path: Path) -> None:
    texts = ["2026-01-31", "2026-01-31T09:30", "2026-01-31 09:30:00.000001Z", "2026-01-31T09:30:00-0100"]
    (tmp_path / "a.csv").write_text("\n".join(["at", *texts]), encoding="utf-8")
    assert [row["at"].isoformat() for row in read(open_input_file(str(tmp_path / "a.csv")))] == [
        "2026-01-31T00:00:00+00:00",
        "2026-01-31T09:30:00+00:00",
        "2026-01-31T09:30:00.000001+00:00",
        "2026-01-31T10:30:00+00:00",
    ]


def test_texts_of_csv() -> None:
    text = b'name,small\n"",1\n,2\n"a\nb, ""c""",3\n'
    rows = read(open_input_file("-", "csv", io.BytesIO(text)))
    assert [row["name"] for row in rows] == ["", None, 'a\nb, "c"']


def test_large_files_come_in_batches(tmp_path: Path) -> None:
    pq.write_table(pa.table({"large": range(600_000)}), tmp_path / "a.parquet")
    assert len(list(open_input_file(str(tmp_path / "a.parquet")).batches(SCHEMA))) == 3
    text = "large\n" + "".join(f"{number:020}\n" for number in range(600_000))
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    batches = list(open_input_file(str(tmp_path / "a.csv")).batches(SCHEMA))
    assert len(batches) > 1
    assert sum(batch.num_rows for batch in batches) == 600_000


def test_columns_are_known_without_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    for file in (open_input_file(str(tmp_path / "a.parquet")), open_input_file("-", "csv", io.BytesIO(b"x\n"))):
        assert [batch.schema.names for batch in file.batches(SCHEMA)] == [["x"]]
    assert read(open_input_file("-", "jsonl", io.BytesIO(b""))) == []


@pytest.mark.parametrize(
    ("text", "text_format", "told"),
    [
        ("small\nx\n", "csv", "column 1: 'x'"),
        ("small,large\n1\n", "csv", "a line has 1 value instead of 2"),
        ("", "csv", "it is empty"),
        ("at\nsoon\n", "csv", "column 'at'"),
        ("local\n2026-01-31T00:00:00Z\n", "csv", "column 'local'"),
        ("hour\n25:00\n", "csv", "column 'hour'"),
        ("code\n123\n", "csv", "column 'code'"),
        ("raw\n***\n", "csv", "line 2, column 'raw': '***' is not of type binary"),
        ("four\nAA==\n", "csv", "column 'four'"),
        ('{"small": "1"}', "jsonl", "small"),
        ("small\n1\n", "jsonl", "line 1: invalid value"),
    ],
)
def test_what_cannot_be_read(text: str, text_format: str, told: str) -> None:
    with pytest.raises(UsageError, match="cannot be read as") as caught:
        read(open_input_file("-", text_format, io.BytesIO(text.encode())))
    assert told in caught.value.message
    assert caught.value.facts["file"] == "-"


def test_which_kind_of_file(tmp_path: Path) -> None:
    for name, kind in {"a.PARQUET": "parquet", "a.csv.gz": "csv", "a.ndjson": "jsonl"}.items():
        (tmp_path / name).touch()
        assert open_input_file(str(tmp_path / name)).format == kind
        assert open_input_file(str(tmp_path / name), "csv").format == "csv"
    for name in ("a.txt", "a", "a.gz"):
        (tmp_path / name).touch()
        with pytest.raises(UsageError, match="what kind of file"):
            open_input_file(str(tmp_path / name))
    with pytest.raises(UsageError, match="what kind of file"):
        open_input_file("-", None, io.BytesIO())
    with pytest.raises(NotFound, match="no such file"):
        open_input_file(str(tmp_path / "none.csv"))


def test_the_schema_of_a_file(tmp_path: Path) -> None:
    fields = [pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.timestamp("ns", tz="UTC"))]
    pq.write_table(pa.schema(fields).empty_table(), tmp_path / "a.parquet")
    found = infer_schema(str(tmp_path / "a.parquet"))
    assert not found.field("id").nullable
    assert found.field("at").type == pa.timestamp("us", tz="UTC")
    (tmp_path / "b.parquet").write_text("x", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be read as parquet"):
        infer_schema(str(tmp_path / "b.parquet"))
