# A fresh machine needs Python 3.11 or later, make, and a C++ compiler (for torch.compile). `make help` lists
# the targets. Without make (Windows): see the README, each target is two or three plain commands.

VENV   ?= .venv
# Handed on: make run ARGS="--preset quick", make test ARGS="-k ladder", make lab ARGS="--no-browser"
ARGS   ?=
# Which PyTorch: cpu is small, cuda needs an NVIDIA GPU to be of use, auto looks for its driver.
TORCH  ?= auto
# Where PyTorch's builds for the CPU are: an index, or a folder of wheels.
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
# OWNER/NAME on GitHub: `make notebooks` then writes badges and a first cell for Colab and Kaggle into every notebook.
# It is set for good by `Repository` of [project.urls] in pyproject.toml.
REPOSITORY ?=

ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
# The first Python that is new enough; PYTHON=... overrides.
PYTHON ?= $(firstword $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$p"; done))

# Where the environment forbids bytecode files, as many containers do, every process of the tests would compile
# all of perfkit again: that is most of a short process's time.
unexport PYTHONDONTWRITEBYTECODE

# One empty file for each finished step, so that a second call installs nothing.
STAMPS := $(VENV)/.stamps
# Not quiet: PyTorch alone is gigabytes, and a bar that moves says that something happens.
PIP    := $(BIN)/python -m pip install --disable-pip-version-check
SOURCES   := $(wildcard notebooks/src/*.py notebooks/src/*/*.py notebooks/src/*/*/*.py)
NOTEBOOKS := $(patsubst notebooks/src/%.py,notebooks/%.ipynb,$(SOURCES))
MISSING   := $(filter-out $(wildcard $(NOTEBOOKS)),$(NOTEBOOKS))
CODE      := $(wildcard perfkit tests benchmarks docs notebooks/src)

.PHONY: help lab run test check checks lint types imports pytest units bare double format notebooks bench gpu recordings outputs book slides bundle install install-dev chromium clean distclean
.DEFAULT_GOAL := help

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

lab: $(STAMPS)/install $(if $(MISSING),notebooks)  ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab $(ROOT_FLAG) $(ARGS) notebooks/00_start_here.ipynb

run: $(STAMPS)/install  ## run the whole ladder in this terminal
	$(BIN)/perfkit run $(ARGS)

test:  ## every check and every test; what is missing gets installed, pip beside apt-get
	@$(MAKE) --no-print-directory -j 2 install-dev
	@$(MAKE) --no-print-directory -j 2 checks pytest double

check: $(STAMPS)/dev  ## the inner loop: every check, the unit and contract tests
	@$(MAKE) --no-print-directory -j 4 units types lint imports

units: $(STAMPS)/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not integration" tests/unit tests/contract $(ARGS)

checks: $(STAMPS)/dev  # two at a time: each is one process
	@$(MAKE) --no-print-directory -j 2 types lint imports

lint: $(STAMPS)/dev  ## ruff: rules and format; the size of every folder
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/python tests/sizes.py

types: $(STAMPS)/dev  ## mypy --strict
	$(BIN)/mypy

imports: $(STAMPS)/dev  ## the layers of the design (import-linter)
	PYTHONPATH=. $(BIN)/lint-imports --no-logo

pytest: $(STAMPS)/dev $(STAMPS)/colab $(STAMPS)/chromium  ## the tests alone; many wait, so four files at a time
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

bare: $(STAMPS)/dev  ## the unit and contract tests on a machine without 16-bit instructions, glibc, compiler
	@PERFKIT_TEST_MACHINE=bare $(MAKE) --no-print-directory units

double: $(STAMPS)/dev  ## what needs a GPU, on a double of CUDA: that code runs, not that it is right
	$(BIN)/python -m pytest -n 0 tests/double

format: $(STAMPS)/dev  ## ruff: fix what it can, then format
	$(BIN)/ruff check --fix-only $(CODE)
	$(BIN)/ruff format $(CODE)

notebooks: $(STAMPS)/install  ## rewrite every notebook from its source in notebooks/src
	@test -n "$(SOURCES)" || { echo "no sources in notebooks/src"; exit 1; }
	@mkdir -p $(sort $(dir $(NOTEBOOKS)))
	@for source in $(SOURCES:notebooks/src/%.py=%); do \
		$(BIN)/jupytext --quiet --update --to ipynb "notebooks/src/$$source.py" \
			--output "notebooks/$$source.ipynb" || exit 1; done
	@$(BIN)/python -m docs.elsewhere $(REPOSITORY)
	@echo "wrote $(words $(SOURCES)) notebooks"

bench: $(STAMPS)/dev  ## the instrument's own overheads: the harness, and watching a script
	$(BIN)/python -m benchmarks.overhead harness
	$(BIN)/python -m benchmarks.overhead watch
	$(BIN)/python -m benchmarks.overhead ranks

gpu: $(STAMPS)/install  ## all that only a GPU can show, in 12 minutes: a page and one file to send
	@$(BIN)/python -c "import pytest, xdist" 2>/dev/null || $(PIP) --quiet pytest pytest-timeout pytest-xdist hypothesis \
		|| echo "pytest cannot be had here: the part with the tests will fail, the rest runs"
	$(BIN)/python -m benchmarks.gpu $(ARGS)

recordings: $(STAMPS)/dev $(STAMPS)/chromium  ## measure and draw data/recordings/ again; refuses a busy machine
	$(BIN)/python -m docs.record $(ARGS)

outputs: $(STAMPS)/dev $(STAMPS)/chromium notebooks  ## put the outputs of a recording into chapters that have changed
	$(BIN)/python -m docs.outputs $(ARGS)
	@$(BIN)/python -m docs.elsewhere $(REPOSITORY)

book: $(STAMPS)/book  ## the chapters as pages that open without a server: build/book/html, build/perfkit-book.zip
	$(BIN)/python -m docs.book $(ARGS)

slides: $(STAMPS)/install  ## slides to teach from, in one file with notes: build/slides.html
	$(BIN)/python -m docs.slides $(ARGS)

bundle:  ## the wheels to install without a network: build/wheels
	$(BIN)/python -m pip download -r requirements.txt -d build/wheels

install: $(STAMPS)/install  ## the virtual environment, without starting anything

install-dev: $(STAMPS)/dev $(STAMPS)/colab $(STAMPS)/chromium  ## the same, with what the tests need

clean:  ## remove caches and what tests left; keeps the environment, runs and data
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf tests/browser/artefacts
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## remove the environment as well
	rm -rf $(VENV)

# JupyterLab refuses to start as root, as one is in most containers, unless told so.
ROOT_FLAG := $(if $(filter 0,$(shell id -u 2>/dev/null)),--allow-root)

$(STAMPS)/venv:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later found. Install one, or name it: make PYTHON=/path/to/python3"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) can't make a virtual environment. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/requirements: requirements.txt | $(STAMPS)/venv
	@$(BIN)/python -m docs.torch_build $(TORCH) $(VENV) $(CPU_INDEX)
	$(PIP) -r requirements.txt
	@touch $@

# setuptools is pinned in requirements.txt, so the build needs no download of its own. Its compatible mode puts the
# checkout on Python's path: found in another way, perfkit would be hidden by a folder perfkit where Python starts.
$(STAMPS)/install: pyproject.toml $(STAMPS)/requirements
	$(PIP) --quiet --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
	@touch $@

$(STAMPS)/book: requirements-book.txt $(STAMPS)/install
	$(PIP) -r requirements-book.txt
	@touch $@

$(STAMPS)/dev: requirements-dev.txt requirements-book.txt $(STAMPS)/install
	$(PIP) -r requirements-dev.txt
	@touch $@

# Colab's older packages, and what its first cell installs there: unpacked beside the environment, for tests alone.
$(STAMPS)/colab: tests/colab.txt $(STAMPS)/requirements
	rm -rf $(VENV)/colab
	$(PIP) --quiet --no-deps --target $(VENV)/colab/packages -r tests/colab.txt
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest $(VENV)/colab/wheels \
		$(shell grep -E '^(msgspec|nvidia-ml-py|setuptools)==' requirements.txt)
	@touch $@

# Chromium for the browser tests, tried once. Where it can't be had, those tests skip and say so (and fail in CI).
$(STAMPS)/chromium: | $(STAMPS)/venv
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then :; \
	elif command -v apt-get >/dev/null; then \
		if [ "$$(id -u)" = 0 ]; then sudo=""; else sudo="sudo -n"; fi; \
		echo "installing Chromium for the browser tests"; \
		{ $$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
			|| echo "could not install Chromium; the browser tests will be skipped"; \
	else echo "no Chromium and no apt-get; the browser tests will be skipped"; fi
	@touch $@
