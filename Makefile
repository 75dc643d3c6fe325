# Everything runs in .venv, which the first target that needs it builds from uv.lock.
# Needed beforehand: make, Python 3.11 or later with its venv module, and a package index.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
PYTEST_ARGUMENTS ?=
SEEDS ?= 2000

# One environment, the one that make owns, whatever else is active in the caller's shell.
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/$(VENV)
# The interpreter that built .venv is the one to use: uv must not go looking for another, or download one.
export UV_PYTHON_DOWNLOADS := never
unexport VIRTUAL_ENV
# Without cached bytecode every process that a test starts compiles the whole library first.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-deep check bench bench-peers bench-workflows simulate docs services clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMP) ## Run some hundred jobs, kill a worker in the middle, and show that nothing was lost
	$(BIN)/tenure demo

test: check ## Run the checks, then a representative part of every layer of tests (under 10 minutes)
	$(PYTEST) -m "not slow and not deep" $(PYTEST_ARGUMENTS)

test-deep: $(STAMP) ## Run the rest: all crash points, mutants and seeds, PgBouncer, PostgreSQL 16
	$(PYTEST) -m "deep and not slow" $(PYTEST_ARGUMENTS)
	TENURE_TEST_PG_VERSION=16 $(PYTEST) -m "not slow and not deep" tests/stores -k postgres $(PYTEST_ARGUMENTS)

check: $(STAMP) ## Lint, formatting, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(STAMP) ## Measure every workload on SQLite and PostgreSQL; results in build/bench
	$(BIN)/python -m benchmarks.suite

bench-peers: $(STAMP) ## Measure the same work with other libraries, each in an environment of its own
	$(BIN)/python -m benchmarks.peers

bench-workflows: $(STAMP) ## Measure workflows beside DBOS, Absurd and pgtask, each in an environment of its own
	$(BIN)/python -m benchmarks.workflows

simulate: $(STAMP) ## Run the workers on virtual time with seeded faults (SEEDS=2000)
	$(BIN)/python -m simulation --seeds $(SEEDS) --processes 2

docs: $(STAMP) ## Write the generated pages of docs/
	$(BIN)/python -m tools.lifecycle_page
	$(BIN)/python -m tools.requirements_page
	$(BIN)/python -m tools.reference_pages
	$(BIN)/python -m tools.asyncapi_page

services: ## Install what some tests need from Debian's packages (root only): pgbouncer, strace
	@missing=; \
	command -v pgbouncer >/dev/null || test -x /usr/sbin/pgbouncer || missing="pgbouncer"; \
	command -v strace >/dev/null || missing="$$missing strace"; \
	if test -z "$$missing"; then \
		echo "pgbouncer and strace are there already; nothing to do."; \
	elif test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null; then \
		echo "This needs root and apt-get. Without $$missing some tests are skipped, and the test summary counts them." >&2; \
		exit 1; \
	else \
		echo "Updating the package lists, then installing $$missing. The tests start a pgbouncer of their own, not the service."; \
		apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $$missing; \
	fi

clean: ## Remove the environment and all caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is newer than what it was made from only after a whole install, so a broken one is begun again.
$(STAMP): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tenure needs Python 3.11 or later; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	$(BIN)/uv sync --frozen --all-extras --inexact --python $(BIN)/python
	@touch $@
