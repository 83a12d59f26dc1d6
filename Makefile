# Two commands on a fresh machine: `make demo` and `make test`. Both need Python >= 3.11 and make only;
# where npm is there too, they also build the viewer's page.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

PAGE := src/sacmil/viewer/static/index.html
PAGE_SOURCES := $(wildcard web/*.json web/build.js web/index.html web/src/*)
PACKAGES := web/node_modules/.package-lock.json

# Tests start many processes; without bytecode each would compile the package again.
export PYTHONDONTWRITEBYTECODE =

SITE := docs/_build/html

.PHONY: demo test test-quick test-slow check docs bench viewer viewer-if-possible install lock clean

demo: $(READY) viewer-if-possible
	$(BIN)/sacmil demo --out report

test: $(READY) viewer-if-possible
	$(BIN)/pytest -n auto --dist worksteal

# The tests of changed files, for at most a minute.
test-quick: $(READY)
	$(BIN)/python scripts/test-quick

test-slow: $(READY)
	$(BIN)/pytest -n auto --dist worksteal -m 'slow and not ray' --durations=8
	$(BIN)/pytest -m 'slow and ray'

check: $(READY)
	scripts/check

# The site; its tutorials are executed, and a warning is an error. Without the internet once installed.
docs: $(READY)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/sphinx-build --fail-on-warning --keep-going --quiet \
	  -b html -d docs/_build/doctrees docs $(SITE)
	@echo "$(SITE)/index.html"

bench: $(READY)
	$(BIN)/python -m benchmarks

viewer: $(PAGE)

$(PAGE): $(PAGE_SOURCES) $(PACKAGES)
	cd web && npm run build

$(PACKAGES): web/package-lock.json web/.npmrc
	@command -v npm > /dev/null || \
	  { echo "the viewer's page needs Node.js >= 20: install it and type make viewer"; exit 1; }
	cd web && npm ci
	touch $@

# Neither the demo nor the tests hang on it.
viewer-if-possible:
	@if ! command -v npm > /dev/null; then \
	  echo "no npm, so no page for sacmil view: install Node.js >= 20 and type make viewer"; \
	elif ! $(MAKE) --no-print-directory viewer; then \
	  echo "the page for sacmil view could not be built: going on without it"; fi

install: $(READY)

# Installed anew only when what is to be installed has changed.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "sacmil needs Python >= 3.11, $(PYTHON) is older: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all,dev,docs]'
	touch $@

# Pins for every platform; unset find-links so that a local CPU build of torch leaves no mark.
lock:
	env -u PIP_FIND_LINKS -u UV_FIND_LINKS uv pip compile --universal --python-version 3.11 \
	  --all-extras --no-header --no-annotate -o constraints.txt pyproject.toml

clean:
	rm -rf $(VENV) report docs/_build docs/reference/api docs/reference/commands web/node_modules \
	  src/sacmil/viewer/static
