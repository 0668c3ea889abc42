PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint golden docs notebooks clean

demo: $(VENV)/installed ## report on a bundled H200 recording
	$(BIN)/ling-prof demo

test: $(VENV)/installed-dev lint ## linter, types and every test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --durations=5 # a worker has a core

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

golden: $(VENV)/installed-dev ## rewrite the golden files and generated docs; read the diff
	$(BIN)/python docs/generate.py
	$(BIN)/python -m pytest --update-golden

docs: $(VENV)/installed-dev ## the pages as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

notebooks: $(VENV)/installed-dev ## run the notebooks anew, figures as PNG; needs Chromium
	$(BIN)/python notebooks/execute.py

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ling-prof needs python3 >= 3.11: make PYTHON=python3.12 demo"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@ $(VENV)/installed

clean:
	rm -rf $(VENV)
