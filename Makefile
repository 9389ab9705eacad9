# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
#
#   make demo          answer a question about a real photograph with a tiny checkpoint
#   make test          everything that CI runs
#   make test-gpu      the tests that need a CUDA GPU
#   make test-latest   the test suite with the newest transformers, in an environment of its own
#   make bench         measure the encoders, write benchmarks/results/, refresh README and page
#   make bench-startup what capturing both encoders of Qwen3-Omni takes: seconds and memory
#   make bench-serving graphs off against on through HTTP, write benchmarks/results/serving_*.json
#   make soak          five minutes of mixed traffic against a real server (CI: half a minute)
#   make test-aiperf   AIPerf against the embedded server, in an environment of its own
#   make fuzz-api      schemathesis against the embedded server: no input may give a 500
#   make schema        regenerate schemas/            make lint    linters and types only
#   make manifest      regenerate api_manifest.json   make clean   remove everything generated
#   make mutation      which small changes of graphs/ do its tests not notice? (an hour; not in CI)
#
# Variables:
#   PYTHON=python3.12                    interpreter that creates .venv
#   VENV_FLAGS=--system-site-packages    reuse an installed torch (a CUDA or vendor build)
#   SKIP_VENV=1                          use PYTHON as it is and install nothing
#   BENCH_FLAGS="--towers radio_h"       what `make bench` measures, see benchmarks/encoder.py
#   SOAK_FLAGS="--seconds 30"            see benchmarks/soak.py
#   AIPERF_FLAGS="--requests 64"         see benchmarks/aiperf_check.py
#   MUTATION_FLAGS="--only packer.py"    one file of graphs/, or any other flag of the script
#   TEST_WORKERS=4                       processes that `make test` spreads the tests over
#   MODEL=dir IMAGE=file QUICKSTART_FLAGS="..."    what `make demo` runs

PYTHON ?= python3
VENV ?= .venv
VENV_FLAGS ?=
SKIP_VENV ?=
MODEL ?= build/tiny_qwen3_vl
IMAGE ?=
BENCH_FLAGS ?=
QUICKSTART_FLAGS ?= --encoder_max_num_tokens 1024
PYTEST_FLAGS ?=
TEST_WORKERS ?= 2
MUTATION_FLAGS ?=
SOAK_FLAGS ?=
AIPERF_FLAGS ?=
aiperf_VERSION := 0.13.0
schemathesis_VERSION := 4.32.5

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.ONESHELL:
.PHONY: demo test test-gpu test-latest test-aiperf fuzz-api soak mutation bench bench-startup bench-serving schema\
    manifest lint checks clean help

# With an installed torch in sight its version is taken as it is, all other pins stay.
CONSTRAINTS := constraints.txt
ifneq ($(findstring --system-site-packages,$(VENV_FLAGS)),)
CONSTRAINTS := build/constraints-without-torch.txt
endif

ifneq ($(SKIP_VENV),)
PY := $(PYTHON)
export PYTHONPATH := $(CURDIR)
DEMO_ENV :=
DEV_ENV :=
else
PY := $(VENV)/bin/python
DEMO_ENV := $(VENV)/.demo-installed
DEV_ENV := $(VENV)/.dev-installed
endif

CLI := $(PY) -m tensorrt_llm_ext.cli

help:
	@sed -n '4,/^$$/s/^# \{0,1\}//p' Makefile

# ---------------------------------------------------------------------------- environments

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV_FLAGS) $(VENV)

build/constraints-without-torch.txt: constraints.txt
	mkdir -p build
	grep -v '^torch==' $< > $@

# Rebuilt when the requirements change. The version in __init__.py is read at install time.
$(VENV)/.%-installed: setup.py $(CONSTRAINTS) | $(VENV)/bin/python
	@echo "installing .[$*] into $(VENV) (minutes the first time: torch is large)"
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	    -c $(CONSTRAINTS) -e '.[$*]'
	touch $@

# --------------------------------------------------------------------------------- product

