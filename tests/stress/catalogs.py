"""The catalogs of the races, known to Spark and to PyIceberg by the same name."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tests.services.rest import RestServer

REST = "stress_rest"


def add_rest_to_spark(spark: SparkSession, server: RestServer) -> tuple[str, dict[str, str]]:
    """Tell Spark of the server; gives the catalog's name and PyIceberg's properties for it."""
    properties = {"type": "rest", "uri": server.uri}
    settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".cache-enabled": "false"}
    for key, value in (settings | {f".{key}": value for key, value in properties.items()}).items():
        spark.conf.set(f"spark.sql.catalog.{REST}{key}", value)
    return REST, properties
