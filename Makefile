# Everything runs from this checkout and its own .venv. Another Python: make demo PYTHON=python3.12
PYTHON ?= python3
PYTEST_ARGS ?= -n 2
RUN := .venv/bin/python

.PHONY: help demo serve test faults bench lint clean

help:
	@echo "make demo    play two claims with real crashes, print what happened, stop everything"
	@echo "make serve   start everything with the demo's claims; prints the address and log-ins"
	@echo "make test    run the tests (PYTEST_ARGS='-k name' chooses some)"
	@echo "make faults  kill every process again and again, and race for approvals, an hour; results: var/faults.txt"
	@echo "make bench   measure the engine beside bare psycopg loops (three minutes; BENCH_ARGS=--quick: one)"
	@echo "make lint    ruff, its formatter, and mypy"
	@echo "make clean   stop and delete the embedded PostgreSQL with its data, var/, .venv and caches"

demo: .venv/.stamp
	@$(RUN) -m durable_site.demo

serve: .venv/.stamp
	@$(RUN) -m durable_site.serve

# The tests' throw-away databases have a server of their own, which does not wait for the disk.
test: export DURABLE_RUNS_DATA = var/tests
test: export DURABLE_RUNS_FSYNC = off
test: .venv/.stamp
	DEBUG=1 $(RUN) -m pytest $(PYTEST_ARGS)

# In one process: the times mean something only while nothing else is busy.
faults: .venv/.stamp
	FAULTS=1 DEBUG=1 $(RUN) -m pytest tests/faults

bench: .venv/.stamp
	@$(RUN) -m tests.bench $(BENCH_ARGS)

# mypy's Django plugin loads the settings; it is to start no database for that.
lint: .venv/.stamp
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	DEBUG=1 DATABASE_URL=postgresql://nowhere/none $(RUN) -m mypy .

# A .venv without a working pip (never finished, or of a Python that is gone) is made anew.
.venv/.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed, and $(PYTHON) is not. Name another: make PYTHON=python3.12 ..." >&2; \
		exit 1; }
	@$(RUN) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || { \
		echo "No virtual environment could be made. On Debian and Ubuntu: apt-get install python3-venv" >&2; \
		exit 1; }
	@echo "Installing what pyproject.toml names into .venv; the first time takes a minute or two ..."
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-input --editable '.[dev]'
	@touch .venv/.stamp

# The server first: once .venv is gone, nothing here could stop it.
clean:
	@if $(RUN) -c 'import psutil, psycopg' 2>/dev/null; then \
		$(RUN) -m durable_site.embedded remove; \
		DURABLE_RUNS_DATA=var/tests $(RUN) -m durable_site.embedded remove; \
	elif [ -e var/postgres/README ] || [ -e var/tests/durable-runs/README ]; then \
		echo "An embedded PostgreSQL (README in var/postgres, var/tests) may run, and only .venv can stop it. First: make .venv/.stamp" >&2; \
		exit 1; \
	fi
	rm -rf var .venv build staticfiles .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
