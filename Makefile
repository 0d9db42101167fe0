# Every target makes its own environment first; nothing else needs to be installed but Python.

VENV ?= .venv
ZOO ?= .zoo
PYTHON ?= python3
ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ZOO_STAMP := $(ZOO)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test zoo lint format bench clean

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# torch brings libgomp, paddle brings libiomp5. In one process their idle threads spin against each other.
demo test zoo bench: export OMP_WAIT_POLICY := PASSIVE
demo test zoo bench: export KMP_BLOCKTIME := 0

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(STAMP)  ## compare a small pair of models and show the report
	$(BIN)/padiff demo $(ARGS)

test: $(STAMP)  ## run the tests in two processes; ARGS="-k name" passes options on
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

zoo: $(ZOO_STAMP)  ## pair models of other libraries, which it installs, at real depth
	PADIFF_ZOO=$(abspath $(ZOO)) $(ZOO)/bin/python -m pytest -W ignore tests/zoo $(ARGS)

lint: $(STAMP)  ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## fix style and formatting in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## run the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

clean:  ## remove caches, build output and logs; the environment stays
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis padiff_log padiff_dump
	for folder in src tests benchmarks examples; do \
		if [ -d $$folder ]; then find $$folder -name __pycache__ -type d -prune -exec rm -rf {} +; fi; \
	done

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $@

# Without dependencies: what they ask for contradicts itself, and what they need is listed. Two share names with the
# others and get folders of their own.
$(ZOO_STAMP): pyproject.toml constraints.txt constraints-zoo.txt
	test -x $(ZOO)/bin/python || $(PYTHON) -m venv $(ZOO)
	$(ZOO)/bin/python -m pip install -q -c constraints.txt -e ".[all,test]" PyYAML
	$(ZOO)/bin/python -m pip install -q --no-deps -r constraints-zoo.txt
	$(ZOO)/bin/python -m pip install -q --no-deps --upgrade --target=$(ZOO)/paddlenlp paddlenlp==3.0.0b4 aistudio-sdk==0.2.6
	$(ZOO)/bin/python -m pip install -q --no-deps --upgrade --target=$(ZOO)/paddleclas paddleclas==2.6.0
	touch $@
