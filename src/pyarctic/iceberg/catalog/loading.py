"""Opening catalogs by name and loading tables from them, with failures translated to PyArctic's errors."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from pydantic import ValidationError as PydanticError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    ValidationError,
)
from pyiceberg.table import Table
from pyiceberg.utils.config import Config

from pyarctic import config
from pyarctic.config import TableName
from pyarctic.errors import ArcticError, ConfigError, Damaged, MissingExtra, NotFound, Unavailable, Unsupported
from pyarctic.iceberg.catalog.pyiceberg_patches import apply_catalog_patches, apply_patches
from pyarctic.iceberg.catalog.sqlite_files import check_sqlite_file, explain_sqlite_error
from pyarctic.iceberg.storage import CREDENTIALS_HINT, is_refused

SUPPORTED_FORMAT_VERSIONS = (1, 2, 3)
_EXTRAS = {"boto3": "glue", "thrift": "hive", "psycopg": "postgres"}
"""What installs the modules that catalogs need."""
_CLIENT_ERRORS = (
    ("sqlalchemy.exc", "SQLAlchemyError"),
    ("requests.exceptions", "RequestException"),
    ("thrift.Thrift", "TException"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
)
"""The modules of errors, and their names."""


def catalog_names() -> list[str]:
    """The names of catalogs in arctic.yaml, of this process and of PyIceberg's configuration."""
    return sorted({*config.declared_names(), *Config().get_known_catalogs()})


def open_catalog(name: str) -> Catalog:
    """Open the catalog of that name. No request is sent, except by catalogs that connect immediately."""
    apply_patches()
    properties = config.catalog_properties(name)
    if properties is None and name not in Config().get_known_catalogs():
        similar = get_close_matches(name, catalog_names(), n=1)
        question = f"Did you mean {similar[0]}? " if similar else ""
        raise NotFound(
            f"catalog {name!r} is not configured",
            hint=f"{question}Configured: {', '.join(catalog_names()) or 'none'}. Others are added in arctic.yaml.",
            catalog=name,
        )
    known = properties if properties is not None else Config().get_catalog_config(name) or {}
    check_sqlite_file(name, str(known.get("uri") or ""))
    with translate_catalog_errors(name):
        catalog = load_catalog(name, **(properties or {}))
    apply_catalog_patches()
    return catalog


def load_table(name: TableName) -> Table:
    """Load a table with its current metadata."""
    catalog = open_catalog(name.catalog)
    try:
        with translate_catalog_errors(name.catalog, str(name)):
            return catalog.load_table((*name.namespace, name.table))
    except NotFound as error:
        error.hint = _similar_names(catalog, name) or error.hint
        raise


def _similar_names(catalog: Catalog, name: TableName) -> str | None:
    """A hint for a table that does not exist: a database or a table with a similar name."""
    database = ".".join(name.namespace)
    lists = f"`arctic table ls '{name.catalog}.*'` lists the existing tables."
    try:
        databases = [".".join(each) for each in catalog.list_namespaces(name.namespace[:-1])]
        if database not in databases:
            similar = get_close_matches(database, databases, n=1)
            question = f" Did you mean {similar[0]}?" if similar else ""
            return f"There is no database {database} in {name.catalog}.{question} {lists}"
        tables = [identifier[-1] for identifier in catalog.list_tables(name.namespace)]
    except Exception:  # noqa: BLE001  # the error is that the table does not exist, whatever happens here
        return None
    similar = get_close_matches(name.table, tables, n=1)
    return f"Did you mean {name.catalog}.{database}.{similar[0]}? {lists}" if similar else None


@contextmanager
def translate_catalog_errors(catalog: str, table: str | None = None) -> Iterator[None]:
    """Translate the failures of a catalog (a dozen unrelated exception types) to PyArctic's errors."""
    subject = table or catalog
    try:
        yield
    except ArcticError:
        raise
    except (NoSuchTableError, NoSuchIcebergTableError) as cause:
        raise NotFound(
            f"table {subject} does not exist",
            hint=f"`arctic table ls '{catalog}.*'` lists the existing tables.",
            table=subject,
        ) from cause
    except NoSuchNamespaceError as cause:
        raise NotFound(
            f"no such database: {cause}", hint=f"`arctic table ls '{catalog}.*'` shows the existing ones.", catalog=catalog
        ) from cause
    except (ValidationError, PydanticError) as cause:
        raise _bad_metadata(subject, cause) from cause
    except FileNotFoundError as cause:
        raise Damaged(
            f"{subject}: its metadata file is missing: {cause.filename or cause}",
            hint="The catalog points to a file that does not exist. Register an older metadata file of the table.",
            table=subject,
        ) from cause
    except NotInstalledError as cause:
        raise _missing_package(catalog, cause) from cause
    except _client_errors() as cause:
        if (problem := explain_sqlite_error(catalog, cause)) is not None:
            raise problem from cause
        raise Unavailable(
            f"catalog {catalog!r} cannot be reached: {_reason(cause)}",
            hint="Check its `uri`, credentials and that the service is up; `arctic catalog check` tries again.",
            catalog=catalog,
        ) from cause
    except (ValueError, KeyError, TypeError) as cause:
        raise (_bad_metadata(subject, cause) if table else _bad_properties(catalog, cause)) from cause
    except OSError as cause:
        raise _storage_error(catalog, subject, cause) from cause


def _bad_properties(catalog: str, cause: Exception) -> ArcticError:
    return ConfigError(
        f"catalog {catalog!r} is not configured correctly: {_first_line(cause)}",
        hint="Correct its properties in arctic.yaml; `arctic catalog ls --wide` shows them. Its type is one of: rest, sql, "
        "hive, glue, dynamodb, bigquery, in-memory.",
        catalog=catalog,
    )


def _storage_error(catalog: str, subject: str, cause: OSError) -> ArcticError:
    if "Not a directory" in str(cause):
        return ConfigError(
            f"{subject}: its folder cannot be created, because a part of the path is a file: {_path_in(cause)}",
            hint=f"Correct `warehouse` of the catalog {catalog} in arctic.yaml.",
            catalog=catalog,
        )
    if is_refused(cause):
        detail = f"{subject}: no permission for its files: {_first_line(cause)}"
        return Unavailable(detail, hint=CREDENTIALS_HINT, catalog=catalog)
    return Unavailable(f"{subject}: {cause}", hint="Check the storage and try again.", catalog=catalog)


def _missing_package(catalog: str, cause: NotInstalledError) -> MissingExtra:
    missing: BaseException | None = cause
    while missing is not None and not isinstance(missing, ModuleNotFoundError):
        missing = missing.__cause__ or missing.__context__
    package = (missing.name or "").partition(".")[0] if missing else ""
    if package in _EXTRAS:
        command = f"pip install 'pyarctic[{_EXTRAS[package]}]'"
        return MissingExtra(f"catalog {catalog!r} needs {package}, which is not installed: {command}", catalog=catalog)
    if package == "psycopg2":
        hint = "Write postgresql+psycopg:// in its `uri`, and pip install 'pyarctic[postgres]'; or install psycopg2."
        return MissingExtra(f"catalog {catalog!r} needs psycopg2, which is not installed", hint=hint, catalog=catalog)
    return MissingExtra(f"catalog {catalog!r} needs a package that is not installed: {package or cause}", catalog=catalog)


def _client_errors() -> tuple[type[Exception], ...]:
    """The errors of a catalog that is out of reach. Those of libraries that catalogs use only if they are loaded: importing
    them takes long, and not every installation has all of them."""
    loaded = ((sys.modules.get(module), name) for module, name in _CLIENT_ERRORS)
    # Another thread may be about to import a module: it has no errors to raise yet.
    errors: list[type[Exception]] = [getattr(module, name) for module, name in loaded if hasattr(module, name)]
    return (*errors, RESTError, ConnectionError, TimeoutError)


def _bad_metadata(table: str, cause: Exception) -> ArcticError:
    text = str(cause)
    # Not "format-version": any error message may quote the beginning of the file.
    if "union_tag_invalid" in text or "Unknown format version" in text:
        return Unsupported(
            f"{table} has a format version this release cannot read",
            hint=f"Iceberg format versions {', '.join(map(str, SUPPORTED_FORMAT_VERSIONS))} are supported. "
            "Nothing was changed; a newer PyArctic may read it.",
            table=table,
        )
    return Damaged(
        f"{table}: its metadata file is not valid: {_first_line(cause)}",
        hint="Register an older metadata file of the table, or repair this one.",
        table=table,
    )


def _path_in(cause: Exception) -> str:
    quoted = re.search(r"'([^']+)'", str(cause))
    return quoted[1] if quoted else _first_line(cause)


def _reason(cause: Exception) -> str:
    """Why a connection failed; libraries wrap it in several layers of other errors."""
    system_error = re.search(r"\[Errno -?\d+\] (?P<reason>[A-Z][\w ]+)", str(cause))
    return system_error["reason"].lower() if system_error else _first_line(cause)


def _first_line(cause: Exception) -> str:
    return next(iter(str(cause).splitlines()), type(cause).__name__)
