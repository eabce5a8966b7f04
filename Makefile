# Targets for people; .ci/run uses the same ones. "make" alone explains them.

PYTHON ?= python3
# Extra arguments for installing PyTorch, e.g. PIP_TORCH_ARGS="--index-url https://download.pytorch.org/whl/cpu"
PIP_TORCH_ARGS ?=
# What "make serve" passes on, e.g. ARGS="--port 9000"
ARGS ?=

BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup serve test test-long test-deps lint format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## Create .venv and install everything that requirements.lock names

# Torch goes first and alone, so that its index is asked for nothing else.
$(INSTALLED): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "cannot make .venv; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/pip install --quiet --upgrade pip
	@echo "Installing PyTorch, the largest part"
	@$(BIN)/pip install torch==2.13.0 $(PIP_TORCH_ARGS)
	@echo "Installing the rest"
	@$(BIN)/pip install --quiet -r requirements.lock
	@$(BIN)/pip install --quiet --no-deps -e .
	@touch $@

serve: setup ## Run the whole system (ARGS="--port 9000 …")
	@exec $(BIN)/vitrine serve $(ARGS)

test: setup ## Run the tests (ARGS="tests/cli -k config")
	@$(BIN)/pytest $(ARGS)

test-long: setup ## Run the tests that take minutes
	@$(BIN)/pytest -m long $(ARGS)

# Debian's prometheus package brings promtool; where systemd runs it also starts a service on port 9090.
test-deps: ## Install what some tests need from Debian: Chromium and promtool
	@missing=; \
	command -v chromium >/dev/null || missing="$$missing chromium"; \
	command -v promtool >/dev/null || missing="$$missing prometheus"; \
	[ -n "$$missing" ] || exit 0; \
	command -v apt-get >/dev/null || { echo "install these by hand, this is not Debian or Ubuntu:$$missing" >&2; exit 1; }; \
	if [ "$$(id -u)" = 0 ]; then root=; \
	elif command -v sudo >/dev/null; then root=sudo; \
	else echo "run as root: apt-get install$$missing" >&2; exit 1; fi; \
	$$root apt-get update -qq && \
	$$root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing >/dev/null

lint: setup ## Check style, types and the rules about imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Format the code and mend what ruff can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove .venv and everything that was made
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
