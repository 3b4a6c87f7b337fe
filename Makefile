# make demo, make test: everything they need is set up first, and not again when it's there.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# one stamp per content of the file, so that an older requirements.txt is installed again too
REQUIREMENTS := $(VENV)/requirements-$(shell sha256sum cpu/requirements.txt | cut -c1-16)
FORK := $(VENV)/fork-installed
MODELS := $(addprefix build/models/,tiny-qwen3-float32 tiny-qwen3-bfloat16 smollm2-135m-instruct)

.PHONY: setup system tree patches models test demo pair check-protocol simulate sweep agreement soak side-by-side benchmark pr rebase clean
.DELETE_ON_ERROR:
# SGLang's imports take 30 s of CPU from source and 12 s compiled, and tests start hundreds of processes
unexport PYTHONDONTWRITEBYTECODE

setup: system tree models

system:
	@PYTHON=$(PYTHON) sh cpu/system_packages.sh

# no compiling: most of the modules are never imported
$(REQUIREMENTS): cpu/requirements.txt
	@echo "== Python environment in $(VENV): about 7 GB, some minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --no-deps --no-compile -r $<
	@touch $@

# the editable install only puts build/tree on the import path; `make tree` keeps that up to date
$(FORK): $(REQUIREMENTS) pyproject.toml fork/backend.py fork/base.toml
	@echo "== SGLang with our patches, editable"
	$(BIN)/pip install --disable-pip-version-check --no-deps -e .
	@touch $@

tree: $(FORK)
	$(BIN)/python -m fork tree

patches: $(FORK)
	$(BIN)/python -m fork patches

# a branch in your git checkout of SGLang: make pr SGLANG=../sglang BRANCH=seamless-handoff
pr: tree
	$(BIN)/python -m fork pr $(SGLANG) $(if $(BRANCH),--branch $(BRANCH)) $(ARGS)

# patches/ on another release: make rebase VERSION=0.5.22
rebase: $(FORK)
	$(BIN)/python -m fork rebase $(VERSION) $(ARGS)

models: $(MODELS:=/model.safetensors)

build/models/tiny-qwen3-%/model.safetensors: cpu/models/tiny_qwen3.py cpu/models/byte_tokenizer.py | $(REQUIREMENTS)
	@echo "== Model $(@D)"
	$(BIN)/python $< $(@D) --dtype $*

build/models/smollm2-135m-instruct/model.safetensors: cpu/models/smollm2.py | $(REQUIREMENTS)
	@echo "== Model $(@D)"
	$(BIN)/python $< $(@D)

# two at a time: those with real servers mostly wait. The longest files first, or the last would run alone for minutes. Only
# files that have such tests are read for them
LONG := $(patsubst %,test/%.py,srt/test_seamless_handoff $(addprefix srt/test_seamless_handoff_,network options upstream_kits off) \
	benchmark/test_suite_real)
REAL := $(LONG) $$(grep -rl "mark\.real" test --include="test_*.py" | sort)
test: setup
	$(BIN)/python -m pytest test -m "not real" -n 2 --dist worksteal
	$(BIN)/python -m pytest $(REAL) -m "real and not alone" -n 2 --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest $(REAL) -m alone

demo: setup
	$(BIN)/python -m demo

# a pair with the handoff, kept up to try things by hand; ARGS=--help tells what else it can be
pair: setup
	$(BIN)/python -m rig $(ARGS)

# neither this nor the next needs SGLang or torch. All interleavings, then the mutants: about twenty minutes
check-protocol: $(REQUIREMENTS)
	cd test/srt/handoff && $(CURDIR)/$(BIN)/python -m checker --full

# a million requests: about ten minutes
simulate: $(REQUIREMENTS)
	$(BIN)/python -m benchmark.handoff.simulator

# the simulator over load, link and prompt length: heat maps in build/sweep
sweep: $(REQUIREMENTS)
	$(BIN)/python -m benchmark.handoff.simulator.sweep $(ARGS)

# the simulator against real workers at a stated pace: about 15 minutes, ARGS="--repeats 1" for half of that
agreement: setup
	$(BIN)/python -m benchmark.handoff.agreement $(ARGS)

# 2,000 requests with faults on real workers: about 15 minutes; SOAK="--requests 100 --seed 2" for another
soak: setup
	$(BIN)/python -m benchmark.handoff.soak $(SOAK)

# unified, PD and PD with the handoff in one run: about 40 minutes; ARGS="--model tiny --requests 30" for a short one
side-by-side: setup
	$(BIN)/python -m benchmark.handoff.side_by_side $(ARGS)

# the arms under several kinds of traffic: 5 to 10 minutes; benchmark/handoff/README.md has the long form
benchmark: setup
	$(BIN)/python -m benchmark.handoff.suite $(ARGS)

# build/tree stays: it may hold edits that `make patches` hasn't exported
clean:
	rm -rf $(VENV) build/models build/rig build/demo build/side_by_side build/benchmark build/agreement
