# Bare `make` prints this help. Every target sets up what it needs in .venv.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder
SHELL  := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
export PYTHONDONTWRITEBYTECODE := # else every process compiles all files again, and every assertion
.PHONY: help setup demo test test-slow test-browser mutants lint type fmt bench docs clean

help: ## print this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), sys.version' || \
	  { echo "softdex needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "python3-venv is missing: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check '$(TORCH)'
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,bench]'
	@touch $@

setup: $(STAMP) ## make .venv with softdex in it (TORCH=... chooses another torch build)

demo: $(STAMP) ## a world with a known best answer, recipes against it, a report
	@$(BIN)/softdex demo

test: $(STAMP) ## tests of everything (ARGS=... goes to pytest)
	@$(PYTEST) -m "not slow and not browser" $(ARGS)

test-slow: $(STAMP) ## longer trainings, more seeds, large real data
	@$(PYTEST) -m "slow and not browser" $(ARGS)

test-browser: $(STAMP) ## the page in a browser: Chromium, of the distribution or in CHROMIUM
	@$(BIN)/python -m pytest -q -m browser tests/browser $(ARGS)

mutants: $(STAMP) ## put single faults into a copy and count those that the tests find (ARGS="--only mf.py --sample 20")
	@$(BIN)/python tools/mutants.py $(ARGS)

lint: $(STAMP) ## style
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

type: $(STAMP) ## types
	@$(BIN)/mypy

fmt: $(STAMP) ## format and mend what can be mended
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench: $(STAMP) ## every benchmark that needs no arguments (ARGS=--tiny: all of them, in seconds each)
	@for script in bench/[a-z]*.py; do $(BIN)/python $$script $(ARGS) || test $$? -eq 2; done

docs: $(STAMP) ## run every example of README, docs and docstrings
	@$(BIN)/python -m pytest -q tests/readme $(ARGS)

clean: ## remove .venv and caches
	@rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
