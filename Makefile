# make demo: install, then fine-tune a policy. make test: install, then the default test suite. Nothing is done twice.
PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
# Tests side by side, files whole, those first that start processes of their own (tests/conftest.py). These often wait:
# one worker more than there are cores. With more than a few they only wait for each other.
PYTEST_WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Each process that a test starts would compile the package and the tests once more.
unexport PYTHONDONTWRITEBYTECODE
RUN := $(VENV)/bin/
# torch goes first and alone: its pin decides which build is taken, and nothing after it may change that.
PIP := $(RUN)python -m pip install --quiet --constraint constraints.txt

# The distribution for the computers of robots, on which this one depends.
ROBOT := ./sims/embodied_rl_robot

# What runs in the Python environments of simulators, from 3.10 on.
FOREIGN := sims/embodied_rl_sims embodied_rl/interfaces $(addprefix embodied_rl/runtime/processes/,worker.py messages.py bootstrap.py)

.PHONY: demo test lint style types foreign_types packaging docs dist check clean

demo: $(VENV)/.core
	$(RUN)embodied-rl train experiment=demo

test: $(VENV)/.test
	$(RUN)python -m pytest --numprocesses $(PYTEST_WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: style types foreign_types

style: $(VENV)/.dev
	$(RUN)ruff check .
	$(RUN)ruff format --check .
	$(RUN)lint-imports

types: $(VENV)/.dev
	$(RUN)basedpyright --pythonpath $(RUN)python

foreign_types: $(VENV)/.dev
	$(RUN)basedpyright --pythonpath $(RUN)python --pythonversion 3.10 $(FOREIGN)

packaging: $(VENV)/.dev
	$(RUN)python -m pytest -m packaging tests/packaging

docs: $(VENV)/.dev
	$(RUN)sphinx-build --quiet --fail-on-warning --keep-going --builder html docs docs/_build

dist: $(VENV)/.core
	$(PIP) build hatchling
	for each in $(ROBOT) .; do $(RUN)python -m build --no-isolation --outdir dist $$each || exit; done

check: lint packaging docs test

clean:
	rm -rf $(VENV) dist

$(VENV)/.core: pyproject.toml constraints.txt hatch_build.py sims/embodied_rl_robot/pyproject.toml
	test -x $(RUN)python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable $(ROBOT) --editable '.[lerobot,lora,ray]'
	touch $@

$(VENV)/.test: $(VENV)/.core
	$(PIP) --editable $(ROBOT) --editable '.[test]'
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(PIP) --editable $(ROBOT) --editable '.[test,dev,docs]'
	touch $@
