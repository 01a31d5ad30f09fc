# `make demo` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# The real torch_npu, in a folder of its own: without CANN it would break `import torch`. Only for Linux on x86-64.
TORCH_NPU := $(if $(filter Linux-x86_64,$(shell uname -s -m | tr ' ' -)),$(VENV)/torch_npu/.installed)
# Two processes that each compute on every core wait for each other. Bytecode is kept although the environment may forbid it: hundreds of
# processes would compile the package anew. Work is stolen, so that what the tests of a file share is mostly made once.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal
# Types are checked meanwhile: alone they would keep one core for a minute and leave the other idle. What they come to is printed last.
TYPES := $(VENV)/types.txt
WITH_TYPES = @$(BIN)/mypy >$(TYPES) 2>&1 & types=$$!; trap "kill $$types" INT TERM; \
	  $(1); tests=$$?; wait $$types; types=$$?; cat $(TYPES); exit $$((tests || types))

.PHONY: demo demo-npu test test-all test-anywhere mutants lint style format libreoffice chromium bench bench-peers bench-faults bench-origins bench-history bench-health bench-scale docs clean

demo: $(INSTALLED)  ## capture a real model, plant a fault, and find it where thresholds fail nearly every row
	$(BIN)/accucompare capture fixtures/minilm.py --round-weights bfloat16 --out demo/golden --overwrite
	$(BIN)/accucompare capture fixtures/minilm.py:faulty --dtype bfloat16 --out demo/candidate --overwrite
	@echo "\nA fixed tolerance, as tight as float32 allows, fails nearly every row; the default for bfloat16 flags none:\n"
	$(BIN)/accucompare diff demo/golden demo/candidate --rel-l2 1e-3 --report reports/demo-fixed.xlsx --quiet || test $$? -eq 1
	$(BIN)/accucompare diff demo/golden demo/candidate --report reports/demo-default.xlsx --quiet
	@echo "\nEach layer on golden's inputs, judged by what rounding does to it:\n"
	$(BIN)/accucompare locate fixtures/minilm.py:faulty --golden demo/golden --golden-case fixtures/minilm.py --device cpu --dtype bfloat16 \
	  --out demo/locate --overwrite --report reports/demo.xlsx --json demo/demo.json || test $$? -eq 1
	@$(BIN)/python -c "import json; print('\nThe planted fault was found in:', json.load(open('demo/demo.json'))['first_divergence'])"
	@echo "The report to open:             $(CURDIR)/reports/demo.xlsx"

demo-npu: $(INSTALLED) $(TORCH_NPU)  ## the same three commands, on an NPU that the real torch_npu believes in; and a training step
	$(BIN)/accucompare capture fixtures/cnn.py --device cpu --out demo/cnn --overwrite
	$(BIN)/python fixtures/simnpu --numerics hf32 -- $(BIN)/accucompare capture fixtures/cnn.py --device npu --out demo/npu --overwrite
	$(BIN)/accucompare diff demo/cnn demo/npu --atol 1e-5 --report reports/demo-npu.xlsx --json demo/npu.json || test $$? -eq 1
	@$(BIN)/python -c "import json; print('\nFirst over 1e-5, as HF32 in convolutions is on by default:', json.load(open('demo/npu.json'))['first_divergence'])"
	@echo "\nTraining: a fault in the backward of one layer alone, on each layer's golden gradients:\n"
	$(BIN)/accucompare capture fixtures/gpt2.py:training --device cpu --round-weights bfloat16 --save-state --out demo/training --overwrite
	$(BIN)/python fixtures/simnpu -- $(BIN)/accucompare locate fixtures/gpt2.py:faulty_training --golden demo/training --golden-case fixtures/gpt2.py:training --device npu \
	  --dtype bfloat16 --out demo/training-npu --overwrite --report reports/demo-training.xlsx --quiet || test $$? -eq 1
	@echo "The reports to open:            $(CURDIR)/reports/demo-npu.xlsx, demo-training.xlsx"

test: $(INSTALLED) $(TORCH_NPU) libreoffice chromium style  ## linters, types, tests
	$(call WITH_TYPES,$(PYTEST))

test-all: $(INSTALLED) $(TORCH_NPU) libreoffice chromium style  ## the same with ten times as many examples of each property
	$(call WITH_TYPES,$(PYTEST) --hypothesis-profile=all)

test-anywhere: $(INSTALLED)  ## the tests of numbers under each instruction set of this machine, and on 4 threads: about 10 minutes each
	$(BIN)/python -m tests.anywhere

mutants: $(INSTALLED)  ## changes each number that decides a verdict or a culprit: does a test near it fail
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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(@D) torch_npu==2.13.0
	touch $@

bench: $(INSTALLED)  ## the speed targets: about 20 minutes, and 9 GB of disk while it runs
	$(BIN)/python -m benchmarks.speed.bench

bench-peers: $(INSTALLED)  ## the same, and msprobe beside it in a virtual environment of its own
	$(BIN)/python -m benchmarks.speed.bench --peers

bench-faults: $(INSTALLED)  ## plants hundreds of faults of a forward in twelve models, of a training in nine, and of the environment: how often is the right place named first
	$(BIN)/python -m benchmarks.faults
	$(BIN)/python -m benchmarks.faults --training
	$(BIN)/python -m benchmarks.faults --environment

bench-origins: $(INSTALLED)  ## plants NaN, Inf and overflow in four models: does the watch name where each begins, and what does its neighbour say
	$(BIN)/python -m benchmarks.origins

bench-health: $(INSTALLED)  ## plants faults in trainings of 300 steps, and runs sound ones of very many kinds: does the checklist see, and is it silent
	$(BIN)/python -m benchmarks.health

bench-scale: $(INSTALLED)  ## a diff of a million records; planted faults by sketches of 2 KiB; a cluster; object storage: half an hour, 16 GB of disk meanwhile
	@missed=0; for part in "scale_rows" "faults --sketches" "scale_storage" "scale_cluster build/scale"; do \
	  $(BIN)/python -m benchmarks.$$part || missed=1; done; exit $$missed

bench-history: $(INSTALLED)  ## real bugs of public libraries, a release with and one without: is the right module named, and none cleared; and is a refactor
	$(BIN)/python -m benchmarks.history

docs: $(INSTALLED)  ## the site, in build/docs; a link that leads nowhere is an error
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m mkdocs build --strict

libreoffice:  # one test converts the report with it
	@command -v soffice >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ "$(APT)" != no ]; then \
	    echo "Installing libreoffice-calc with apt-get, for the test that converts the report (make test APT=no skips it)"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libreoffice-calc >/dev/null; \
	  else echo "LibreOffice is not installed: the test that converts the report with it will be skipped"; fi; }

chromium:  # the page's tests open it with this browser
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ "$(APT)" != no ] && \
	    echo "Installing chromium and chromium-driver with apt-get, for the tests of the page (make test APT=no skips them)" && apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; then :; \
	  else echo "Chromium and its driver are not installed: the tests that open the page with them will be skipped"; fi; }

clean:
	rm -rf $(VENV) benchmarks/.peers benchmarks/.history build *.egg-info demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
