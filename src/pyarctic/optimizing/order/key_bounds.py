"""The key bounds of each data file, from the bounds in its manifest.

A file is a box: for every column of the order the least and the greatest key it may hold, as numbers that keep the order.
Nulls and NaN are keys like others, at the end where sorting puts them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BooleanType, DecimalType, DoubleType, FloatType, IcebergType, StringType

from pyarctic.iceberg import apply_transform, internal_type
from pyarctic.iceberg.manifest import INTEGER_TYPES
from pyarctic.iceberg.predicate import decode_bound
from pyarctic.iceberg.read import arrow_type
from pyarctic.optimizing.order.ranks import MIN_RANK, NAN, NULL, NULL_LAST, TEXTS, Ranks, ranks
from pyarctic.optimizing.order.sort_order import Dimension, Order

IS_BOUNDED = "is_bounded"
_DECIMAL_BYTES = 16


def low_column(number: int) -> str:
    """The column with the least key of a dimension."""
    return f"key_low_{number}"


def high_column(number: int) -> str:
    """The column with the greatest key of a dimension."""
    return f"key_high_{number}"


def key_bounds(order: Order, files: pl.DataFrame) -> pl.DataFrame:
    """For files with metrics of the order's columns: `file_path`, low and high for each dimension, and `is_bounded`, whether
    the bounds are known. A file without bounds may hold any key."""
    columns: dict[str, pl.Series] = {"file_path": files["file_path"]}
    is_bounded = np.ones(files.height, bool)
    for number, dimension in enumerate(order.dimensions):
        low, high, is_known = _interval(dimension, files, coarse=bool(order.z_order))
        columns[low_column(number)], columns[high_column(number)] = pl.Series(low), pl.Series(high)
        is_bounded &= is_known
    return pl.DataFrame(columns | {IS_BOUNDED: pl.Series(is_bounded)})


def _interval(dimension: Dimension, files: pl.DataFrame, *, coarse: bool) -> tuple[Ranks, Ranks, npt.NDArray[np.bool_]]:
    field_id = dimension.field_id
    lower, upper = (_sort_keys(dimension, files[f"{end}_{field_id}"]) for end in ("lower", "upper"))
    low, high = _rank_bounds(dimension, lower, upper, coarse=coarse)
    has_low, has_high = (bound.is_valid().to_numpy(zero_copy_only=False) for bound in (lower, upper))
    low, high = np.where(has_low, low, MIN_RANK), np.where(has_high, high, NAN)
    counts = files.select(f"{name}_{field_id}" for name in ("values", "nulls", "nans")).cast(pl.Float64)
    values, nulls, nans = (column.to_numpy() for column in counts.fill_null(np.nan))
    if not isinstance(dimension.type, FloatType | DoubleType):
        nans = np.zeros_like(nans)
    # An unknown count is NaN here: no comparison with it is true, and there may be some.
    is_empty = nulls + nans >= values
    is_known = is_empty | (has_low & has_high & (low <= high))
    low, high = np.where(is_empty, NULL_LAST, low), np.where(is_empty, NULL, high)
    null_rank = NULL if dimension.nulls_low else NULL_LAST
    low, high = _extend(low, high, ~(nans == 0), NAN)
    low, high = _extend(low, high, ~(nulls == 0) & (not dimension.is_required), null_rank)
    is_known &= low <= high  # false for a file without rows
    return np.where(is_known, low, NULL), np.where(is_known, high, NULL_LAST), is_known


def _extend(low: Ranks, high: Ranks, has_key: npt.NDArray[np.bool_], key: np.uint64) -> tuple[Ranks, Ranks]:
    """Extend the bounds of files that have a key."""
    return np.where(has_key, np.minimum(low, key), low), np.where(has_key, np.maximum(high, key), high)


def _rank_bounds(dimension: Dimension, lower: pa.Array, upper: pa.Array, *, coarse: bool) -> tuple[Ranks, Ranks]:
    """Both bounds as ranks. Where rows are sorted by complete texts, the distinct bounds are numbered; with `coarse` they
    have the ranks that rows are clustered by."""
    both = pa.concat_arrays([lower, upper])
    if isinstance(dimension.type, TEXTS) and not coarse:
        dense = pl.Series(pl.from_arrow(both.cast(pa.large_binary()))).rank("dense").fill_null(0).to_numpy()
        numbers = dense.astype(np.uint64) + MIN_RANK
    else:
        numbers = ranks(dimension.transform.result_type(dimension.type), both, dimension.prefix_bytes)
    return numbers[: len(lower)], numbers[len(lower) :]


def _sort_keys(dimension: Dimension, raw: pl.Series) -> pa.Array:
    """The sort keys of bounds, as manifests hold them."""
    values = decode_bounds(dimension.type, raw)
    if isinstance(dimension.type, StringType) and dimension.exact is not None:
        values = pc.utf8_slice_codeunits(values, 0, dimension.exact)
    elif isinstance(dimension.type, TEXTS) and dimension.exact is not None:
        values = pc.binary_slice(values, 0, dimension.exact)
    if isinstance(dimension.transform, IdentityTransform):
        return values
    return apply_transform(dimension.transform, dimension.type, values)


def decode_bounds(type_: IcebergType, raw: pl.Series) -> pa.Array:
    """Bounds as manifests hold them, decoded; null where that is not possible."""
    if isinstance(type_, DecimalType):
        return _decode_decimals(type_, raw)
    if isinstance(type_, BooleanType):
        return pl.select(pl.lit(raw) == pl.lit(b"\1")).to_series().to_arrow()
    decoded = decode_bound(pl.lit(raw), type_)
    if decoded is None:
        return raw.to_arrow().cast(pa.binary())
    values = pl.select(decoded).to_series().to_arrow()
    if isinstance(type_, INTEGER_TYPES):
        return values.cast(internal_type(type_)).view(arrow_type(type_))
    return values.cast(arrow_type(type_))


def _decode_decimals(type_: DecimalType, raw: pl.Series) -> pa.Array:
    """Manifests have big-endian numbers of any length; Arrow needs sixteen bytes, little-endian."""
    fits = (raw.bin.size() > 0) & (raw.bin.size() <= _DECIMAL_BYTES)
    plain = raw.to_arrow().cast(pa.large_binary()).fill_null(b"\0")
    _, offsets, data = plain.buffers()
    bounds = np.frombuffer(offsets, np.int64)[plain.offset : plain.offset + len(plain) + 1]
    octets = np.append(np.frombuffer(data, np.uint8), np.uint8(0))
    indexes = bounds[1:, None] - 1 - np.arange(_DECIMAL_BYTES)
    sign = np.where(octets[bounds[:-1]] >> 7 == 1, np.uint8(255), np.uint8(0))
    is_inside = indexes >= bounds[:-1, None]
    matrix = np.where(is_inside, octets[np.where(is_inside, indexes, 0)], sign[:, None])
    wide = pa.Array.from_buffers(pa.decimal128(38, type_.scale), len(raw), [None, pa.py_buffer(matrix.tobytes())])
    values = pc.if_else(pa.array(fits.fill_null(value=False).to_numpy()), wide, pa.scalar(None, wide.type))
    return values.cast(arrow_type(type_))


def metric_ids(order: Order) -> Sequence[int]:
    """The columns whose metrics `key_bounds` needs."""
    return [dimension.field_id for dimension in order.dimensions]
