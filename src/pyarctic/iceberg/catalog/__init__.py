"""Opening catalogs and loading tables, and patches for what PyIceberg gets wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.iceberg.catalog.loading import catalog_names, load_table, open_catalog, reaching
    from pyarctic.iceberg.catalog.pyiceberg_patches import close_gaps

__all__ = ["catalog_names", "close_gaps", "load_table", "open_catalog", "reaching"]

__getattr__ = lazy_exports(
    __name__,
    {
        "loading": ("catalog_names", "load_table", "open_catalog", "reaching"),
        "pyiceberg_patches": ("close_gaps",),
    },
)
