# `make demo` and `make test` do everything on a fresh machine: Python 3.11 and pip only.
PYTHON ?= python3
VENV := .venv
QUANTIZE := .venv-quantize
RUN := $(VENV)/bin/python
PIP := install -q --disable-pip-version-check

.PHONY: demo test test-slow test-stock test-fork lint fork setup

demo: setup
	$(RUN) benchmark/demo.py

# Three processes: the registered tests run patched, the unit tests of specpack do not,
# and the server tests want the memory to themselves.
test: setup
	$(RUN) -m pytest -q test/unit
	$(RUN) -m pytest -q test/registered
	$(RUN) -m pytest -q test/server -m "not slow"

# Servers that take thousands of steps, and controls beside them.
test-slow: setup
	$(RUN) -m pytest -q test/server -m slow

test-stock: setup
	$(RUN) test/stock.py

lint: setup
	PATH=$(CURDIR)/$(VENV)/bin:$$PATH pre-commit run --all-files

# The series as commits on the release in build/sglang, and a wheel of that in build.
fork: setup
	$(RUN) -m pip download -q --disable-pip-version-check --no-deps --dest build sglang==0.5.23
	$(RUN) -m specpack.export.fork build/sglang-0.5.23-*.whl build/sglang

# The fork with no plugin but the CPU runtime: the travelling tests, and two server rows.
test-fork: fork
	PYTHONPATH=build/sglang/python SGLANG_USE_CPU_ENGINE=1 SGLANG_PLUGINS=cpu-reference \
		$(RUN) -m pytest -q test/registered
	$(RUN) -m pytest -q test/fork

setup: $(VENV)/.ready $(QUANTIZE)/.ready

# --no-deps: SGLang's own requirements bring sglang-kernel, which cannot be imported
# without a CUDA driver; requirements/cpu.txt holds what the CPU engine imports.
$(VENV)/.ready: requirements/cpu.txt requirements/dev.txt pyproject.toml python/cpu_reference/pyproject.toml
	@echo "setting up $(VENV): about 5 minutes, 7 GB"
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip $(PIP) -r requirements/cpu.txt -r requirements/dev.txt
	$(RUN) -m pip $(PIP) --no-deps sglang==0.5.23
	$(RUN) -m pip $(PIP) -e .
	$(RUN) -m pip $(PIP) --no-deps -e python/cpu_reference
	@touch $@

# llm-compressor pins a compressed-tensors and a transformers that SGLang cannot use.
$(QUANTIZE)/.ready: requirements/quantize.txt
	@echo "setting up $(QUANTIZE): about 2 minutes, 1.5 GB"
	$(PYTHON) -m venv $(QUANTIZE)
	$(QUANTIZE)/bin/python -m pip $(PIP) -r requirements/quantize.txt
	@touch $@
