# make demo     a person steers and halts a real model's answer, in this terminal
# make dev      the server with the example graphs, for hand use
# make test     all tests
# make test-distributed    the tests on several processes, with PostgreSQL and Redis; sets up .venv-distributed
# make test-line LINE=0.13    the tests on the server, on the newest langgraph-api of that line
# make bench    all benchmarks, for an hour and a half; ARGS=--quick to see that they work, the names of some, or --help
# make check    format, lint, types, version against changelog
#
# Each of them sets up .venv first, once. Only Python 3.11 or newer and make are needed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install demo dev test test-distributed test-line check format bench wheel clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DISTRIBUTED := .venv-distributed
DISTRIBUTED_STAMP := $(DISTRIBUTED)/.installed
# One of those that `extensions/midstream/_versions.py` names.
LINE ?= 0.11
LINE_VENV := .venv-line-$(LINE)
LINE_STAMP := $(LINE_VENV)/.installed
SERVER_TESTS := $(shell grep -lE 'DevServer|hosted_url|waiting_server' tests/test_*.py)
SOURCES := extensions sdk_client graphs tests docs $(wildcard bench)
# The interpreter to make .venv with. Unset: the first of these that is 3.11 or newer and can make one.
PYTHON ?=
# How many processes share the tests; a file's tests stay together, since they share a server. 0: this process alone.
WORKERS ?= 2
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
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

test-distributed: $(STAMP) $(DISTRIBUTED_STAMP)
	$(BIN)/python -m pytest --timeout 300 tests/distributed $(ARGS)

test-line: $(STAMP) $(LINE_STAMP)
	MIDSTREAM_SERVER_PYTHON=$(CURDIR)/$(LINE_VENV)/bin/python $(BIN)/python -m pytest $(SERVER_TESTS) $(ARGS)

$(LINE_STAMP): pyproject.toml .ci/set_up_line | $(STAMP)
	@bash .ci/set_up_line $(BIN)/python $(LINE) $(LINE_VENV) $(LINE_STAMP)

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
	rm -rf $(VENV) $(DISTRIBUTED) .venv-line-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .langgraph_api
