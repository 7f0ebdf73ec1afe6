# Weft. `make` lists the targets; `make demo` runs the main job, `make check` is exactly what CI runs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

ROOT    := $(CURDIR)
BIN     := $(ROOT)/.bin
MODULES := proto libs services/allocator services/checkpoint services/gateway services/node-agent services/scheduler services/telemetry services/weft
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -X github.com/weft-fabric/weft/libs/program.version=$(VERSION)
export PATH := $(BIN):$(PATH)
# The headers that go-nvml wraps mark calls as deprecated that it still offers.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations

## help: list the targets
help:
	@awk '/^## [a-z0-9-]+:/ {sub(/^## /,""); i=index($$0,":"); printf "  %-15s%s\n", substr($$0,1,i-1), substr($$0,i+1)}' $(MAKEFILE_LIST)

## demo: set up what is missing, then train digits on a simulated fabric, kill a rank, watch it come back
demo: setup-demo build
	@bin/weft demo

## check: everything CI checks: generated code, lint, fences, builds, tests with -race, end to end, smoke benchmarks
check: setup setup-demo generate-clean lint fence modules-check test-race e2e bench-smoke
	@echo "check: all passed"

## setup: install what building and testing need (Debian/Ubuntu: gcc by apt; pinned tools into .bin)
setup: $(BIN)/.tools
	@libs/tools/setup.sh build

## setup-demo: install what the demo needs beside Go (PyTorch for CPU)
setup-demo:
	@libs/tools/setup.sh demo

$(BIN)/.tools: libs/tools/go.mod libs/tools/go.sum
	@echo "installing pinned tools into .bin (some minutes the first time)"
	@GOWORK=off GOBIN=$(BIN) go -C libs/tools install tool
	@touch $@

## build: build bin/weft, which is all of Weft in one binary
build: bin/weft
bin/weft: $(shell find proto/gen libs services -name '*.go' -o -name '*.py' -o -name go.mod) deploy/examples/digits/train.py
	@mkdir -p bin
	go build -ldflags "$(LDFLAGS)" -o bin/ ./services/weft/cmd/weft
	@touch bin/weft

## services: build a binary for each service
services:
	@mkdir -p bin
	go build -ldflags "$(LDFLAGS)" -o bin/ ./services/allocator/cmd/... ./services/checkpoint/cmd/... ./services/gateway/cmd/... \
	  ./services/node-agent/cmd/... ./services/scheduler/cmd/... ./services/telemetry/cmd/... ./services/weft/cmd/...

## generate: regenerate the code that comes from proto and the generated parts of docs
generate: $(BIN)/.tools
	cd proto && buf format -w && buf generate
	go test ./services/scheduler/lifecycle ./services/allocator/plan ./services/telemetry/internal/export ./services/weft/internal/docs -run 'Diagram|Docs' -update

## generate-clean: prove that committed generated code is what proto gives, and lint proto
generate-clean: $(BIN)/.tools
	@libs/tools/generate-clean.sh

## fmt: format Go and proto
fmt: $(BIN)/.tools
	gofmt -w $$(git ls-files '*.go' | grep -v /gen/)
	cd proto && buf format -w

## lint: gofmt, golangci-lint with the fences of the pure packages
lint: $(BIN)/.tools
	@test -z "$$(gofmt -l $$(git ls-files '*.go' | grep -v /gen/))" || { gofmt -l $$(git ls-files '*.go' | grep -v /gen/); echo "run: make fmt"; exit 1; }
	golangci-lint run $$(go list -m -f '{{.Dir}}/...' | grep -v /proto/)

## fence: prove that a commit that breaks a fence fails, on a fixture that breaks each of them
fence: $(BIN)/.tools
	@libs/tools/fence.sh

## modules: write the replace lines of each go.mod, tidy every module
modules:
	@libs/tools/modules.sh write

## modules-check: each module builds alone (GOWORK=off), with and without NVML, and is tidy
modules-check:
	@libs/tools/modules.sh check

## test: all tests, fast
test:
	go test $(addprefix ./,$(addsuffix /...,$(MODULES)))

## test-race: all tests with the race detector
test-race:
	go test -race -timeout 15m $(addprefix ./,$(addsuffix /...,$(filter-out services/weft proto,$(MODULES)))) ./services/weft/internal/... ./services/weft/allinone/...

## e2e: whole fabrics in real processes that are really killed, and the demo
e2e: setup-demo build
	go test -timeout 15m -count=1 ./services/weft/e2e/...
	bin/weft demo

## chaos-one: kill the control plane 30 times at its worst instants while gangs come and go; nothing lost, doubled or restarted
chaos-one: setup-demo
	go test -timeout 30m -count=1 ./services/weft/e2e -run TestChaosOne -chaos.kills 30 -v

## chaos-leader: 63 faults of leaders, bus servers and links on a replicated fabric, under the same judges
chaos-leader: setup-demo
	go test -timeout 40m -count=1 ./services/weft/e2e -run TestChaosLeader -chaos.faults 63 -v

## bench-latency: submit to first rank running, against three raw synced publishes and one re-exec
bench-latency: build
	@bin/weft bench latency

## bench-scale: listings, explain and memory with 100,000 queued jobs on 1,000 nodes in use
bench-scale: build
	@bin/weft bench scale

## bench-replay: reading a whole ledger beside fetching, decoding and hashing it; starting from a snapshot
bench-replay: build
	@bin/weft bench replay

## bench-smoke: each benchmark once, small, to prove that it runs
bench-smoke: build
	@bin/weft bench latency --runs 5 --no-bar
	@bin/weft bench scale --jobs 2000 --nodes 50 --no-bar
	@bin/weft bench replay --jobs 500 --no-bar

## fuzz: every fuzz target for FUZZTIME (default 60s)
FUZZTIME ?= 60s
fuzz:
	@libs/tools/fuzz.sh $(FUZZTIME)

## dev: every service as a process of its own, each rebuilt and restarted when its sources change (by Tilt if installed)
dev:
	@libs/tools/dev.sh

## clean: remove what was built
clean:
	rm -rf bin

.PHONY: help demo check setup setup-demo build services generate generate-clean fmt lint fence modules modules-check test test-race e2e chaos-one chaos-leader bench-latency bench-scale bench-replay bench-smoke fuzz dev clean
