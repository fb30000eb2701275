# Every target does its own set-up: Python packages in .venv, a Java in .tools if there is none.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLASSES := $(VENV)/classes.jsa
# `make demo PYTHON=/path/to/python` uses that one.
PYTHON ?= $(shell for v in 13 12 11 10; do for p in python3.$$v python3 python; do \
	"$$p" -c "import sys, ensurepip; sys.exit(sys.version_info[:2] != (3, $$v))" 2>/dev/null && { echo "$$p"; exit; }; done; done)
# Sets JAVA_HOME for the rest of a recipe's line.
JAVA := JAVA_HOME="$$($(BIN)/python .ci/java.py)" || exit 1; export JAVA_HOME;
PYTEST := $(BIN)/python -m pytest -q
# Of the tests, at once; each with a Spark wants three gigabytes.
export JOBS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); [ $$n -lt 4 ] && echo 2 || echo 4)
FILES := -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=20
EFFORT ?= 0.7
ROWS :=
WORDS :=

.PHONY: help demo quick test test-full mutants matrix check docs bench soak clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{ printf "  make %-9s %s\n", $$1, $$2 }'

demo: $(STAMP) ## See it work: a project, a database, an HTTP API, and a push of exactly what changed
	@$(JAVA) exec $(BIN)/python examples/demo.py .demo

quick: $(STAMP) ## What to run before each commit: pure logic, under a minute
	@EFFORT=0.03 $(PYTEST) -n $$(($(JOBS) + 1)) --dist worksteal tests/quick

test: check $(CLASSES) ## Everything that must pass: the checks, then each part for real at least once
	@$(JAVA) EFFORT=0.15 $(PYTEST) $(FILES) -m "not full" tests/spark tests/servers tests/quick examples/sink

test-full: check $(CLASSES) ## Before a release: all campaigns, a third of the mutants and of the other versions; EFFORT=3 searches longer
	@$(JAVA) EFFORT=$(EFFORT) $(PYTEST) $(FILES) tests/full tests/spark tests/servers tests/quick examples/sink
	@$(JAVA) $(BIN)/python .ci/mutants.py --third
	@$(JAVA) $(BIN)/python .ci/matrix.py --third
	@$(BIN)/python -m tests.full.soak --seconds 60

mutants: $(CLASSES) ## Plant the faults of tests/mutants.yml, one at a time: a test must notice each; or WORDS=ledger
	@$(JAVA) exec $(BIN)/python .ci/mutants.py $(WORDS)

matrix: $(STAMP) ## A few tests with other versions of Spark, Delta Lake and dbt: all rows, or ROWS=spark-4.0
	@$(JAVA) exec $(BIN)/python .ci/matrix.py $(ROWS)

check: $(STAMP) ## Lint, format, types, layers, and the dbt project without deprecations
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=examples:examples/sink $(BIN)/mypy examples/demo.py examples/crm.py examples/sink examples/excel/pyspark_excel.py .ci/java.py .ci/parse.py .ci/reference.py .ci/guarantees.py .ci/matrix.py .ci/mutants.py
	$(BIN)/lint-imports --no-cache
	$(BIN)/python .ci/parse.py

docs: $(STAMP) ## Write docs/reference.md from the code, and docs/guarantees.md from the tests
	$(BIN)/python .ci/reference.py
	$(BIN)/python .ci/guarantees.py

bench: $(STAMP) ## Measure: tests/benchmarks; ARGS=--profile shows where the time of a warm run goes
	@$(JAVA) exec $(BIN)/python -m tests.benchmarks.bench $(ARGS)

soak: $(STAMP) ## Kill pushes and trouble them at random for ten minutes, or SECONDS=60; SEED=1 repeats a campaign
	$(BIN)/python -m tests.full.soak --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

clean: ## Remove everything that the other targets made
	rm -rf $(VENV) .demo .bench .matrix .mutants .tools build dist
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CLASSES): $(STAMP)
	@$(JAVA) $(BIN)/python -m tests.support.class_archive

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "There is no Python 3.10 to 3.13 with venv on PATH: install one, or name it: make PYTHON=..."; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON), once. It takes a few minutes ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