build/tiny_qwen3_vl/config.json: examples/make_tiny_checkpoint.py $(wildcard examples/tiny/*.py) $(DEMO_ENV)
	$(PY) examples/make_tiny_checkpoint.py --family qwen3_vl --out build/tiny_qwen3_vl

demo: $(DEMO_ENV) $(if $(filter build/tiny_qwen3_vl,$(MODEL)),build/tiny_qwen3_vl/config.json)
	@image='$(IMAGE)'
	if [ -z "$$image" ]; then
	    image=$$($(PY) -c 'import pathlib, sklearn.datasets as d; \
	        print(pathlib.Path(d.__file__).parent / "images" / "china.jpg")')
	fi
	set -x
	$(PY) examples/quickstart.py --model '$(MODEL)' --image "$$image" --require_replay \
	    $(QUICKSTART_FLAGS)

bench: $(DEV_ENV)
	$(PY) benchmarks/encoder.py $(BENCH_FLAGS)
	$(PY) scripts/render_results.py

bench-startup: $(DEV_ENV)
	$(PY) benchmarks/startup.py $(BENCH_FLAGS)
	$(PY) scripts/render_results.py

bench-serving: $(DEV_ENV)
	$(PY) benchmarks/serving.py $(BENCH_FLAGS)
	$(PY) scripts/render_results.py

# ------------------------------------------------------------------------------- generated

schema: $(DEV_ENV)
	$(CLI) schema

manifest: $(DEV_ENV)
	$(PY) scripts/api_manifest.py

# ---------------------------------------------------------------------------------- checks

lint: $(DEV_ENV)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

checks: $(DEV_ENV)
	$(CLI) schema --check
	$(PY) scripts/api_manifest.py --check
	$(PY) scripts/check_tensor_docs.py
	$(PY) scripts/render_results.py --check
	$(PY) scripts/serve_flags.py --check
	$(PY) -m interrogate -c pyproject.toml tensorrt_llm_ext

ALL_TESTS := -m pytest -m 'not gpu' -n $(TEST_WORKERS) --dist loadfile
test: lint checks
	OMP_NUM_THREADS=1 $(PY) $(ALL_TESTS) $(PYTEST_FLAGS)

test-gpu: $(DEV_ENV)
	$(PY) -c 'import sys, torch; torch.cuda.is_available() or sys.exit("torch finds no CUDA GPU")'
	$(PY) -m pytest -m gpu tests/gpu tests/integration $(PYTEST_FLAGS)

# Everything stays pinned but transformers and what its releases move along with.
LATEST := .venv-latest
test-latest: $(CONSTRAINTS)
	[ -x $(LATEST)/bin/python ] || $(PYTHON) -m venv $(VENV_FLAGS) $(LATEST)
	mkdir -p build
	grep -v -i -E '^(transformers|tokenizers|huggingface_hub|hf-xet|safetensors|typer)==' \
	    $(CONSTRAINTS) > build/constraints-latest.txt
	$(LATEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade \
	    --upgrade-strategy only-if-needed -c build/constraints-latest.txt -e '.[dev]' \
	    'transformers>=5.17,<6'
	$(LATEST)/bin/python -c 'import transformers; print("transformers", transformers.__version__)'
	OMP_NUM_THREADS=1 $(LATEST)/bin/python $(ALL_TESTS) $(PYTEST_FLAGS)

soak: $(DEV_ENV)
	$(PY) benchmarks/soak.py $(SOAK_FLAGS)

# Programs whose packages clash with ours live in environments of their own.
.venv-%/installed:
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check '$*==$($*_VERSION)'
	touch $@

test-aiperf: $(DEV_ENV) .venv-aiperf/installed
	$(PY) benchmarks/aiperf_check.py --aiperf $(CURDIR)/.venv-aiperf/bin/aiperf $(AIPERF_FLAGS)

fuzz-api: $(DEV_ENV) .venv-schemathesis/installed
	$(PY) benchmarks/fuzz_api.py --schemathesis $(CURDIR)/.venv-schemathesis/bin/schemathesis

mutation: $(DEV_ENV)
	OMP_NUM_THREADS=1 $(PY) scripts/mutation_test.py $(MUTATION_FLAGS)

clean:
	rm -rf .venv .venv-latest .venv-aiperf .venv-schemathesis build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
