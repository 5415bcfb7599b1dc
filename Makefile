# The whole developer interface. `make demo` and `make test` set up everything they need.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
# Bytecode is kept, whatever the environment says: each of many processes would else compile all of it again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check bench bench-estimator bench-prune eval docs soak mutations clean setup

setup: $(STAMP)

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null 2>&1 && py=$(PYTHON) || py=python3; $$py -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pod-runtime needs Python 3.11 or newer: make demo PYTHON=/path/to/python3.11")'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[tokens,prices,test]'
	@touch $(STAMP)

# The main job, without a key: surveys about 200 files of the standard library through several context windows.
demo: $(STAMP)
	@$(BIN)/python benchmarks/demo.py

# On all cores, each file on one of them, those that are marked as slow first.
test: $(STAMP)
	@$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

check: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[check]'
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

bench: $(STAMP)
	@$(BIN)/python benchmarks/bench.py

# Token estimates against recorded sessions: make bench-estimator SESSIONS=FOLDER
bench-estimator: $(STAMP)
	@test -n "$(SESSIONS)" || { echo "name the folder of recorded sessions: make bench-estimator SESSIONS=FOLDER"; exit 2; }
	@$(BIN)/python benchmarks/estimator.py "$(SESSIONS)"

# What pruning costs and saves in money, against a simulated prefix cache.
bench-prune: $(STAMP)
	@$(BIN)/python benchmarks/prune_cost.py

# Eight long sessions under the policies off, warn and compact, against thresholds; no key, no network, about half a minute.
eval: $(STAMP)
	@$(BIN)/python -m benchmarks.evaluate

# Long fault runs: many random kills, two nodes on one PostgreSQL, a service of 200 pods, and each point of the sweeps of which
# the suite takes a share. Not part of `make test`.
soak: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@POD_SWEEP_WHOLE=1 $(BIN)/python -m pytest tests/soak tests/crash --override-ini testpaths=tests/soak

# Switches each important rule off in a copy of the tree and looks whether the tests notice. Not part of `make test`.
mutations: $(STAMP)
	@$(BIN)/python tests/mutations/run_mutations.py --sound
	@$(BIN)/python tests/mutations/run_mutations.py

docs: $(STAMP)
	@$(BIN)/python -m pod.docs

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache build dist *.egg-info
