# The commands of this repository. `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
# Tests start hundreds of processes. Where bytecode may not be kept, each of them compiles every file anew, pytest's too.
unexport PYTHONDONTWRITEBYTECODE
# Test processes share the cores: threads of linear algebra on small matrices would only wait for each other.
export OPENBLAS_NUM_THREADS := 1

.PHONY: help install wheel sdist sbom docs pictures demo demo-web lint test test-all fast alone slow \
	slow-live slow-computed on-postgresql fuzz pairs soak mutations gpu golden deepspeed browser slurm podman postgresql explore bench clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .venv/.installed ## build .venv with the `walras` command and all the demo needs

.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all]'
	touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all,dev,docs,release]'
	touch $@

wheel: .venv/.installed-dev ## build dist/walras-VERSION-py3-none-any.whl, which installs anywhere
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

sdist: .venv/.installed-dev ## build dist/walras-VERSION.tar.gz, the sources of a release
	$(BIN)/python -m build --sdist --no-isolation --outdir dist . >/dev/null

sbom: .venv/.installed-dev ## write dist/walras-VERSION.cdx.json: what an installation consists of; WALRAS_SIGNING_KEY signs it
	v=$$($(BIN)/walras --version) && $(BIN)/python -m tests.support.software_bill dist/walras-$$v.cdx.json \
		$$(ls dist/walras-$$v-py3-none-any.whl dist/walras-$$v.tar.gz 2>/dev/null)

docs: .venv/.installed-dev ## build the documents as a site, site/index.html; a warning is an error
	rm -rf site
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --jobs $(JOBS) -c docs . site

pictures: .venv/.installed-dev browser ## draw the pictures of the documents and record the terminal session again (3 minutes)
	$(BIN)/python docs/pictures/draw_concepts.py docs/pictures
	$(BIN)/python docs/pictures/record_session.py docs/pictures/session.svg
	PYTHONPATH=tests/support $(BIN)/python -m docs.pictures.draw_page docs/pictures

demo: .venv/.installed ## run the whole system on this machine: server, agents, real PyTorch jobs (about 3 minutes)
	$(BIN)/walras demo

demo-web: .venv/.installed ## the same machines with jobs for 15 minutes, to watch the web page
	$(BIN)/walras demo --page 15

lint: .venv/.installed-dev ## style, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: .venv/.installed-dev ## lint and the fast tests
	@$(MAKE) --no-print-directory -j 2 lint fast

test-all: test ## lint and every test, real processes and PyTorch included
	@$(MAKE) --no-print-directory -j 1 alone slow

# Tests of a file stay in one worker unless another has none left: what they share is imported, made and compiled once.
PYTEST := $(BIN)/python -m pytest --dist worksteal

fast: .venv/.installed-dev ## the fast tests
	$(PYTEST) -n $(JOBS) -m "not slow and not gpu" --durations=5

alone: .venv/.installed-dev ## the tests that need the machine to themselves: beside others their ranks cannot keep their pace
	$(PYTEST) -n 0 -m "alone and not gpu" tests/e2e

slow: .venv/.installed-dev ## the other slow tests: real processes, which mostly wait; beside them computations, then SQL
	@$(MAKE) --no-print-directory -j 2 --output-sync=target slow-live slow-computed on-postgresql

slow-live:
	$(PYTEST) -n $$((2 * $(JOBS) + 1)) -m "slow and not alone and not gpu" --durations=10 tests/e2e

# At a lower priority: who waits for a process is woken at once.
slow-computed:
	nice -n 10 $(PYTEST) -n $(JOBS) -m "slow and not alone and not gpu" --durations=10 --ignore=tests/e2e

on-postgresql: .venv/.installed-dev ## the tests of a live server that reach SQL of their own, over PostgreSQL
	WALRAS_TEST_STORE=postgresql nice -n 10 $(PYTEST) -n $(JOBS) -m "sql and not slow and not sqlite_file" tests/unit/scheduler_live

SEEDS ?= 200
FIRST ?= 1
fuzz: .venv/.installed-dev ## run SEEDS=N whole systems under faults, from seed FIRST=K; DONE=FILE: go on where one ended
	$(BIN)/python -m tests.whole_system --seeds $(SEEDS) --first $(FIRST) --jobs $(JOBS) $(if $(DONE),--done $(DONE))

soak: SEEDS = 20000
soak: DONE ?= .venv/soaked-$(shell git rev-parse --short HEAD)
soak: fuzz ## the same for hours, going on where it was interrupted on this commit; then every pair of features
	$(MAKE) --no-print-directory pairs SEEDS=$$($(BIN)/python -m tests.whole_system --count-pairs) DONE=

pairs: .venv/.installed-dev ## run SEEDS=N pairs of features on a calm whole system, another pair with each seed from FIRST=K
	$(BIN)/python -m tests.whole_system --pairs --seeds $(SEEDS) --first $(FIRST) --jobs $(JOBS)

mutations: .venv/.installed-dev ## plant bugs on purpose and count the seeds until each is found
	$(BIN)/python -m tests.mutations
	$(BIN)/python -m tests.mutations --tests
	$(BIN)/python -m tests.crossings.planted

gpu: .venv/.installed-dev ## run the tests that need a CUDA device, on a machine that has one
	$(BIN)/pytest -m gpu tests/gpu

golden: .venv/.installed-dev ## add the solver that golden results were recorded with (GPL, for tests alone)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[golden]'

deepspeed: .venv/.installed-dev ## build DeepSpeed, which one test starts, beside the torch that is there
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps --no-build-isolation \
		deepspeed einops hjson msgpack ninja py-cpuinfo

browser: ## install the browser that reports are opened with in tests (Debian; needs root)
	command -v chromium >/dev/null && command -v chromedriver >/dev/null || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; }

slurm: .venv/.installed-dev ## unpack the Slurm, SSH server, promtool and shells that tests run (Debian; nothing is installed, no root)
	$(BIN)/python -m tests.support.debian_packages

podman: ## install the containers that tests run jobs in (Debian; needs root)
	command -v podman >/dev/null && command -v busybox >/dev/null || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends podman runc busybox-static >/dev/null; }

postgresql: ## install the database that tests of several servers run (Debian; needs root)
	ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql >/dev/null; }

explore: .venv/.installed-dev ## property tests on examples that nobody has seen yet
	HYPOTHESIS_PROFILE=explore $(PYTEST) -n $(JOBS) tests/properties -m "not gpu"

bench: .venv/.installed-dev ## measure what docs/results.md states
	$(BIN)/python -m benchmarks

clean: ## remove the virtual environment and caches
	rm -rf .venv build site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
