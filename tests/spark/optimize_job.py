"""A job that optimizes a table on the cluster it is submitted to, and prints the report as JSON.

docs/how-to/spark-clusters.md shows it:

    spark-submit --master spark://… --py-files pyarctic.zip optimize_job.py demo.shop.orders full

Catalogs are those of arctic.yaml, here or where $ARCTIC_CONFIG says.
"""

import json
import sys

import pyarctic
from pyarctic.spark import session


def main(table: str, kind: str = "auto") -> None:
    spark = session("optimize")
    try:
        report = pyarctic.optimize(table, kind, engine=spark)  # type: ignore[arg-type]  # a text from outside is checked
    finally:
        spark.stop()
    sys.stdout.write(json.dumps(report.to_dict()) + "\n")
    sys.exit(1 if report.failures else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
