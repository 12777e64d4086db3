# Everything a person types stands here; each target sets up what it lacks.
PYTHON ?= python3
VENV := .venv
OLD := .venv-ipykernel6
FRAMEWORKS := .venv-frameworks
BIN := $(VENV)/bin
NPM := labextension/node_modules/.package-lock.json
PANEL := jupyter_ext/gpulayer_jupyter/labextension/static/third-party-licenses.json
PANEL_SOURCE := $(shell find labextension/src labextension/style -type f) labextension/package.json labextension/tsconfig.json

# interpreters that tests are led to
ENVIRONMENTS := GPULAYER_TEST_IPYKERNEL6=$(abspath $(OLD))/bin/python GPULAYER_TEST_FRAMEWORKS=$(abspath $(FRAMEWORKS))/bin/python

.PHONY: demo lab test test-all setup environments system clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      install, then run notebooks/quickstart.ipynb headless on two workers, and commands in a terminal"
	@echo "make lab       JupyterLab with the panel and a worker on this machine, ready to type in"
	@echo "make test      everything the tests need, then the tests; prints the seconds of each part"
	@echo "make test-all  the same with every combination"
	@echo "make clean     remove the environments and caches"

$(NPM): labextension/package-lock.json
	cd labextension && npm ci --no-audit --no-fund --loglevel=error

$(PANEL): $(NPM) $(PANEL_SOURCE)
	cd labextension && npm run --silent build
	@touch $@

# the panel's files are copied into the environment, so a new build of it is installed anew
$(VENV)/.ready: pyproject.toml $(PANEL)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# the oldest ipykernel that cells may run on, in an environment with nothing of ours
$(OLD)/.ready: Makefile
	$(PYTHON) -m venv $(OLD)
	$(OLD)/bin/python -m pip install --quiet --disable-pip-version-check 'ipykernel==6.29.*' ipywidgets tqdm
	@touch $@

# frameworks for the tests of their probes, all for CPUs; torch first: what depends on it would bring another build
$(FRAMEWORKS)/.ready: Makefile
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check ipykernel 'mlx[cpu]' jax numpy
	@touch $@

# JupyterHub's proxy, for the tests
.node-tools/.ready: Makefile
	npm install --prefix .node-tools --no-audit --no-fund --loglevel=error configurable-http-proxy@5.3.0
	@touch $@

# beside each other: each waits for its packages most of the time
setup:
	@$(MAKE) --no-print-directory --jobs 3 environments

environments: $(VENV)/.ready $(OLD)/.ready $(FRAMEWORKS)/.ready .node-tools/.ready system

system:
	@tests/system.sh

demo: $(VENV)/.ready
	$(BIN)/python notebooks/run.py notebooks/quickstart.ipynb
	$(BIN)/python examples/demo.py

lab: $(VENV)/.ready
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS) notebooks/quickstart.ipynb

test: setup
	$(ENVIRONMENTS) $(BIN)/python tests/run.py

test-all: setup
	$(ENVIRONMENTS) $(BIN)/python tests/run.py --all

clean:
	rm -rf $(VENV) $(OLD) $(FRAMEWORKS) .node-tools labextension/node_modules labextension/lib jupyter_ext/gpulayer_jupyter/labextension dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
