# The one door to the project: `make` lists what there is. Every target first brings .venv up to the lock files.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
JARS := .cache/jars/ready
SOURCES := src tests tools $(wildcard benchmarks examples)
# JVM tests run in two processes, each with a JVM of its own, and a file of tests stays in one; the others use every core.
PYTEST := $(PYTHON) -m pytest

.PHONY: help
help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(READY) compiled  ## Show PyArctic at work on tables it makes in .demo/
	@$(PYTHON) -m examples.demo

.PHONY: demo-more
demo-more: $(READY) compiled  ## Show details: file lists, time travel, stores, streams, kinds of optimizing
	@$(PYTHON) -m examples.demo_more

.PHONY: test
test: test-fast test-spark  ## Run all tests

.PHONY: test-fast
test-fast: $(READY) $(JARS) compiled  ## Run the tests that need no Java, in parallel
	$(PYTEST) -m "not jvm" -n auto -q

.PHONY: test-spark
test-spark: $(READY) $(JARS) compiled  ## Run the tests against Spark and Iceberg Java, on two JVMs
	$(PYTEST) -m jvm -n 2 --dist loadfile -q

.PHONY: test-matrix
test-matrix: $(READY) compiled  ## Run the tests of Spark's data paths on Spark 4.1, 4.0 and 3.5
	$(PYTHON) -m tests.support.spark_matrix

.PHONY: stress
stress: $(READY) $(JARS) compiled  ## Race many writers and Iceberg Java on one table, on all catalogs and versions (SECONDS=120 each)
	$(PYTHON) -m tests.stress --seconds $(or $(SECONDS),120)

.PHONY: chaos
chaos: $(READY) $(JARS) compiled  ## Kill and disturb services, optimizers and databases while others write (SECONDS=900 each)
	for database in $(or $(DATABASE),sqlite postgresql mariadb); do \
		$(PYTHON) -m tests.chaos --database $$database --seconds $(or $(SECONDS),900) $(if $(SEED),--seed $(SEED)); \
	done

.PHONY: check
check: $(READY)  ## Check format, style, types, the borders between rooms, and dependencies
	$(PYTHON) -m ruff format --check $(SOURCES)
	$(PYTHON) -m ruff check $(SOURCES)
	$(PYTHON) -m mypy $(SOURCES)
	$(VENV)/bin/lint-imports
	$(VENV)/bin/deptry src

.PHONY: docs
docs: $(READY) docs-reference  ## Build the documentation site in build/site; broken links fail
	$(PYTHON) -m tools.build_site build/site

.PHONY: docs-reference
docs-reference: $(READY)  ## Write the parts of docs/reference that follow from the code
	@$(PYTHON) -m tools.reference

.PHONY: fmt
fmt: $(READY)  ## Format the code and repair what can be repaired
	$(PYTHON) -m ruff check --fix $(SOURCES)
	$(PYTHON) -m ruff format $(SOURCES)

.PHONY: bench
bench: $(READY) $(JARS) compiled  ## Measure and print the figures
	@$(PYTHON) -m benchmarks

COMPILE = $(VENV)/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	--custom-compile-command "make lock"
.PHONY: lock
lock: $(READY)  ## Write the lock files anew from pyproject.toml (UPGRADE=1: to the newest versions)
	$(COMPILE) $(if $(UPGRADE),--upgrade) --all-extras --group dev --group docs pyproject.toml -o requirements.lock
	$(COMPILE) --group java -o requirements-java.lock
	$(COMPILE) --group spark-4-0 -o requirements-spark-4.0.lock
	$(COMPILE) --group spark-3-5 -o requirements-spark-3.5.lock

.PHONY: jars
jars: $(JARS)  ## Get what the tests need of Maven: Iceberg Java, Kafka, MariaDB

.PHONY: clean
clean:  ## Remove everything that was built or fetched
	rm -rf $(VENV) .cache .demo .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find $(SOURCES) -name __pycache__ -prune -exec rm -rf {} +

# As pip does for an installed package: where Python may not write, every process would compile what it imports.
.PHONY: compiled
compiled: $(READY)
	@$(PYTHON) -m compileall -q src

$(JARS): tests/oracle/pom.xml $(wildcard tests/services/*-pom.xml) | $(READY)
	@echo "Getting Iceberg Java, Kafka and MariaDB for the tests"
	@$(PYTHON) -m tests.support.jars
	@touch $@

$(READY): requirements.lock requirements-java.lock pyproject.toml tools/bootstrap
	@tools/bootstrap $(VENV)
	@touch $@
