# Two commands on a fresh machine: `make demo` and `make test`. Both need Python >= 3.11 and make only.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow check bench install lock clean

demo: $(READY)
	$(BIN)/sacmil demo --out report

test: $(READY)
	$(BIN)/pytest -n 2

test-slow: $(READY)
	$(BIN)/pytest -n 2 -m slow --durations=8

check: $(READY)
	scripts/check

bench: $(READY)
	$(BIN)/python -m benchmarks

install: $(READY)

# Installed anew only when what is to be installed has changed.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "sacmil needs Python >= 3.11, $(PYTHON) is older: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all,dev]'
	touch $@

# Pins for every platform; unset find-links so that a local CPU build of torch leaves no mark.
lock:
	env -u PIP_FIND_LINKS -u UV_FIND_LINKS uv pip compile --universal --python-version 3.11 \
	  --all-extras --no-header --no-annotate -o constraints.txt pyproject.toml

clean:
	rm -rf $(VENV) report
