# Everything happens in a local virtual environment, .venv; a fresh machine needs Python 3.11+ and make.
# A newer or differently named Python: make test PYTHON=python3.12

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
# Versions that the tests pass with. The newest that are allowed instead: make test LOCK=
LOCK ?= requirements.lock
LOCKED = $(if $(LOCK),--constraint $(LOCK))
# Tests run in two processes. What they share is compiled first, or both would do it. One process: make test PYTEST=-n0
PYTEST ?= -n 2 --dist loadgroup
# What the tests marked extras need. A smaller PyTorch, without CUDA: set PIP_EXTRA_INDEX_URL to PyTorch's index for CPUs.
EXTRAS ?= torch==2.13.0 safetensors gymnasium stable-baselines3 ray==2.60.0
# Triton's own client, whose generated messages cannot share a process with ours.
TRITONCLIENT ?= .venv-tritonclient
# What single benchmarks need besides: serve_chaos sends spans to a collector that is not there.
NEEDS_serve_chaos = opentelemetry-sdk opentelemetry-exporter-otlp-proto-http
# Those that can be run; what they share has no __main__ at the end of a line.
BENCHMARKS = $(sort $(basename $(notdir $(shell grep -l '__main__":$$' benchmarks/*.py))))

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-extras test-newest mutants bench wheel lint format proto lock clean

help: ## list the targets
	@echo 'targets:'
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name what; do \
		printf '  make %-12s %s\n' "$$name" "$$what"; done

venv: $(VENV)/.run $(VENV)/.dev ## make .venv with everything to run, test and plot (redone when pyproject.toml changes)

demo: $(VENV)/.run ## serve the zoo, drive a bursty load, show what is gained: a table and a plot (under two minutes)
	@$(BIN)/stretto demo

test: $(VENV)/.dev lint ## lint, types and tests
	@$(BIN)/python -m mypy
	@$(BIN)/stretto warm >/dev/null
	@$(BIN)/python -m pytest -q $(PYTEST)

test-extras: $(VENV)/.extras $(TRITONCLIENT)/.done ## tests that need PyTorch, Ray or Triton's client, installed first (large)
	@STRETTO_TRITONCLIENT_PYTHON='$(abspath $(TRITONCLIENT))/bin/python' $(BIN)/python -m pytest -q -m extras

# What users get: the wheel, with the newest of everything it allows, in an environment of its own. Nothing of the
# checkout's package is in reach. Another Python: make test-newest PYTHON=python3.13
NEWEST ?= .venv-newest
NEWEST_TESTS ?= tests/dispatch tests/api tests/client tests/cli/test_serve.py
test-newest: ## tests of the server against the built wheel, with the newest versions that it allows
	@rm -rf $(NEWEST) build/newest && mkdir -p build/newest/dist
	@$(PYTHON) -m venv $(NEWEST)
	@$(NEWEST)/bin/python -m pip --quiet wheel --no-deps --wheel-dir build/newest/dist .
	@$(NEWEST)/bin/python -m pip --quiet install "$$(ls build/newest/dist/*.whl)[plot,test]"
	@$(NEWEST)/bin/python -m pip list
	@git ls-files -z | grep -zv '^stretto/' | xargs -0 cp --parents --target-directory build/newest
	@cd build/newest && STRETTO_CACHE_DIR="$$PWD/cache" $(abspath $(NEWEST))/bin/stretto warm >/dev/null
	@cd build/newest && STRETTO_CACHE_DIR="$$PWD/cache" $(abspath $(NEWEST))/bin/python -m pytest -q $(PYTEST) $(NEWEST_TESTS)

mutants: $(VENV)/.dev ## change the rules one at a time and name the changes that no test notices: make mutants ARGS='--count 40'
	@$(BIN)/python tests/mutate.py $(ARGS)

ifeq ($(strip $(NAME)),)
bench: ## run one benchmark: make bench NAME=symphony_table4 (without NAME: list them)
	@echo 'make bench NAME=…, where NAME is one of:'
	@for name in $(BENCHMARKS); do echo "  $$name"; done
else
bench: $(VENV)/.run
	@test -f 'benchmarks/$(NAME).py' || { echo "there is no benchmark '$(NAME)'; make bench lists them" >&2; exit 1; }
	@$(if $(NEEDS_$(NAME)),$(PIP) install $(NEEDS_$(NAME)),true)
	@$(BIN)/python 'benchmarks/$(NAME).py' $(ARGS)
endif

wheel: $(VENV)/.run ## build a wheel into dist/ that brings its compiled code, for this platform and version of Python
	@$(PIP) install 'hatchling>=1.27'
	@STRETTO_WHEEL_CACHE=1 $(PIP) wheel --no-build-isolation --no-deps --wheel-dir dist .
	@ls dist

lint: $(VENV)/.dev ## ruff: rules and formatting, changes nothing
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .

format: $(VENV)/.dev ## ruff: put imports and formatting right
	@$(BIN)/python -m ruff check --fix .
	@$(BIN)/python -m ruff format .

lock: $(VENV)/.dev ## write the versions that are installed into requirements.lock
	@head -2 requirements.lock > requirements.new
	@$(BIN)/python -m pip freeze --exclude-editable >> requirements.new
	@mv requirements.new requirements.lock

proto: $(VENV)/.dev ## make the gRPC messages anew from their .proto file
	@$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. stretto/api/grpc/open_inference.proto

clean: ## remove .venv, caches and built files
	@rm -rf $(VENV) .venv-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .numba *.egg-info
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || \
		{ echo "Stretto needs Python 3.11 or newer; '$(PYTHON)' was not found. Name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Stretto needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make virtual environments; install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml $(LOCK) | $(BIN)/python
	@echo 'installing what Stretto needs into $(VENV) …'
	@$(PIP) install $(LOCKED) --editable '.[plot]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(LOCK) $(VENV)/.run | $(BIN)/python
	@echo 'installing what the tests need into $(VENV) …'
	@$(PIP) install $(LOCKED) --editable '.[plot,dev]'
	@touch $@

$(VENV)/.extras: pyproject.toml $(VENV)/.dev | $(BIN)/python
	@echo 'installing $(EXTRAS) into $(VENV) for the extra tests; this may take minutes …'
	@$(PIP) install $(EXTRAS) || \
		{ echo "PyTorch could not be installed; name an index that has it: make test-extras PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu" >&2; exit 1; }
	@touch $@

$(TRITONCLIENT)/.done: | $(BIN)/python
	@echo 'installing tritonclient into $(TRITONCLIENT) …'
	@$(PYTHON) -m venv $(TRITONCLIENT)
	@$(TRITONCLIENT)/bin/python -m pip --quiet --quiet --disable-pip-version-check install 'tritonclient[http,grpc]==2.73.0'
	@touch $@
