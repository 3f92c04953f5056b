# Everything runs from .venv, which the first target makes: `make test`, `make demo`, `make example`.
# Another interpreter (3.11 or later): `make PYTHON=/path/to/python3 …`. More arguments for pytest: `make test ARGS="-k …"`.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
STAMP := .venv/.synced

.PHONY: venv demo example check test slow mta docs dist bench
.DEFAULT_GOAL := test

venv: $(STAMP)

# Runs side by side take turns: the lock is on this file, ends with whoever holds it, and needs no program that some
# systems lack. Whoever waited for it finds the work done. The stamp holds what was installed, so that a fresh checkout
# with the same contents installs nothing. --clear: an environment of another interpreter cannot be repaired in place.
define SYNC
set -eu
if [ -f $(STAMP) ] && cat pyproject.toml uv.lock | cmp -s - $(STAMP); then touch $(STAMP); exit 0; fi
if ! $(BIN)/uv --version >/dev/null 2>&1 || ! $(BIN)/python -c "$$NEW_ENOUGH" 2>/dev/null; then
    $(PYTHON) -m venv --clear .venv
    $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
fi
env -u VIRTUAL_ENV -u CONDA_PREFIX -u UV_PROJECT_ENVIRONMENT -u UV_PYTHON \
    $(BIN)/uv sync --quiet --locked --all-extras --python $(BIN)/python --no-python-downloads
cat pyproject.toml uv.lock > $(STAMP)
endef

define LOCKED
import fcntl, os
lock = os.open("Makefile", os.O_RDONLY)
os.set_inheritable(lock, True)
fcntl.flock(lock, fcntl.LOCK_EX)
os.execlp("sh", "sh", "-c", os.environ["SYNC"])
endef

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

export SYNC LOCKED NEW_ENOUGH

$(STAMP): pyproject.toml uv.lock
	@$(PYTHON) -c "$$NEW_ENOUGH" || { \
	    echo "Sendonce needs Python 3.11 or later, and '$(PYTHON)' is not: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	@$(PYTHON) -c "$$LOCKED"

demo: $(STAMP)
	$(BIN)/sendonce demo

# A shop to look at: examples/bookstore. `make example ARGS=--check` orders a book, shows its mail and ends.
example: $(STAMP)
	@cd examples && exec ../$(BIN)/python -m bookstore $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(BIN)/pytest -n 2 --dist worksteal $(ARGS)

slow: $(STAMP)
	$(BIN)/pytest -m slow $(ARGS)

mta: $(STAMP)
	$(BIN)/pytest -m mta tests/mta $(ARGS)

# The site, in site/. Nothing is fetched; a broken link or a page that is not in the navigation is an error. Not --quiet:
# mkdocs counts no warning then, and calls nothing an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Wheel and sdist in dist/, and the tests of what is in them, installed.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/uv build --quiet
	$(BIN)/pytest -m dist tests/dist $(ARGS)

# In an environment of its own: what is installed to be compared with must not be seen by the tests. More arguments:
# `make bench ARGS="--only throughput,latency"`.
BENCH := .venv-bench
define SYNC_BENCH
set -eu
if [ -f $(BENCH)/.synced ] && cat pyproject.toml uv.lock 2>/dev/null | cmp -s - $(BENCH)/.synced; then exit 0; fi
env -u VIRTUAL_ENV -u CONDA_PREFIX -u UV_PYTHON UV_PROJECT_ENVIRONMENT=$(BENCH) \
    $(BIN)/uv sync --quiet --locked --all-extras --group bench --python $(BIN)/python --no-python-downloads
cat pyproject.toml uv.lock > $(BENCH)/.synced
endef
export SYNC_BENCH

bench: $(STAMP)
	@sh -c "$$SYNC_BENCH"
	$(BENCH)/bin/python -m bench $(ARGS)
