# make demo     a person steers and halts a real model's answer, in this terminal
# make dev      the server with the example graphs, for hand use
# make test     all tests
# make test-distributed    the tests on several processes, with PostgreSQL and Redis; sets up .venv-distributed
# make bench    all benchmarks, for an hour and a half; ARGS=--quick to see that they work, the names of some, or --help
# make check    format, lint, types, version against changelog
#
# Each of them sets up .venv first, once. Only Python 3.11 or newer and make are needed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install demo dev test test-distributed check format bench wheel clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DISTRIBUTED := .venv-distributed
DISTRIBUTED_STAMP := $(DISTRIBUTED)/.installed
SOURCES := extensions sdk_client graphs tests docs $(wildcard bench)
# The interpreter to make .venv with. Unset: the first of these that is 3.11 or newer and can make one.
PYTHON ?=
CANDIDATES := python3.11 python3.12 python3.13 python3.14 python3 python

# Without byte code each start of a server process takes seconds longer.
unexport PYTHONDONTWRITEBYTECODE
# A developer's own path would hide what the checkout is missing.
unexport PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export LANGGRAPH_CLI_NO_ANALYTICS := 1
export LANGGRAPH_NO_VERSION_CHECK := true

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

install: $(STAMP)

$(STAMP): pyproject.toml .ci/set_up
	@bash .ci/set_up $(VENV) $(STAMP) $(or $(PYTHON),$(CANDIDATES))

demo: $(STAMP)
	@$(BIN)/python docs/demo.py

dev: $(STAMP)
	@echo "Serving the graphs of langgraph.json. Ctrl-C ends it."
	@$(BIN)/python -m langgraph_cli dev --no-browser

test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

test-distributed: $(STAMP) $(DISTRIBUTED_STAMP)
	$(BIN)/python -m pytest --timeout 300 tests/distributed $(ARGS)

$(DISTRIBUTED_STAMP): pyproject.toml .ci/set_up_distributed | $(STAMP)
	@bash .ci/set_up_distributed $(BIN)/python $(DISTRIBUTED) $(DISTRIBUTED_STAMP)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/python -m pytest -q tests/test_packaging.py -k changelog

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m bench $(ARGS)

wheel: $(STAMP)
	$(BIN)/python -m pytest -q tests/test_packaging.py

clean:
	rm -rf $(VENV) $(DISTRIBUTED) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .langgraph_api
