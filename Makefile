# Every target makes .venv when it is missing, and installs again only after pyproject.toml changed.
# PYTHON chooses the interpreter of a new .venv; ARGS is handed on, as in `make pilot ARGS="--seed 1"`.
PYTHON ?= python3
BIN := .venv/bin

pilot: .venv/installed
	$(BIN)/python experiments/pilot.py $(ARGS)

smoke: .venv/installed
	$(BIN)/python experiments/pilot.py --preset smoke $(ARGS)

# Two workers: most of the suite's time is compilation, which uses one core.
test: .venv/installed-test
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations 20 $(ARGS)

slow: .venv/installed-test
	$(BIN)/python -m pytest -m slow $(ARGS)

parity: .venv/installed-parity
	$(BIN)/python -m pytest -m parity $(ARGS)

# Needs Chromium and its driver (Debian: apt-get install chromium chromium-driver).
browser: .venv/installed-browser
	$(BIN)/python -m pytest -m browser $(ARGS)

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The built wheel, installed on its own, works away from the source tree.
wheel-test: .venv/installed
	./.ci/wheel-test $(BIN)/python

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/installed-test: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@ .venv/installed

.venv/installed-parity: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[test,parity]'
	touch $@ .venv/installed-test .venv/installed

.venv/installed-browser: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[test,browser]'
	touch $@ .venv/installed-test .venv/installed

.PHONY: pilot smoke test slow parity browser lint wheel-test clean
