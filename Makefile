# Everything is run from the project's own virtual environment, which `make setup` makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: help setup check lint pure node test test-busy explore demo experiments bench bench-regulation \
	slow-test slow references fuzz campaign disk-test vm-test requirements format clean

# Compiled tests are kept, so that only the first run pays for them.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make check    ruff, mypy, import contracts and the tests that start no process (2 minutes)"
	@echo "make test     the gate: make check and the tests with real processes (5 minutes)"
	@echo "make test-busy  the gate beside LOOPS=4 busy loops, RUNS=2 times in a row"
	@echo "make demo     real programs past a memory limit and without one, all at once and regulated (at most 90 s)"
	@echo "make references  what the product did when its references were written; WRITE=1 writes them anew (3 minutes)"
	@echo "make slow-test  all of the following, which can be run alone:"
	@echo "  make slow       tests that take long for what they show (8 minutes)"
	@echo "  make explore    the property tests with other examples: SEED=N for the same again (2 minutes)"
	@echo "  make fuzz       100,000 submissions and 10,000 requests that are wrong; the API by its own schema (4 minutes)"
	@echo "  make campaign   kills at every step and at random beside thousands of operations (7 minutes)"
	@echo "  make disk-test  calibration and comparisons on an imitated spinning disk (3 minutes; root, nbdkit, fuse3, gcc)"
	@echo "  make vm-test    units, users and sockets on a virtual server with four sockets (40 minutes; root, qemu, mmdebstrap, gcc)"
	@echo "make experiments   every published experiment, all cores; writes sim/README.md"
	@echo "make bench    how fast the scheduler is, beside its peers; ARGS='--quick' (5 minutes, 1)"
	@echo "make bench-regulation   real jobs with and without regulation; BENCH=--quick (12 minutes), --help"
	@echo "make requirements   requirements.txt anew, with hashes from PyPI, after a change of constraints.txt (4 minutes)"
	@echo "make setup    the virtual environment in .venv"
	@echo "make format   format the code"
	@echo "make clean    remove .venv and caches"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt hatch_build.py iodaemon/supervisor/launcher.c
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[test,sim]'
	@touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

pure: $(STAMP)
	$(BIN)/python -m pytest -n auto -m 'not node and $(GATE)'

# Real jobs mostly wait: four files at a time. A test that fails is tried again, and named at the
# end as RERUN: it is at fault, or the product is.
node: $(STAMP)
	$(BIN)/python -m pytest -n 4 --dist loadfile --reruns 2 -rfER --durations=25 -m 'node and $(GATE)'

GATE := not slow and not vm and not disk

check: lint pure

# Lint fills what processes leave idle.
test: pure
	@$(MAKE) --no-print-directory --jobs=2 lint node

LOOPS ?= 4
RUNS ?= 2

# What a busy machine does to the gate: each run has to be green.
test-busy: $(STAMP)
	for run in $$(seq $(RUNS)); do .ci/beside $(LOOPS) $(MAKE) test || exit 1; done

slow-test: slow explore fuzz campaign disk-test vm-test

slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'slow and not vm and not disk'

# A seed of its own each time, which it prints; the gate has the same examples every time.
explore: SEED ?= $(shell shuf -i 1-999999 -n 1)
explore: $(STAMP)
	$(BIN)/python -m pytest -n auto -m 'hypothesis and not node and not vm and not disk' \
		--hypothesis-profile=random --hypothesis-seed=$(SEED)

fuzz: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "schemathesis>=4.0"
	$(BIN)/python tests/daemon/fuzz_api.py
	IOD_FUZZED=10000 $(BIN)/python -m pytest tests/daemon/test_attacks.py -k 'any_submission or whatever_it_is_sent'

# Rows of all experiments, plans of recorded hours, answers of every route. ARGS="routes"
references: $(STAMP)
	@$(BIN)/python tests/references/references.py $(if $(WRITE),--write) $(ARGS)

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

# Rows and figures are kept in iod-sim/.
experiments: $(STAMP)
	$(BIN)/iod sim run --all
	$(BIN)/iod sim run --all --seed-sets 12
	$(BIN)/iod sim report --output sim/README.md

# Peers, measured where they are installed: task-spooler, parallel. ARGS="--quick", "--write"
bench: $(STAMP)
	@$(BIN)/python tests/bench/performance.py $(ARGS)

# Needs root and nbdkit, nbdkit-plugin-dev, libnbd-bin, fuse3, gcc. BENCH="--bed reread --rounds 1"
bench-regulation: $(STAMP)
	@$(BIN)/python tests/bench/regulation.py $(BENCH)

# Every fault point and thousands of random operations. ARGS="--operations 5000 --seed 1 --write"
campaign: $(STAMP)
	@$(BIN)/python tests/node/campaign/campaign.py $(ARGS)

# Needs root and nbdkit, nbdkit-plugin-dev, libnbd-bin, fuse3, gcc. The disk is everybody's: nothing beside it.
disk-test: $(STAMP)
	$(BIN)/python -m pytest -m disk tests/bench $(ARGS)

# Needs root and mmdebstrap, e2fsprogs, qemu-system-x86, seabios, gcc. ABOUT="units users", ARGS="-s"
vm-test: $(STAMP)
	$(BIN)/python -m pytest -m vm $(if $(ABOUT),$(ABOUT:%=tests/vm/test_vm_%.py),tests/vm) $(ARGS)

# What root installs on a server; asks PyPI for hashes and downloads no package.
requirements: $(STAMP)
	$(BIN)/python .ci/requirements

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis .import_linter_cache
