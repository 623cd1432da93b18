# The verbs of this repository. Each installs what it lacks first; a second call finds it done.
PYTHON ?= python3
# serve: where its state lies
SERVE_HOME ?= /var/lib/neocloud

# test: processes that run tests. They wait a third of their time; with more of them, time limits fail (docs/rfd/0028)
WORKERS ?= $(shell expr $$(nproc) + 1)

BIN := .venv/bin
STAMPS := .venv/.stamps
SERVER := $(STAMPS)/server
TOOLS := $(STAMPS)/test

# Where this is set in the environment, each of some thousand processes would compile what it imports.
test test-fast test-long: export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test test-fast test-long check bench docs lock fuzz clients clients-long compare-policy try-debian debian-run debian-test

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: debian-run $(SERVER) ## install what running Neocloud needs (Debian packages, .venv)

demo: setup ## start a cloud on this machine and run a bank's fine-tuning job in it
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash runs/bank.sh

serve: setup ## run the control plane in the foreground, on the state in SERVE_HOME
	@$(BIN)/python -m neocloud.control_plane --home "$(SERVE_HOME)"

test: debian-test $(TOOLS) clients ## run all tests but the long ones, in parallel; one that fails runs again, and is listed as RERUN
	@$(BIN)/pytest -n $(WORKERS) --max-worker-restart 2 --reruns 1 -r fER -m "not long" tests/fast tests/real tests/e2e

test-fast: debian-test $(TOOLS) ## run the tests that need no real part and little time, in a few minutes
	@$(BIN)/pytest -n $(WORKERS) -m "not real and not slow and not long" tests/fast

test-long: debian-test $(TOOLS) clients clients-long ## run the tests that take a minute or more each, and all iterations of kill loops
	@NEOCLOUD_TEST_ITERATIONS=all $(BIN)/pytest -n logical -r fE -m "long or repeated"

check: debian-test $(TOOLS) ## lint, formatting, types, import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python scripts/write-stubs
	@$(BIN)/pyright
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/lock --check
	@mkdir -p .cache
	@$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src images scripts 2>.cache/bandit.log \
		|| { cat .cache/bandit.log; exit 1; }

bench: debian-test $(TOOLS) ## measure, and print the figures as ratios
	@set -e; for script in bench/*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

compare-policy: $(SERVER) ## simulate what changes to the fleet's fault policy and limits do, compared with commit BASE (origin/main)
	@$(BIN)/python scripts/compare-policy "$(or $(BASE),origin/main)"

docs: $(TOOLS) ## write the generated reference pages
	@$(BIN)/python -m neocloud.cli.reference docs/reference/cli.md
	@$(BIN)/python -m neocloud.control_plane.api_coverage docs/reference/coverage.md
	@$(BIN)/python -m neocloud.services.iam.roles_page docs/reference/roles.md
	@$(BIN)/python scripts/sbom
	@$(BIN)/python scripts/write-monitoring

lock: $(TOOLS) ## renew requirements.lock after a change of pyproject.toml (UPGRADE=1: newest versions)
	@$(BIN)/python scripts/lock $(if $(UPGRADE),--upgrade)

fuzz: debian-test $(TOOLS) ## attack the API and the gateway with made-up requests for SECONDS (600)
	@NEOCLOUD_TEST_ITERATIONS=all FUZZ_SECONDS="$(or $(SECONDS),600)" $(BIN)/pytest tests/real/security/test_fuzz.py tests/real/security/test_fuzz_gateway.py

clients: ## install the clients that the tests drive us with (SkyPilot, dstack, AWS CLI ...), apart from .venv
	@for client in skypilot dstack lm-eval openai-js langchain litellm clustermax awscli oras xgrammar; do PYTHON="$(PYTHON)" scripts/install-client $$client; done

clients-long: ## install the clients of `make test-long` beside them, which take minutes (s3fs, DVC, DuckDB, MinIO's, AWS CLI v2, AWS's for Java, containerd, crane ...)
	@for client in s3-python dvc trixie bookworm sid aws-java oci-conformance; do PYTHON="$(PYTHON)" scripts/install-client $$client; done

try-debian: ## install and try Neocloud in a fresh system of SUITE (trixie); needs the network
	@scripts/try-debian "$(or $(SUITE),trixie)"

debian-run debian-test: debian-%:
	@scripts/install-debian-packages $*

$(SERVER): pyproject.toml requirements.lock
	@PYTHON="$(PYTHON)" scripts/install-python-packages server
	@mkdir -p $(@D) && touch $@

$(TOOLS): pyproject.toml requirements.lock
	@PYTHON="$(PYTHON)" scripts/install-python-packages test
	@mkdir -p $(@D) && touch $@ $(SERVER)
