# The commands people use. `make demo` and `make test` set up what they need first.
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
# Nothing from outside decides which packages are seen.
unexport PYTHONPATH PYTHONHOME

.PHONY: help demo test check lint bench openapi reference clean

help: ## say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: ## a control plane, this machine joined, a compute cluster, a command in it over ssh (ONCE=1: then clean up)
	@deploy/setup.sh demo
	@$(PYTHON) -m corral demo $(if $(ONCE),--once)

test: ## the whole suite
	@deploy/setup.sh test
	$(PYTHON) -m pytest

lint: ## ruff, mypy --strict, who may import whom, the committed OpenAPI document
	@deploy/setup.sh test
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PYTHON) -m corral site openapi | diff -u docs/openapi.json - || { echo 'run: make openapi'; exit 1; }

check: lint test ## what CI runs

openapi: ## write docs/openapi.json from the code
	$(PYTHON) -m corral site openapi > docs/openapi.json.new && mv docs/openapi.json.new docs/openapi.json

reference: ## write the tables of the reference pages from the code
	$(PYTHON) -m docs.reference

bench: ## measure; JSON on stdout
	@deploy/setup.sh test
	@$(PYTHON) -m bench

clean: ## remove what set-up made
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist build
