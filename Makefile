# Everything a developer types. Needs Python >= 3.11 and make; what else is needed is installed into $(VENV).
#
#   make demo ARGS="--epochs 3"      arguments for the command behind a target
#   make test PYTHON=python3.13      another interpreter for a new environment
#   make test JOBS=0                 one test after the other
#   make check VENV=/some/venv       another environment

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# How many tests run at a time, on two cores: many wait, for other processes or for time;
# 0: one after the other and in one process, as debuggers need it.
JOBS ?= 3
BIN := $(VENV)/bin
INPROCESS_TRAIN := $(addprefix tests/train/test_,strategies.py loaders.py train_collective.py)
INPROCESS_TESTS := tests/core tests/kernel tests/util $(INPROCESS_TRAIN)
# Clusters of several nodes, Ray's client, other people's trainers, each framework with each strategy: minutes each.
LONG_TESTS := tests/matrix $(addprefix tests/engine/ray/test_,client.py cluster.py joining.py) $(addprefix tests/train/test_,cluster.py frameworks.py horovod.py) tests/ps/test_nodes.py
# All of the core on Ray is a part of `make parity`.
RAY_TESTS := $(addprefix tests/core/test_,ray_program.py options.py dag.py)
# Those that draw examples: the same ones each time, but in test-long.
RANDOM_TESTS = $(shell grep -rl '^from hypothesis' tests --include='test_*.py')
# Those that import a framework, or ask whether it is there, when they are collected.
FRAMEWORK_TESTS = $(shell grep -rlE '^( *with .*|    )?(import|from) (torch|keras|jax|tensorflow|ray|optax|lightning|xgboost)\b|^[a-z_]+ = pytest.importorskip' tests --include='test_*.py')
# What they share is ordered by barriers, as on processors that show stores in any order.
MEMORY_TESTS := tests/collective/test_host_group.py $(addprefix tests/ps/test_,gate.py rows.py store.py synchronous.py)
PARITY_TESTS := tests/core tests/util tests/train tests/ps
# They have no row on the page, and take ten minutes.
NOT_PARITY := $(addprefix --ignore=tests/train/test_,disasters.py optimizer_oracle.py)
RESULTS ?= build/parity
PAGES := README.md $(wildcard docs/*.md docs/tutorials/*.md docs/coming_from/*.md)
NEWS_BASE ?= origin/main

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-all test-long parity parity-local parity-inprocess parity-ray parity-page frameworks check format format-check lint types imports ages news docs doctest site dist wheel-test bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# -- environments: a stamp a group of requirements, so that nothing is installed twice ---------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Hocket needs Python 3.11 or newer, this is %d.%d; try: make PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.pip: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'  # the first that knows groups
	@touch $@

$(VENV)/.demo: pyproject.toml constraints-dev.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt -e '.[demo]'
	@touch $@

DEV_EXTRAS := dashboard,data,demo,jax,keras,lightning,notebook,prometheus,ray,top,transformers,tune

$(VENV)/.dev: pyproject.toml constraints-dev.txt | $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt -e '.[$(DEV_EXTRAS)]' --group dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt --no-deps tf-keras
	@touch $@ $(VENV)/.demo

$(VENV)/.spark: pyproject.toml constraints-dev.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt -e '.[spark]'
	@touch $@

$(VENV)/.services: pyproject.toml constraints-dev.txt | $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt --group services
	@touch $@

$(VENV)/.browser: pyproject.toml constraints-dev.txt | $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt --group browser
	@touch $@

$(VENV)/.site: pyproject.toml constraints-dev.txt | $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt -e . --group site
	@touch $@

$(VENV)/.release: pyproject.toml constraints-dev.txt | $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt --group release
	@touch $@

$(VENV)/.bench: pyproject.toml constraints-dev.txt | $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt -e '.[ray]' --group bench
	@touch $@

# -- what to run -------------------------------------------------------------------------------------------------------

demo: $(VENV)/.demo  ## train a real model on two workers
	$(BIN)/hocket demo $(ARGS)

# In order, since the tests that start a Ray come last; tests/conftest.py says what stays together.
AT_A_TIME := -n $(JOBS) --no-loadscope-reorder
# Tests start thousands of processes, and each would compile what it imports: not all of them keep bytecode.
export PYTHONDONTWRITEBYTECODE :=
# Ray runs its workers at a niceness of 15: whatever runs beside takes their time, and their tests wait.
export RAY_worker_niceness := 0
COMPILE := -$(BIN)/python -m compileall -q src tests

# It names and ends what hangs; see the file.
PYTEST := $(BIN)/python tools/watch_tests.py --

test: $(VENV)/.dev  ## run the tests of each room on the local engine, JOBS=3 at a time (8 minutes)
	$(COMPILE)
	$(PYTEST) $(AT_A_TIME) -m 'not long and not thorough' $(addprefix --ignore=,$(LONG_TESTS)) $(ARGS)

test-fast: $(VENV)/.dev  ## those that need no framework and wait for little, for each edit (2 minutes)
	$(PYTEST) $(AT_A_TIME) -m 'not long and not thorough and not slow and not unhurried' $(addprefix --ignore=,$(LONG_TESTS) $(FRAMEWORK_TESTS)) $(ARGS)

test-all: $(VENV)/.dev  ## those, the thorough ones, and the core's on the in-process engine: what CI runs (30 minutes)
	$(COMPILE)
	$(PYTEST) $(AT_A_TIME) -m 'not long' $(addprefix --ignore=,$(LONG_TESTS)) $(ARGS)
	HOCKET_ENGINE=inprocess $(PYTEST) $(AT_A_TIME) -m 'not long' $(INPROCESS_TESTS) $(ARGS)

test-long: $(VENV)/.dev $(VENV)/.spark $(VENV)/.services $(VENV)/.browser  ## the tests that take long, more of Ray, of shared memory
	$(COMPILE)
	$(PYTEST) $(LONG_TESTS) $(ARGS)
	$(PYTEST) -m long $(addprefix --ignore=,$(LONG_TESTS)) $(ARGS)
	HOCKET_ENGINE=ray $(PYTEST) $(RAY_TESTS) $(ARGS)
	HOCKET_WEAK_MEMORY=1 $(PYTEST) $(MEMORY_TESTS) $(ARGS)
	HOCKET_RANDOM_TESTS=1 $(PYTEST) $(AT_A_TIME) -m 'not long' $(RANDOM_TESTS) $(ARGS)

parity: $(addprefix parity-,local inprocess ray page)  ## run the suites on each engine and write docs/parity.md (80 minutes; each part alone: parity-ray, ...)

PARITY_RUN = $(BIN)/python -m pytest -q -o junit_family=xunit2 -o cache_dir=$(abspath $(RESULTS))/$*-cache
PARITY_CLASS_local := -k TestLocal
PARITY_CLASS_inprocess := -k TestInProcess
PARITY_CONTRACT_ray := tests/engine/ray/test_contract.py

# parity-ray goes alone: an hour of tests with time-outs, for all of both cores.
parity-local parity-inprocess parity-ray: parity-%: $(VENV)/.dev  ## the part of one engine: 20 minutes, 3, 60; what fails is run twice
	@mkdir -p $(RESULTS) && rm -rf $(addprefix $(RESULTS)/$*-,core.xml util.xml train.xml ps.xml contract.xml again.xml cache)
	-for suite in $(PARITY_TESTS); do \
		paths=$$suite; [ $*-$$suite = inprocess-tests/train ] && paths="$(INPROCESS_TRAIN)"; \
		HOCKET_ENGINE=$* $(PARITY_RUN) $$paths $(NOT_PARITY) --junit-xml=$(RESULTS)/$*-$$(basename $$suite).xml $(ARGS); \
	done
	-$(PARITY_RUN) $(or $(PARITY_CONTRACT_$*),tests/engine/test_contract.py) $(PARITY_CLASS_$*) --junit-xml=$(RESULTS)/$*-contract.xml
	-HOCKET_ENGINE=$* $(PARITY_RUN) $(PARITY_TESTS) $(NOT_PARITY) --last-failed --last-failed-no-failures=none --junit-xml=$(RESULTS)/$*-again.xml

parity-page: $(VENV)/.dev  ## write docs/parity.md from what the parts have found
	$(BIN)/python tools/parity.py $(RESULTS) docs/parity.md

frameworks: $(VENV)/.dev  ## run each framework with each strategy on both engines and write docs/frameworks.md (five minutes)
	@mkdir -p $(RESULTS)
	-for engine in local ray; do \
		HOCKET_ENGINE=$$engine $(BIN)/python -m pytest tests/matrix -q -o junit_family=xunit1 \
			--junit-xml=$(RESULTS)/$$engine-matrix.xml $(ARGS); \
	done
	$(BIN)/python tools/frameworks.py $(RESULTS) docs/frameworks.md

check: format-check lint types imports ages news docs  ## everything but the tests

format: $(VENV)/.dev  ## rewrite the sources as format-check and lint want them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

format-check: $(VENV)/.dev  ## the formatter has nothing to change
	$(BIN)/ruff format --check .

lint: $(VENV)/.dev  ## ruff, and plain prose on the pages and at the head of docstrings
	$(BIN)/ruff check .
	$(BIN)/python tools/prose.py $(PAGES) CONTRIBUTING.md RELEASING.md $(wildcard docs/design/*.md) src

types: $(VENV)/.dev  ## mypy, strict
	$(BIN)/mypy

imports: $(VENV)/.dev  ## imports point down, none hides in a function, packages name their modules, classes and folders are small
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/check_imports.py
	$(BIN)/python tools/check_rooms.py
	$(BIN)/python tools/check_house.py

ages: $(VENV)/.dev  ## pages that were made from results are not too old
	$(BIN)/python tools/ages.py

news: $(VENV)/.dev  ## the news fragments are well formed, and a branch has one
	$(BIN)/towncrier build --draft --version unreleased >/dev/null
	@if git rev-parse --quiet --verify $(NEWS_BASE) >/dev/null; then \
		$(BIN)/towncrier check --compare-with $(NEWS_BASE); \
	fi

docs: doctest  ## run the code blocks of the pages and the doctests
	$(BIN)/python tools/run_docs.py $(PAGES)

doctest: $(VENV)/.dev  ## run the examples in docstrings
	$(BIN)/python -m pytest --doctest-modules --quiet src || [ $$? -eq 5 ]  # 5: there are none

site: $(VENV)/.site  ## build the documentation as a site in build/site; a dead link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

dist: $(VENV)/.release  ## build wheel and sdist in dist/: make dist URL=https://... for the README's links
	$(BIN)/python tools/dist.py $(URL)

wheel-test: $(VENV)/.release  ## try the wheel with each extra alone, in clean environments (20 minutes; ARGS="data tune" for some)
	$(BIN)/python tools/try_wheel.py $(ARGS)

bench: $(VENV)/.bench  ## measure beside Ray, the standard library, loky and Dask, on an idle machine
	$(BIN)/python benchmarks/all.py $(ARGS)

clean:  ## remove caches and the environment
	rm -rf .venv build dist src/*.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
