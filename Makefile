# Targets for people; .ci/run uses the same ones. "make" alone explains them.

PYTHON ?= python3
# Extra arguments for installing PyTorch, e.g. PIP_TORCH_ARGS="--index-url https://download.pytorch.org/whl/cpu"
PIP_TORCH_ARGS ?=
# What "make serve" passes on, e.g. ARGS="--port 9000"
ARGS ?=

BIN := .venv/bin
INSTALLED := .venv/.installed
INSTALLED_DEV := .venv/.installed-dev
# pip shows its progress to people, and to logs only what went wrong.
PIP_INSTALL := [ -t 1 ] && quiet= || quiet=--quiet; $(BIN)/pip install $$quiet

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup serve test test-long test-deps lint format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## Create .venv and install what serving needs

# Torch goes first and alone, so that its index is asked for nothing else.
$(INSTALLED): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "cannot make .venv; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/pip install --quiet --upgrade pip
	@echo "Installing PyTorch, the largest part: about 190 MB for CPUs, several GB for CUDA (see README)"
	@$(BIN)/pip install torch==2.13.0 $(PIP_TORCH_ARGS)
	@echo "Installing the rest: 70 packages, about 80 MB, usually a minute"
	@$(PIP_INSTALL) -r requirements.lock
	@$(BIN)/pip install --quiet --no-deps -e .
	@touch $@

$(INSTALLED_DEV): $(INSTALLED) requirements-dev.lock
	@echo "Installing what tests and linters need: 20 packages, about 90 MB, usually a minute"
	@$(PIP_INSTALL) -r requirements-dev.lock
	@touch $@

serve: setup ## Run the whole system (ARGS="--port 9000 …")
	@exec $(BIN)/vitrine serve $(ARGS)

test: $(INSTALLED_DEV) ## Run the tests (ARGS="tests/cli -k config")
	@$(BIN)/pytest $(ARGS)

test-long: $(INSTALLED_DEV) ## Run the tests that take minutes
	@$(BIN)/pytest -m long $(ARGS)

# Debian's prometheus package brings promtool. Where systemd runs, it and postgresql also start their services (ports
# 9090 and 5432); the tests use neither, but servers of their own.
test-deps: ## Install what some tests need from Debian: Chromium, promtool, PostgreSQL
	@missing=; \
	command -v chromium >/dev/null || missing="$$missing chromium"; \
	command -v promtool >/dev/null || missing="$$missing prometheus"; \
	ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$$missing postgresql"; \
	[ -n "$$missing" ] || exit 0; \
	command -v apt-get >/dev/null || { echo "install these by hand, this is not Debian or Ubuntu:$$missing" >&2; exit 1; }; \
	if [ "$$(id -u)" = 0 ]; then root=; \
	elif command -v sudo >/dev/null; then root=sudo; \
	else echo "run as root: apt-get install$$missing" >&2; exit 1; fi; \
	$$root apt-get update -qq && \
	$$root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing >/dev/null

lint: $(INSTALLED_DEV) ## Check style, types and the rules about imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED_DEV) ## Format the code and mend what ruff can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove .venv and everything that was made
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
