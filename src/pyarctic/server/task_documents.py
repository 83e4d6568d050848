"""The documents of the task protocol, as the OpenAPI page shows them. docs/reference/protocol.md has the rules, and
`pyarctic.optimizing.protocol` reads and writes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from pyarctic.server.documents import MAX_NUMBER, Document

Number = Annotated[int, Field(ge=0, le=MAX_NUMBER)]


class Job(Document):
    """What all tasks of a plan share."""

    type: Literal["job"]
    version: int
    id: str
    """Identifies the job; it is part of the names of all files that its tasks write."""
    table: str
    """`catalog.database.table`."""
    metadata: dict[str, Any]
    """Iceberg table metadata when the plan was made, without snapshots: schemas, partition specs, sort orders, the location,
    and those properties that say how files are written."""
    snapshot_id: str | None
    """The snapshot that was planned; null for an empty base store."""
    sequence_number: int | None
    """The data sequence number that new data files must have; null: that of their commit."""
    memory_bytes: int
    """The memory of one task."""
    verify: bool
    """Whether to compute hashes of the content of all rows."""


class InputFile(Document):
    """A data or delete file, with the fields of an Iceberg manifest."""

    content: int
    """0 data, 1 position deletes, 2 equality deletes."""
    file_path: str
    file_format: str
    spec_id: int
    partition: str
    """The partition values as a JSON list in a text."""
    record_count: int
    file_size_bytes: int
    data_sequence_number: int
    """Equality deletes apply to data files with smaller numbers, position deletes to those with numbers not greater."""
    equality_ids: list[int] | None = None
    """Of equality deletes: the field ids that are compared."""
    first_row_id: int | None = None
    """In tables of format version 3: the id of the first row."""
    referenced_data_file: str | None = None
    """Of position deletes: the only data file that they apply to."""
    content_offset: int | None = None
    """Of deletion vectors: where the vector is in its file."""
    content_size_bytes: int | None = None
    key_metadata_bytes: int | None = None


class KeyedPart(Document):
    """What only tasks of keyed tables have."""

    node_id: str
    """The tree node whose rows are written; rows of other nodes are skipped."""
    changes: list[InputFile]
    """Files of the change store."""
    kept: list[str]
    """Data files that stay: the positions of their deleted rows are written."""
    transaction_id: str
    """For the names of new files."""
    shareable: list[str]
    """Insert files that may become part of the base store as they are."""
    foreign: list[str]
    """Data files of other engines, the oldest first."""


class Task(Document):
    """What to do: read the data files, leave out the rows that the delete files apply to, and write the rest (`merge`), or
    write the positions of the rows that equality deletes apply to (`convert`)."""

    type: Literal["task"]
    version: int
    id: int
    """Identifies the task in its job."""
    action: Literal["merge", "convert"]
    kind: Literal["minor", "major", "full"]
    partition: str
    """The partition path, for people."""
    files: list[InputFile]
    """Data files, and the delete files that apply to them."""
    spec_id: int
    """The partition spec of the new files."""
    partition_key: str | None
    """The partition of the new files, as in `files`; null: the values of each row decide."""
    target_bytes: int
    """The size at which a new file begins."""
    expected_rows: int
    expected_bytes: int
    sort: bool
    """Whether rows are sorted by the table's sort order, or clustered by `z_order`."""
    z_order: list[int]
    """The field ids that rows are clustered by."""
    ranges: int
    """Into how many key ranges the work may be divided."""
    copy_least_rows: int | None
    """Row groups with at least as many rows are copied if nothing in them changes; null: none."""
    files_out: list[int] | None
    """The number of new files: at least, probably, at most."""
    reasons: list[str]
    keyed: KeyedPart | None
    """null: the table is not keyed."""


class Metrics(Document):
    """Metrics of a Parquet file by field id (as text), as in an Iceberg manifest. Missing ones are empty."""

    column_sizes: dict[str, Number] = {}
    value_counts: dict[str, Number] = {}
    null_counts: dict[str, Number] = {}
    nan_counts: dict[str, Number] = {}
    lower_bounds: dict[str, str] = {}
    """Values in Iceberg's binary form, in base64."""
    upper_bounds: dict[str, str] = {}


class NewFile(Document):
    """A file that an attempt wrote."""

    content: Number
    """0 data, 1 position deletes."""
    path: str
    """In the data folder of the table; the name is `TASK-ATTEMPT-JOB-N.parquet` in native tables."""
    file_format: str
    """`PARQUET`, or `PUFFIN` for deletion vectors."""
    spec_id: Number
    partition: str
    """The partition values as a JSON list in a text, as `partition_key`."""
    record_count: Number
    file_size_bytes: Number
    metrics: Metrics
    split_offsets: list[Number] = []
    """Where row groups begin."""
    sort_order_id: Number | None = None
    equality_ids: list[Number] = []
    referenced_data_file: str | None = None
    content_offset: Number | None = None
    content_size_bytes: Number | None = None
    data_sequence_number: Number | None = None
    """The `sequence_number` of the job, for data files."""


class Result(Document):
    """What an attempt produced. It must prove that no row was lost: `rows_in` − `rows_deleted` is `rows_out`."""

    type: Literal["result"]
    version: int
    job: str
    """The id of the job."""
    task: int
    """The id of the task in its job."""
    attempt: int
    add: list[NewFile]
    rows_in: int
    """Rows read from the data files, those that are deleted included."""
    rows_deleted: int
    """Those of `rows_in` that delete files apply to."""
    rows_out: int
    """Rows written."""
    rows_from_changes: int = 0
    """Those of `rows_in` that came from the change store."""
    copied_rows: int = 0
    """Those of `rows_out` that were copied without decoding them."""
    files_with_rewritten_deletes: list[str] = []
    """Kept data files whose deleted rows are all in new position deletes."""
    shared_files: list[str] = []
    """Files in `add` that the change store has, and keeps."""
    hash_in: str | None = None
    """The hash of the content read, if the job asks for it."""
    hash_out: str | None = None
    row_map: str | None = None
    """A Parquet file that tells where each row went. Without it, the result is dropped when others delete rows of the
    replaced files by position meanwhile."""
    more_row_maps: list[str] = []
    bytes_read: int = 0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


class Failure(Document):
    """Why an attempt failed. It has removed its files."""

    type: Literal["failure"]
    version: int
    task: int
    attempt: int
    code: str
    """A stable code, such as `unavailable` for a storage that does not answer."""
    detail: str
    hint: str | None = None
    retryable: bool = False
    """Whether another attempt may succeed."""
    partition: str | None = None
    job: str = ""


DOCUMENTS: tuple[type[Document], ...] = (Job, Task, Result, Failure)
