"""Configuration: `arctic.yaml`, catalogs by name, table names, table properties, and the folders that PyArctic uses.

Knows files, environment variables and the catalogs declared in this process, but nothing about Iceberg: a catalog is a
mapping of strings here. Importing this package is cheap: YAML and pydantic are imported only when a file is read, or for the
sections about the service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports
from pyarctic.config.catalogs import (
    Config,
    catalog_origin,
    catalog_properties,
    declare_catalog,
    declared_names,
    known_catalogs,
    load,
    reset,
    use,
)
from pyarctic.config.folders import cache_dir, spill_dir, state_dir
from pyarctic.config.names import TableName, check_catalog_name, parse_table_name
from pyarctic.config.secrets import mask_properties, mask_text

if TYPE_CHECKING:
    from pyarctic.config.sections import HttpSection, ServiceSection

__all__ = [
    "Config",
    "HttpSection",
    "ServiceSection",
    "TableName",
    "cache_dir",
    "catalog_origin",
    "catalog_properties",
    "check_catalog_name",
    "declare_catalog",
    "declared_names",
    "known_catalogs",
    "load",
    "mask_properties",
    "mask_text",
    "parse_table_name",
    "reset",
    "spill_dir",
    "state_dir",
    "use",
]

__getattr__ = lazy_exports(__name__, {"sections": ("HttpSection", "ServiceSection")})
