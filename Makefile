# `make demo` and `make test` need only Python 3.11 or newer and make: everything else is set up in .venv.

OLDEST := (3, 11)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
WORKERS ?= 2

# The first interpreter that is new enough; give another with `make PYTHON=/path/to/python demo`.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < $(OLDEST))' 2>/dev/null && { echo $$p; break; }; done)

# Every test worker is a process: a BLAS that starts its own threads in each only makes them wait for each other.
TEST_ENV := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 MPLBACKEND=Agg

.PHONY: help demo test check lint types slow bench docs clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    fit a real data set, print a table, save nestgp-demo.png"
	@echo "make test    run the tests (not the slow ones)"
	@echo "make check   ruff, mypy and the tests: what a change must pass"
	@echo "make slow    run the slow tests"
	@echo "make bench   run the benchmarks"
	@echo "make docs    build the documentation into site/"
	@echo "make clean   remove .venv and everything that was generated"

demo: $(VENV)/.stamp-demo
	@$(BIN)/nestgp demo

test: $(VENV)/.stamp-dev
	@$(TEST_ENV) $(BIN)/python -m pytest -q -n $(WORKERS)

check: lint types test

lint: $(VENV)/.stamp-dev
	@$(BIN)/ruff check .

types: $(VENV)/.stamp-dev
	@$(BIN)/mypy

slow: $(VENV)/.stamp-dev
	@$(TEST_ENV) $(BIN)/python -m pytest -q -n $(WORKERS) -m slow

bench: $(VENV)/.stamp-dev
	@$(BIN)/python -m benchmarks

docs: $(VENV)/.stamp-docs
	@$(BIN)/mkdocs build --strict --site-dir site
	@echo "documentation: site/index.html"

clean:
	rm -rf $(VENV) site build dist nestgp-demo.png .pytest_cache .mypy_cache .ruff_cache
	find src tests benchmarks experiments -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < $(OLDEST))' 2>/dev/null || { \
		echo "error: nestgp needs Python 3.11 or newer; found: $$($(or $(PYTHON),python3) --version 2>&1 || true)"; \
		echo "Install a newer Python, or name one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "error: $(PYTHON) -m venv failed (on Debian and Ubuntu: apt install python3-venv)"; exit 1; }

$(VENV)/.stamp-demo: pyproject.toml | $(BIN)/python
	@echo "installing nestgp with its command line and plots into $(VENV) (once)"
	@$(PIP) --editable '.[cli,plot]'
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml | $(BIN)/python
	@echo "installing nestgp and what its tests need into $(VENV) (once)"
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.stamp-demo

$(VENV)/.stamp-docs: pyproject.toml | $(BIN)/python
	@echo "installing nestgp and mkdocs into $(VENV) (once)"
	@$(PIP) --editable '.[docs]'
	@touch $@
