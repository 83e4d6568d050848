"""Configuration: `arctic.yaml`, catalogs by name, table names and the folders PyArctic may use.

Knows files, environment variables and the catalogs declared in this process. Knows nothing of Iceberg: a catalog is a
mapping of strings here, and whoever opens it decides what they mean. Importing this room is cheap: YAML and pydantic
are loaded only when a file is read.
"""

from pyarctic.config.catalogs import (
    Config,
    catalog_properties,
    declare_catalog,
    declared_names,
    known_catalogs,
    load,
    origin_of,
    reset,
    use,
)
from pyarctic.config.folders import cache_dir, spill_dir
from pyarctic.config.names import TableName, check_catalog_name, parse_table_name
from pyarctic.config.secrets import masked, masked_text

__all__ = [
    "Config",
    "TableName",
    "cache_dir",
    "catalog_properties",
    "check_catalog_name",
    "declare_catalog",
    "declared_names",
    "known_catalogs",
    "load",
    "masked",
    "masked_text",
    "origin_of",
    "parse_table_name",
    "reset",
    "spill_dir",
    "use",
]
