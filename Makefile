.PHONY: help install run test test-all referees mutations check audit bench docs client wheels clean

PYTHON ?= python3
# Tests wait more than they compute, so more of them at once than there are cores of a small machine.
TESTS_AT_ONCE ?= 3
# They start dozens of processes: what Python compiles is kept.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed-to-run
STAMP := $(VENV)/.installed
KERNELS_STAMP := $(VENV)/.kernels-compiled
DEMO_KERNELS_STAMP := $(VENV)/.kernels-of-demo-compiled
TEST_STAMP := $(VENV)/.installed-for-tests
ALL_TESTS_STAMP := $(VENV)/.installed-for-all-tests
# Files keep their order: the long ones, of whole processes, begin first.
# Two threads of OpenMP in each process would wait for one another.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TESTS_AT_ONCE) --dist loadfile --no-loadscope-reorder

# Every target runs the tools of $(VENV); nothing is installed elsewhere.
help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(STAMP) $(KERNELS_STAMP)  ## what tests, checks and training need, too

# Pinned, with pip's own progress. Python compiles what it imports; all of it would take longer than the
# download.
PIP := $(BIN)/python -m pip install --no-compile --disable-pip-version-check -c constraints.txt

$(RUN_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'the service with console and plots, 0.5 GB'
	$(PIP) -e '.[console,plots]'
	@touch $@

# Those of sources that did not change are in the cache.
KERNEL_SOURCES := $(shell find model_core -name '*.py')
$(KERNELS_STAMP): $(RUN_STAMP) $(KERNEL_SOURCES)
	@echo 'kernels of the models, compiled for this processor: about a minute of all cores'
	$(BIN)/python -m model_core.compiled
	@touch $@

$(DEMO_KERNELS_STAMP): $(RUN_STAMP) $(KERNEL_SOURCES)
	@echo 'kernels of the two models of the demo and of the default one, compiled for this processor'
	$(BIN)/python -m model_core.compiled step beside explaining periods checksums plain gaussian averaged poisson
	@touch $@

$(TEST_STAMP): $(RUN_STAMP)
	@echo '1 of 2: torch, 0.75 GB (on Linux several GB with CUDA, unless TORCH_INDEX has builds for the CPU)'
	$(PIP) $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) torch
	@echo '2 of 2: training and tests, 0.8 GB'
	$(PIP) -e '.[console,plots,train,test]'
	@touch $@

$(STAMP): $(TEST_STAMP)
	@echo 'checks, 0.1 GB'
	$(PIP) -e '.[console,plots,train,test,dev]'
	@touch $@

$(ALL_TESTS_STAMP): $(STAMP)
	@echo 'what only long tests need, 0.45 GB'
	$(PIP) -e '.[console,plots,train,test,test-all,dev]'
	@touch $@

# The kernels of the other models are compiled meanwhile; what that says at its end stands in the log.
run: $(DEMO_KERNELS_STAMP)  ## start the service, stream both samples through it, keep serving
	@nice $(MAKE) --silent $(KERNELS_STAMP) | tail -n 1 & exec $(BIN)/moca demo

test: $(TEST_STAMP) $(KERNELS_STAMP)  ## the tests, but for the slow ones: five minutes or so on two cores
	$(PYTEST) -m "not slow"

test-all: $(ALL_TESTS_STAMP) $(KERNELS_STAMP)  ## every test: storms, clusters, Prometheus, wheels and the like: half an hour or so on two idle cores
	$(PYTEST) --hypothesis-profile=random

referees: $(ALL_TESTS_STAMP) $(KERNELS_STAMP)  ## what must not change, measured beside what was frozen: half an hour
	$(BIN)/python -m tests.referees $(REFEREES)

mutations: $(TEST_STAMP) $(KERNELS_STAMP)  ## whether the tests catch small defects, one at a time: ten minutes or so
	$(BIN)/python -m tests.mutations

check: install  ## what CI checks besides the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --severity-level medium --recursive service model_core moca_client training

audit: install  ## known vulnerabilities of the pinned versions; needs PyPI, and fails where it does not answer
	$(PIP) pip-audit
	$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

bench: $(RUN_STAMP) $(KERNELS_STAMP)  ## step time early and late; throughput beside a bare echo endpoint
	$(BIN)/moca bench step
	$(BIN)/moca bench serve

docs: $(TEST_STAMP)  ## the generated pages: reference, commands, settings, metrics, numbers
	$(BIN)/python docs/generate.py

client: install  ## the client's types of settings, made from the table of the model core
	$(BIN)/python deploy/packages/client_settings.py

DIST ?= dist
wheels: $(RUN_STAMP)  ## the wheels of moca-client, moca-core and moca-service, in dist/
	rm -f $(DIST)/moca_*.whl
	MOCA_RELEASE=1 $(BIN)/python -m pip wheel --disable-pip-version-check --no-deps -w $(DIST) \
		deploy/packages/client deploy/packages/core .

clean:  ## remove .venv and caches; data folders stay
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
