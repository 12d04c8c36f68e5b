# Every target makes the environment it needs in .venv, the first time and whenever pyproject.toml changed.
# Paths are relative throughout, so that the folder may have a space in its name.

PYTHON ?= python3
OUT    ?= results/digits/cnn
ARGS   ?=
JOBS   ?= 2

IN := .venv/bin/python
# A folder that was moved or copied has an environment that points to the old place: make it anew.
MOVED := $(shell test ! -e .venv/made-in || test "`cat .venv/made-in`" = "`pwd -P`" || echo FORCE)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test faults faults-ddp chaos histories docs lint format bench hooks clean FORCE

help:
	@echo 'make demo     train on handwritten digits; everything goes to the folder OUT ($(OUT))'
	@echo 'make test     run the tests'
	@echo 'make faults   every fault of the disk and every kill at every call of a save: two minutes, a table'
	@echo 'make faults-ddp  every fault in every place on either of two ranks: minutes, a table'
	@echo 'make chaos    runs killed at every place and at 300 random moments, and resumed: a quarter of an hour, tables'
	@echo 'make histories  10,000 random histories of metrics against the rules for keeping snapshots; make test has 600'
	@echo 'make docs     build the documentation as a site, into site/; a broken link is an error'
	@echo 'make lint     formatting, lint, types, the arrows between modules'
	@echo 'make format   let ruff format the code and sort the imports'
	@echo 'make bench    run the benchmarks: minutes, not part of the tests'
	@echo 'make hooks    run the checks of make lint at each git commit'
	@echo 'make clean    remove the environment and caches; results/ is kept'
	@echo
	@echo 'PYTHON=...    the Python the environment is made with (now: $(PYTHON)); run make clean to change it later'
	@echo 'JOBS=...      in how many processes make test runs (now: $(JOBS)); 0: in one, as a debugger needs it'
	@echo 'ARGS=...      more arguments: make test ARGS="-k resume"'
	@echo 'OUT=...       the folder of the demo; each experiment wants its own: make demo OUT=results/digits/seed3 ARGS="--seed 3"'

demo: .venv/ready-demo
	@$(IN) recipes/digits/train.py hparams/digits/cnn.yaml --output_folder "$(OUT)" $(ARGS)

test: .venv/ready-test
	@$(IN) -m pytest -n $(JOBS) --dist loadfile --durations=15 $(ARGS)

faults: .venv/ready-test
	@$(IN) -m tests.faults.sweep $(ARGS)

faults-ddp: .venv/ready-test
	@$(IN) -m tests.distributed.all_failures $(ARGS)

chaos: .venv/ready-test
	@$(IN) -m tests.resume.chaos $(ARGS)

histories: .venv/ready-test
	@BRAINLIB_HISTORIES=10000 $(IN) -m pytest tests/test_snapshot.py -k oracle $(ARGS)

docs: .venv/ready-docs
	@NO_MKDOCS_2_WARNING=1 $(IN) -m mkdocs build --strict --quiet
	@echo 'site/index.html'

lint: .venv/ready-test
	@$(IN) -m ruff format --check .
	@$(IN) -m ruff check .
	@$(IN) -m mypy
	@$(IN) -c 'from importlinter.cli import lint_imports_command as check; check()' --no-cache --no-logo

format: .venv/ready-test
	@$(IN) -m ruff check --select I --fix .
	@$(IN) -m ruff format .

bench: .venv/ready-test
	@failed=; for script in benchmarks/*.py; do \
	    echo "== $$script"; $(IN) "$$script" || failed="$$failed $$script"; \
	done; test -z "$$failed" || { echo "Over the limit or failed:$$failed"; exit 1; }

hooks: .venv/ready-test
	@$(IN) -m pip install --quiet --disable-pip-version-check pre-commit
	@$(IN) -m pre_commit install

clean:
	rm -rf .venv site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ------------------------------------------------------------------------------------------------- the environment
# .venv/ready-demo, -test and -docs stand for the extras [demo], [test] and [docs] being installed. The file is written last,
# so that an installation that was interrupted is taken up again.
.venv/ready-demo .venv/ready-test .venv/ready-docs: .venv/ready-%: pyproject.toml $(MOVED)
	@command -v "$(PYTHON)" >/dev/null 2>&1 || { \
	    echo "There is no '$(PYTHON)' here. Install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3"; exit 1; } >&2
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit("brainlib needs Python 3.10 or newer; $(PYTHON) is %d.%d. Name a newer one: make PYTHON=/path/to/python3" % v[:2])'
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot make environments: its modules venv and ensurepip are missing."; \
	    echo "Install them (on Debian and Ubuntu the package python3-venv), or name another Python: make PYTHON=/path/to/python3"; exit 1; } >&2
	@if ! $(IN) -c 'import pip' 2>/dev/null || { test -e .venv/made-in && test "`cat .venv/made-in`" != "`pwd -P`"; }; then \
	    echo "Making .venv with $(PYTHON)"; \
	    "$(PYTHON)" -m venv --clear .venv && pwd -P > .venv/made-in; \
	fi
	@if $(IN) -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; then \
	    echo 'Installing brainlib[$*] into .venv: what is not there yet'; \
	else \
	    echo 'Installing brainlib[$*] into .venv (the first time this takes minutes and about 6 GB: torch is large)'; \
	fi
	@$(IN) -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@
