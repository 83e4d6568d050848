"""Predicates: parsed, bound to a schema, evaluated on rows, and used to prune files.

`parse_condition` parses and checks a condition and `bind_condition` binds it to a schema. `prune_partitions` and
`prune_by_metrics` drop files without matching rows, `restrict_condition` and `allowed_values` tell what it demands of some
columns, and `to_spark_sql` translates a condition for Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.iceberg.predicate.conditions import (
        ALWAYS_TRUE,
        bind_condition,
        parse_condition,
        to_row_expression,
        with_optional_parents,
    )
    from pyarctic.iceberg.predicate.parts import allowed_values, restrict_condition
    from pyarctic.iceberg.predicate.pruning import decode_bound, prune_by_metrics, prune_partitions
    from pyarctic.iceberg.predicate.spark_sql import is_supported_by_spark, to_spark_sql

__all__ = [
    "ALWAYS_TRUE",
    "allowed_values",
    "bind_condition",
    "decode_bound",
    "is_supported_by_spark",
    "parse_condition",
    "prune_by_metrics",
    "prune_partitions",
    "restrict_condition",
    "to_row_expression",
    "to_spark_sql",
    "with_optional_parents",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "conditions": ("ALWAYS_TRUE", "bind_condition", "parse_condition", "to_row_expression", "with_optional_parents"),
        "parts": ("allowed_values", "restrict_condition"),
        "pruning": ("decode_bound", "prune_by_metrics", "prune_partitions"),
        "spark_sql": ("is_supported_by_spark", "to_spark_sql"),
    },
)
