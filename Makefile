# Everything a person types stands here; each target sets up what it lacks.
PYTHON ?= python3
VENV := .venv
OLD := .venv-ipykernel6
BIN := $(VENV)/bin

.PHONY: demo test test-all setup clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      install, then run notebooks/quickstart.ipynb headless on two workers"
	@echo "make test      everything the tests need, then the tests; prints the seconds of each part"
	@echo "make test-all  the same with every combination"
	@echo "make clean     remove the environments and caches"

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# the oldest ipykernel that cells may run on, in an environment with nothing of ours
$(OLD)/.ready:
	$(PYTHON) -m venv $(OLD)
	$(OLD)/bin/python -m pip install --quiet --disable-pip-version-check 'ipykernel==6.29.*'
	@touch $@

setup: $(VENV)/.ready $(OLD)/.ready
	@tests/system.sh

demo: $(VENV)/.ready
	$(BIN)/python notebooks/run.py notebooks/quickstart.ipynb

test: setup
	GPULAYER_TEST_IPYKERNEL6=$(abspath $(OLD))/bin/python $(BIN)/python tests/run.py

test-all: setup
	GPULAYER_TEST_IPYKERNEL6=$(abspath $(OLD))/bin/python $(BIN)/python tests/run.py --all

clean:
	rm -rf $(VENV) $(OLD) dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
