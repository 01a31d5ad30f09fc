# `make demo` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ACC := $(BIN)/accucompare
SIMNPU := $(BIN)/python fixtures/simnpu
FIRST := $(BIN)/python -c \
  "import json, sys; print(json.load(open(sys.argv[1]))['first_divergence'])"
INSTALLED := $(VENV)/.installed
# The real torch_npu, in a folder of its own: without CANN it would break `import torch`. Only for
# Linux on x86-64.
MACHINE := $(shell uname -s -m | tr ' ' -)
TORCH_NPU := $(if $(filter Linux-x86_64,$(MACHINE)),$(VENV)/torch_npu/.installed)
# One thread a process: processes that each compute on every core wait for each other. Bytecode is
# kept, or hundreds of processes would compile the package anew. Work is stolen, so that what the
# tests of a file share is mostly made once.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal
# Types are checked meanwhile, on the core that tests leave idle. What they come to is printed last.
TYPES := $(VENV)/types.txt
WITH_TYPES = @$(BIN)/mypy >$(TYPES) 2>&1 & types=$$!; trap "kill $$types" INT TERM; \
	  $(1); tests=$$?; wait $$types; types=$$?; cat $(TYPES); exit $$((tests || types))

.PHONY: demo demo-npu test test-all test-anywhere mutants lint style format libreoffice chromium \
  bench bench-peers bench-faults bench-fit bench-origins bench-history bench-health bench-ranks \
  bench-scale bench-computed \
  docs clean

demo: $(INSTALLED)  ## a real model with a planted fault, which locate finds and thresholds do not
	$(ACC) capture fixtures/minilm.py --round-weights bfloat16 --out demo/golden --overwrite
	$(ACC) capture fixtures/minilm.py:faulty --dtype bfloat16 --out demo/candidate --overwrite
	@echo "\nA fixed tolerance, as tight as float32 allows, fails nearly every row:\n"
	$(ACC) diff demo/golden demo/candidate --rel-l2 1e-3 --report reports/demo-fixed.xlsx --quiet \
	  || test $$? -eq 1
	@echo "\nThe default for bfloat16 flags none:\n"
	$(ACC) diff demo/golden demo/candidate --report reports/demo-default.xlsx --quiet
	@echo "\nEach layer on golden's inputs, judged by what rounding does to it:\n"
	$(ACC) locate fixtures/minilm.py:faulty --golden demo/golden --golden-case fixtures/minilm.py \
	  --device cpu --dtype bfloat16 --out demo/locate --overwrite --report reports/demo.xlsx \
	  --json demo/demo.json || test $$? -eq 1
	@echo "\nThe planted fault was found in: $$($(FIRST) demo/demo.json)"
	@echo "The report to open:             $(CURDIR)/reports/demo.xlsx"

demo-npu: $(INSTALLED) $(TORCH_NPU)  ## the same on a simulated NPU, and a training step
	$(ACC) capture fixtures/cnn.py --device cpu --out demo/cnn --overwrite
	$(SIMNPU) --numerics hf32 -- $(ACC) capture fixtures/cnn.py --device npu --out demo/npu --overwrite
	$(ACC) diff demo/cnn demo/npu --atol 1e-5 --report reports/demo-npu.xlsx --json demo/npu.json \
	  || test $$? -eq 1
	@echo "\nFirst over 1e-5, as HF32 in convolutions is on by default: $$($(FIRST) demo/npu.json)"
	@echo "\nTraining: a fault in the backward of one layer alone, on each layer's golden gradients:\n"
	$(ACC) capture fixtures/gpt2.py:training --device cpu --round-weights bfloat16 --save-state \
	  --out demo/training --overwrite
	$(SIMNPU) -- $(ACC) locate fixtures/gpt2.py:faulty_training --golden demo/training \
	  --golden-case fixtures/gpt2.py:training --device npu --dtype bfloat16 --out demo/training-npu \
	  --overwrite --report reports/demo-training.xlsx --quiet || test $$? -eq 1
	@echo "The reports to open: $(CURDIR)/reports/demo-npu.xlsx, demo-training.xlsx"

