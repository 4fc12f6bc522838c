# Every target works in a fresh clone: .venv is made on first use and again when the requirements change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Empty: what a process compiles the next one reads, also where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=
# The tests read and write UTF-8, whatever the locale.
export PYTHONUTF8 := 1

.DEFAULT_GOAL := help
.PHONY: help demo test tests lint docs bench explorer fuzz clean

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "attsvm needs Python 3.11 or newer; set PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch numpy
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev --editable '.[all]'
	@touch $@

demo: $(STAMP)  ## reproduce some figures of the papers on few trials; the report is demo/report.html
	$(BIN)/attsvm reproduce svm-fig1 svm-fig5 svm-fig7 svm-rp md-fig2 md-fig3 md-fig4 emb-thm5 --quick --out demo/runs
	$(BIN)/attsvm report demo/runs --out demo/report.html --open

test: $(STAMP)  ## lint, type check and run the tests, side by side
	$(MAKE) --no-print-directory -j2 lint tests

tests: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist worksteal -q

lint: $(STAMP)  ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: $(STAMP)  ## build the site into docs/_build/html; it opens from the folder
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs docs/_build/html

bench: $(STAMP)  ## solver against cvxpy, training against a plain loop, in CPU time of one thread
	$(BIN)/python benchmarks/bench_solve.py
	$(BIN)/python benchmarks/bench_train.py

explorer:  ## build docs/explorer.html from explorer/ (needs node)
	cd explorer && npm ci --no-audit --no-fund && npm run build

fuzz: $(STAMP)  ## damaged files, odd calls, kills, two processes, certificates in exact arithmetic: one table, 20 minutes
	OMP_NUM_THREADS=1 $(BIN)/python tools/fuzz.py

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) demo docs/_build docs/gallery docs/benchmarks explorer/node_modules
	rm -rf .pytest_cache .ruff_cache .hypothesis
