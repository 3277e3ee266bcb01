# `make demo` and `make test` set up everything that they need: a .venv here, and mosquitto.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# The tests start hundreds of processes: what one of them compiles, the others load.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check format lock clean mosquitto pi docs docs-links

demo: $(VENV)/.ready
	$(BIN)/toolkit demo

test: check mosquitto
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in build/docs/html; a dead link or anchor within it is an error.
docs: $(VENV)/.ready
	$(BIN)/python -m sphinx -W -n --keep-going -q -b html -d build/docs/read docs build/docs/html

# The links that lead to other hosts; needs a network.
docs-links: $(VENV)/.ready
	$(BIN)/python -m sphinx -n -b linkcheck -d build/docs/read docs build/docs/links

# The lock file pins every package that was tested, with its digests.
$(VENV)/.ready: requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install CPython 3.11, or say make PYTHON=/path/to/python3.11"; exit 1; }
	@echo 'setting up $(VENV) from requirements.lock; this takes a minute or two'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

mosquitto:
	@scripts/install-mosquitto

# A Raspberry Pi in emulation, in a fleet with a native device; needs root.
pi: $(VENV)/.ready mosquitto
	@scripts/pi

lock: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --no-header --quiet --output-file requirements.lock \
	    --constraint constraints.txt

clean:
	rm -rf $(VENV) build