test: $(INSTALLED) $(TORCH_NPU) libreoffice chromium style  ## linters, types, tests
	$(call WITH_TYPES,$(PYTEST))

test-all: $(INSTALLED) $(TORCH_NPU) libreoffice chromium style  ## ten times as many examples
	$(call WITH_TYPES,$(PYTEST) --hypothesis-profile=all)

test-anywhere: $(INSTALLED)  ## numbers under each instruction set, on 4 threads: 10 minutes each
	$(BIN)/python -m tests.anywhere

mutants: $(INSTALLED)  ## changes each number that decides: does a test near it fail
	$(BIN)/python -m benchmarks.mutants

lint: style
	$(BIN)/mypy

style: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(INSTALLED): pyproject.toml constraints.txt accucompare/numbers/_kernel.c
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

$(VENV)/torch_npu/.installed: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	  --target $(@D) torch_npu==2.13.0
	touch $@

bench: $(INSTALLED)  ## speed and its targets: 15 minutes, 14 GB of disk; writes docs/costs.md
	$(BIN)/python -m benchmarks.speed.bench

bench-peers: $(INSTALLED)  ## the same, and msprobe beside it in a virtual environment of its own
	$(BIN)/python -m benchmarks.speed.bench --peers

bench-faults: $(INSTALLED)  ## hundreds of planted faults: how often is the right place named first
	$(BIN)/python -m benchmarks.faults
	$(BIN)/python -m benchmarks.faults --training
	$(BIN)/python -m benchmarks.faults --environment

bench-fit: $(INSTALLED)  ## what is kept in float32 against all subsets of blocks: 5 minutes
	$(BIN)/python -m benchmarks.fit

bench-origins: $(INSTALLED)  ## planted NaN, Inf and overflow: does the watch name where each begins
	$(BIN)/python -m benchmarks.origins

bench-health: $(INSTALLED)  ## faulty and sound trainings: does the checklist see, and is it silent
	$(BIN)/python -m benchmarks.health

bench-ranks: $(INSTALLED)  ## faults of parallel training: are module and rank named; 10 minutes
	$(BIN)/python -m benchmarks.ranks

bench-computed: $(INSTALLED)  ## compiled, cached, batched, repeated: are faults named; 15 minutes
	$(BIN)/python -m benchmarks.computed

bench-scale: $(INSTALLED)  ## a million records, a cluster, storage: half an hour, 16 GB of disk
	@missed=0; for part in "scale_rows" "faults --sketches" "scale_storage" \
	  "scale_cluster build/scale"; do \
	  $(BIN)/python -m benchmarks.$$part || missed=1; done; exit $$missed

bench-history: $(INSTALLED)  ## real bugs of public libraries, and refactors
	$(BIN)/python -m benchmarks.history

docs: $(INSTALLED)  ## the site, in build/docs; a link that leads nowhere is an error
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m mkdocs build --strict

APT_INSTALL = apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends
MAY_APT = [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ "$(APT)" != no ]

libreoffice:  # one test converts the report with it
	@command -v soffice >/dev/null || { if $(MAY_APT); then \
	    echo "Installing libreoffice-calc for the test that converts the report (APT=no skips it)"; \
	    $(APT_INSTALL) libreoffice-calc >/dev/null; \
	  else echo "No LibreOffice: the test that converts the report with it will be skipped"; fi; }

chromium:  # the page's tests open it with this browser
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { if $(MAY_APT) && \
	    echo "Installing chromium and its driver for the tests of the page (APT=no skips them)" && \
	    $(APT_INSTALL) chromium chromium-driver >/dev/null; then :; \
	  else echo "No Chromium with driver: the tests that open the page will be skipped"; fi; }

clean:
	rm -rf $(VENV) benchmarks/.peers benchmarks/.history build *.egg-info demo
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
