# `make demo` and `make test` set up everything that they need: a .venv here, mosquitto and chromium.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# The extras that are developed here; the tools are the dependency group `dev`.
EXTRAS := toolkit device broker dashboard minatar
# Tests of pure logic: no TensorFlow, no broker process, no exported bundle, nothing that takes long.
PURE := tests/profiles tests/broker/protocol tests/broker/merging tests/broker/aggregator \
    tests/broker/test_log.py tests/docs/test_layout.py tests/docs/test_reference.py \
    tests/docs/test_troubleshooting.py tests/toolkit/experiment/supervised \
    --ignore tests/broker/merging/test_coordinator_optimizers.py \
    --ignore tests/toolkit/experiment/supervised/test_own_networks.py \
    --ignore tests/broker/aggregator/storage/test_power_cuts.py \
    --ignore tests/broker/aggregator/storage/test_salvage.py
# The tests start hundreds of processes: what one of them compiles, the others load.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick check format lock clean mosquitto chromium pi docs docs-links wheelhouse brokers

demo: $(VENV)/.ready
	$(BIN)/toolkit demo

test: check mosquitto chromium
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

# Lint, types and the pure tests: less than a minute.
quick: check
	$(BIN)/python -m pytest -n $(WORKERS) $(PURE)

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

chromium:
	@scripts/install-chromium

# One scenario on every broker that can be installed here; prints the matrix of docs/operating.md.
brokers: $(VENV)/.ready
	@scripts/install-brokers
	$(BIN)/python -m scripts.brokers

# A Raspberry Pi in emulation, in a fleet with a native device; needs root.
pi: $(VENV)/.ready mosquitto
	@scripts/pi

# Our wheel, and those of the device extra for a 64-bit Raspberry Pi without a network.
wheelhouse: $(VENV)/.ready
	@PYTHON=$(BIN)/python scripts/wheelhouse build/wheelhouse

lock: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml $(EXTRAS:%=--extra %) --group dev --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --no-header --quiet --output-file requirements.lock \
	    --constraint constraints.txt

clean:
	rm -rf $(VENV) build
