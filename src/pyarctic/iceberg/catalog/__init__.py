"""Opening catalogs and loading tables.

`open_catalog` and `load_table` open them by name, with errors translated to those of PyArctic (`translate_catalog_errors`).
`apply_patches` fixes problems of PyIceberg for every catalog; both call it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.iceberg.catalog.loading import catalog_names, load_table, open_catalog, translate_catalog_errors
    from pyarctic.iceberg.catalog.pyiceberg_patches import apply_patches

__all__ = ["apply_patches", "catalog_names", "load_table", "open_catalog", "translate_catalog_errors"]

__getattr__ = lazy_exports(
    __name__,
    {
        "loading": ("catalog_names", "load_table", "open_catalog", "translate_catalog_errors"),
        "pyiceberg_patches": ("apply_patches",),
    },
)
