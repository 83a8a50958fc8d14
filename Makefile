# Everything sets itself up: `make quickstart` and `make test` need only Python >= 3.11.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
# the tests share the machine, so that each gets a core of its own
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

.PHONY: help quickstart test test-slow test-gpu check format clean

help:
	@echo "make quickstart   meta-train a small learner and see it learn (2 to 4 minutes)"
	@echo "make test         lint, types and all tests that are quick"
	@echo "make test-slow    the rest: does everything learn, does the wheel install"
	@echo "make test-gpu     what needs a CUDA card"
	@echo "make format       let ruff arrange the code"
	@echo "make clean        remove the environment and caches; runs stay"

$(READY): pyproject.toml constraints.txt
	@echo "setting up .venv (a minute or two, once)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "onepass needs Python 3.11 or newer; name one with make PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

quickstart: $(READY)
	$(BIN)/onepass quickstart

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

test: check
	@command -v chromium chromium-browser google-chrome >/dev/null \
	    || echo "no Chromium here, so the pages are not opened: apt-get install chromium"
	$(PYTEST) --dist loadfile

# what is timed runs alone, after the rest
TIMED := tests/test_quickstart.py tests/test_scaling.py

test-slow: $(READY)
	$(PYTEST) --dist worksteal -m slow --durations 10 $(addprefix --ignore ,$(TIMED))
	$(BIN)/pytest -m slow $(TIMED)

test-gpu: $(READY)
	$(BIN)/pytest -m gpu

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .ruff_cache .hypothesis
