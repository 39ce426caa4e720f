# make demo        fit an example model and show the result
# make test        the test suite and the doctests, without the slow laws
# make test-slow   the slow laws: statistical statements over many runs
# make lint        formatting, lint, types and the direction of imports
# make format      apply the formatting and the fixes that are safe
# make docs        build the documentation; a warning is an error (GALLERY=off: gallery not run)
# make package     build wheel and sdist, and try both in an empty environment
# make bench       what one step of the core costs
# make hooks       run the lint checks before each commit
# make clean       remove everything the other targets made
#
# Each target makes the virtual environment it needs, with the newest supported Python found on the
# machine, in .venv. PYTHON=python3.11 (a command or a path) chooses another Python, which gets an
# environment of its own, .venv-3.11, so that both supported lines stand side by side.

# How many processes run the tests.
WORKERS ?= 2

ifdef PYTHON
  VERSION := $(shell python=$$(tools/find_python.sh "$(PYTHON)") && \
    "$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  ifeq ($(VERSION),)
    $(error PYTHON=$(PYTHON) cannot be used)
  endif
  VENV := .venv-$(VERSION)
else
  VENV := .venv
endif

RUN := $(VENV)/bin/python -m
HTML := docs/_build/html$(VENV:.venv%=%)

# Several targets install into one environment.
.NOTPARALLEL:
.PHONY: help demo test test-slow lint format docs package bench hooks clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

# One thread of linear algebra for each test process: more would fight for the same cores.
test test-slow: export OMP_NUM_THREADS ?= 1
test test-slow: export OPENBLAS_NUM_THREADS ?= 1

demo: $(VENV)/.installed-plots
	$(VENV)/bin/python examples/demo.py

# The tests of a file share models and fits: one process makes them.
test: $(VENV)/.installed-tests
	$(RUN) pytest -n $(WORKERS) --dist loadfile -m "not slow" $(PYTEST_ARGS)

test-slow: $(VENV)/.installed-tests
	$(RUN) pytest -n $(WORKERS) -m slow $(PYTEST_ARGS) tests

lint: $(VENV)/.installed-lint
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy
	$(VENV)/bin/lint-imports --no-logo

format: $(VENV)/.installed-lint
	$(RUN) ruff check --fix
	$(RUN) ruff format

# GALLERY=off shows the programs of the gallery without running them, which takes most of the time.
docs: export GALLERY ?= on
docs: $(VENV)/.installed-docs
	$(RUN) sphinx --quiet --fail-on-warning --keep-going docs $(HTML)
	@echo "The documentation is in $(HTML)/index.html."

package: $(VENV)/.installed-package
	rm -rf dist
	$(RUN) build --outdir dist
	tools/check_package.sh $(VENV)/bin/python dist/*.whl
	tools/check_package.sh $(VENV)/bin/python dist/*.tar.gz

bench: $(VENV)/.installed-benchmarks
	$(VENV)/bin/python benchmarks/core_step.py

hooks: $(VENV)/.installed-lint
	$(RUN) pre_commit install

clean:
	rm -rf .venv .venv-* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf build dist docs/_build docs/gallery docs/generated
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written only when its command succeeded, so an interrupted installation starts again.
$(VENV)/.created:
	python=$$(tools/find_python.sh "$(PYTHON)") && "$$python" -m venv $(VENV)
	@touch $@

$(VENV)/.installed-%: pyproject.toml $(VENV)/.created
	$(RUN) pip install --quiet --disable-pip-version-check --editable ".[$*]"
	@touch $@
