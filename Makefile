# The commands of the project; `make help` lists them.

.DEFAULT_GOAL := help
.PHONY: help up demo test soak bench lint style types format clean

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
MYPY := $(BIN)/mypy --no-error-summary
# Six on two cores: many tests wait for processes, and a worker is forked (tests/forking.py), so it costs little.
PYTEST := $(BIN)/pytest -n 6
CLUSTER := 32x4:32c:128g
# Many commands are started: none should compile the package again.
export PYTHONDONTWRITEBYTECODE :=

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: $(READY)  ## set up, start the control plane, run three sample trainings on it
	@$(BIN)/python tools/up.py

demo: $(READY)  ## set up, simulate a sample trace under several policies, write build/report.html
	@mkdir -p build
	$(BIN)/presage trace make --kind dlaas --jobs 1000 --seed 0 --cluster $(CLUSTER) --load 0.95 \
		--out build/sample.parquet
	$(BIN)/presage simulate build/sample.parquet --cluster $(CLUSTER) \
		--policy fifo,sjf,srtf,tiresias,backfill --report build/report.html
	@echo "The report is $(CURDIR)/build/report.html"

test: style  ## set up, then every check and test (under 12 minutes on 2 cores)
	@tools/system-packages
	@test "$$CI" != true || tools/engines
	@mkdir -p build
	@echo '$(PYTEST) -m "not soak", and beside it $(MYPY)'
	@$(MYPY) >build/mypy.log 2>&1 & types=$$!; failed=; \
		$(PYTEST) -m "not soak" || failed="pytest"; \
		wait $$types || failed="mypy $$failed"; cat build/mypy.log; \
		test -z "$$failed" || { echo "make test: failed: $$failed" >&2; exit 1; }

soak: $(READY)  ## the long runs: soak tests, and twenty times as many random examples
	@tools/system-packages
	HYPOTHESIS_PROFILE=soak $(PYTEST) -m "soak or hypothesis"

bench: $(READY)  ## the measurements behind the figures in the docs
	@set -e; for script in benchmarks/[!_]*.py; do name=$$(basename "$$script" .py); \
		echo "== $$name"; $(BIN)/python -m "benchmarks.$$name"; done

lint: style types  ## style, types and import directions

style: $(READY)
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/lint-imports --no-logo

types: $(READY)
	$(MYPY)

format: $(READY)  ## repair the style that can be repaired
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## remove the virtual environment and everything generated
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(READY): pyproject.toml constraints.txt $(wildcard native/*.[ch])
	@tools/venv $(VENV)
	@echo "Installing into $(VENV) (two minutes the first time)"
	@$(PIP) torch  # first, and pinned: see constraints.txt
	@$(PIP) --editable '.[dev]'
	@touch $@
