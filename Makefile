# Every target makes what it needs; `make demo` and `make test` work on a fresh clone.

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?= -n auto
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO ?= results/demo

.PHONY: help demo setup test test-fast check format wheel benchmark clean

help:
	@echo "make demo       install, then match rates and greedy decoding on embedded parts"
	@echo "make test       all tests"
	@echo "make test-fast  tests without those marked slow"
	@echo "make check      ruff and strict mypy"
	@echo "make benchmark  the figures of the README: greedy and probing against generate()"
	@echo "make wheel      build the wheel into dist/"

setup: $(READY)

# torch goes first and alone: where a CPU build is at hand pip takes it, and nothing that
# is installed afterwards replaces it by one with several GB of CUDA libraries.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(PIP_ARGS) --constraint constraints.txt torch
	$(BIN)/pip install --quiet $(PIP_ARGS) --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

demo: $(READY)
	rm -rf $(DEMO)
	$(BIN)/ppdbench probe --offline --task gsm8k --task squad --limit 8 --max-new-tokens 64 \
	    --show-example 0 --plot $(DEMO)/match-rates.png --out $(DEMO)/probe
	$(BIN)/ppdbench theory --run $(DEMO)/probe -k 3
	$(BIN)/ppdbench decode --offline --method greedy --task gsm8k --task squad --limit 8 \
	    --max-new-tokens 64 --out $(DEMO)/decode
	@echo "written: $(DEMO)/"

test: $(READY)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-fast: $(READY)
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(READY)
	$(BIN)/python -m benchmarks.probing
	$(BIN)/ppdbench env --baseline --model synthetic:llama-20m
	$(BIN)/ppdbench env --baseline --model synthetic:llama-20m --dtype bfloat16

wheel: $(READY)
	$(BIN)/python -m build --wheel --outdir dist .

clean:
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache
