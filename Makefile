# make check, make test: all that a change must pass. Everything is set up by itself, in .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: explore check test test-slow test-gpu bench format clean

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Shapes are checked in the first run; compiled code runs without the checks, in the second.
test: $(STAMP)
	$(BIN)/pytest -n 2 --jaxtyping-packages=pellucid,beartype.beartype -m "not slow and not weights and not gpu" --ignore=tests/compile
	$(BIN)/pytest -n 2 -m "not slow and not weights and not gpu" tests/compile

test-slow: $(STAMP)
	$(BIN)/pytest -m "slow or weights"

test-gpu: $(STAMP)
	$(BIN)/pytest -m gpu

bench: $(STAMP)
	@test -n "$(NAME)" || { echo "which one? make bench NAME=..., one of: $(notdir $(basename $(wildcard benchmarks/*.py)))"; exit 2; }
	$(BIN)/python -m benchmarks.$(NAME) $(ARGS)

explore: $(STAMP)
	$(BIN)/pellucid explore $(MODEL)

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# torch comes first and pinned: a range would pull a build with CUDA packages of several gigabytes.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,peers]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
