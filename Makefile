# Everything installs into .venv; `make test` and `make demo` work right after a clone.
# PYTHON=/path/to/python picks the interpreter; left empty, the first Python >= 3.11 found.
# VENV=folder keeps .venv as it is: make test PYTHON=/path/to/python3.13 VENV=.pythons/3.13

PYTHON ?=
VENV ?= .venv
# Extra flags for `make pins`, e.g. PINS=--upgrade or PINS="--upgrade-package ruff"
PINS ?=

export VENV
BIN := $(VENV)/bin
# A file's tests stay together: many share a server that is started once. Each process collects all
# tests. tests/conftest.py orders the files.
PARALLEL := --numprocesses=$(shell getconf _NPROCESSORS_ONLN) --maxprocesses=8 --dist=loadfile --no-loadscope-reorder
# Compiled modules are kept: the suite starts many processes, and pytest rewrites every assertion.
CACHED := PYTHONDONTWRITEBYTECODE=
TYPED := $(wildcard src examples tests bench soak)

.DEFAULT_GOAL := help
.PHONY: help setup demo servers test test-long check bench cachebench bench-peers soak release integrations docs cluster prices pins clean

help: ## list the targets
	@echo "anaphora: make <target>"
	@sed -n 's/^\([a-z-]*\): .*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) \
		| while IFS='|' read -r name text; do printf '  %-12s %s\n' "$$name" "$$text"; done

setup: ## create or refresh .venv with the pinned requirements
	@PYTHON="$(PYTHON)" sh scripts/setup.sh

demo: setup ## run the demonstration: no network, no keys
	@echo "demo: anaphora demo"
	@$(BIN)/anaphora demo

servers: setup ## install the servers and programs that tests start, where this is allowed
	@sh scripts/servers.sh
	@sh scripts/programs.sh

test: servers ## run the test suite
	@$(BIN)/python -m compileall -q src examples
	@echo "test: pytest on every core"
	@$(CACHED) $(BIN)/python -m pytest -q $(PARALLEL)

test-long: servers ## run the tests that start processes and servers, or take seconds each
	@echo "test-long: pytest on every core"
	@$(CACHED) $(BIN)/python -m pytest -q $(PARALLEL) -m "long and not soak"

# All run, so that one look shows everything that is wrong.
check: setup ## lint, formatting, types, layers, structure
	@failed=; \
	run() { echo "check: $$*"; $(BIN)/"$$@" || failed=1; }; \
	run ruff check; \
	run ruff format --check; \
	run mypy $(TYPED); \
	run lint-imports --no-logo; \
	run python scripts/house.py --check; \
	if [ -n "$$failed" ]; then echo "check: something above failed"; exit 1; fi; \
	echo "check: all good"

bench: setup ## run every benchmark; each prints a table, then one line of JSON
	@set -e; found=; \
	for file in bench/[!_]*.py; do \
		[ -e "$$file" ] || continue; \
		found=1; echo "bench: $$file"; $(BIN)/python "$$file"; \
	done; \
	[ -n "$$found" ] || echo "bench: no benchmarks in bench/"

cachebench: setup ## compare with peers: dollars, cache reads, CPU; writes docs/benchmarks/results.json
	@$(BIN)/python bench/cachebench

bench-peers: setup ## install the peers of cachebench, in environments of their own below .soak
	@$(BIN)/python bench/cachebench/environments.py

soak: setup ## run what takes long: memory curves, and the laws over many more examples
	@sh scripts/integrations.sh newest
	@sh scripts/integrations.sh lowest
	@$(BIN)/python scripts/release.py
	@sh scripts/pythons.sh | while read -r version python; do \
		echo "soak: make test with Python $$version"; \
		$(MAKE) --no-print-directory test PYTHON="$$python" VENV=".pythons/$$version" </dev/null || exit 1; \
	done
	@echo "soak: pytest soak"
	@$(BIN)/python -m pytest -s soak
	@echo "soak: tests that take long"
	@$(BIN)/python -m pytest -q $(PARALLEL) -m soak
	@echo "soak: every property, 200 examples each"
	@$(BIN)/python -m pytest -q $(PARALLEL) -m hypothesis --hypothesis-profile=more
	@echo "soak: the laws, 2000 examples each"
	@$(BIN)/python -m pytest -q $(PARALLEL) tests/laws tests/rendered \
		tests/wire/test_laws.py --hypothesis-profile=long

release: setup ## build sdist and wheel, check them, and try both in empty environments
	@$(BIN)/python scripts/release.py

integrations: setup ## test the adapters for frameworks, in an environment of their own
	@sh scripts/integrations.sh newest

docs: setup ## build the site into site/, and check its links
	@sh scripts/site.sh

cluster: setup ## run three nodes on PostgreSQL behind a balancer, and call them
	@sh scripts/servers.sh
	@$(BIN)/python scripts/cluster.py

prices: setup ## rewrite the catalog's price table from the pinned genai-prices
	@$(BIN)/python scripts/prices.py

pins: setup ## rewrite the pinned requirements/*.txt (PINS=--upgrade)
	@echo "pins: resolving with uv"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@$(BIN)/uv pip compile --quiet --no-config --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make pins" $(PINS) \
		--extra aws --extra azure --extra google \
		--extra cli --extra daemon --extra emulator --extra mcp --extra nodes --extra observe --extra proxy \
		--extra pytest --extra sign -o requirements/dev.txt pyproject.toml requirements/dev.in
	@$(BIN)/uv pip compile --quiet --no-config --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links --no-deps --no-annotate \
		--custom-compile-command "make pins" $(PINS) -o requirements/servers.txt requirements/servers.in
	@for name in release docs; do \
		$(BIN)/uv pip compile --quiet --no-config --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate \
		--custom-compile-command "make pins" $(PINS) -o requirements/$$name.txt requirements/$$name.in || exit 1; \
	done
	@for end in integrations:highest integrations-lowest:lowest-direct; do \
		$(BIN)/uv pip compile --quiet --no-config --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate \
		--custom-compile-command "make pins" $(PINS) --resolution $${end#*:} \
		--extra emulator --extra fleet --extra langchain --extra pydantic-ai \
		-o requirements/$${end%:*}.txt pyproject.toml requirements/integrations.in || exit 1; \
	done
	@echo "pins: wrote requirements/dev.txt, servers.txt, release.txt, docs.txt, integrations.txt and integrations-lowest.txt"

clean: ## remove .venv, caches and build output
	rm -rf .venv .pythons .servers .programs .soak .integrations .release .docs site dist build .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
