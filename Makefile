# What people and CI do with Drover. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
export CGO_ENABLED ?= 0

# -buildvcs=false: the version comes from VERSION, and a clone that another user owns still builds.
BUILD := $(GO) build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)"
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
PLATFORMS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

.PHONY: help build run web test lint check soak test-clients test-windows bench release generate clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

build: web ## bin/drover and bin/drover-agent, static
	@mkdir -p bin
	$(BUILD) -o bin/ ./server/cmd/drover ./agent/cmd/drover-agent

run: build ## server, first PAT and a local agent; prints what to paste
	@exec bin/drover dev

web: ## the page, where Node is there and its sources changed
	@web/build.sh

test: web ## everything this machine can test; says what it skipped
	@.ci/test

lint: ## staticcheck
	$(GO) run $(STATICCHECK) -checks 'all,-ST1000,-ST1005,-ST1018' ./...

soak: ## long runs: faults, reconnects, leaks (tens of minutes)
	CGO_ENABLED=1 $(GO) test -race -tags soak -count 1 -timeout 90m -v ./tests/... ./agent/internal/capability

test-clients: ## Claude Code itself, driven by a scripted model (downloads 400 MB)
	cd tests/conformance/claude && npm ci
	$(GO) test -tags clients -count 1 -timeout 30m -v ./tests/conformance/...

test-windows: ## the Windows agent under Wine
	@tests/windows/run

bench: build ## compare with the bare SDK and with SSH, in one run
	$(GO) run ./tests/bench/cmd/bench

release: web ## binaries for every platform into dist/, with checksums
	@test -f web/dist/index.html || { echo "release: the page isn't built: install Node.js 20.19 or newer" >&2; exit 1; }
	@rm -rf dist && mkdir -p dist
	@for p in $(PLATFORMS); do \
	  os=$${p%/*} arch=$${p#*/} ext=; [ $$os = windows ] && ext=.exe; \
	  for c in server/cmd/drover agent/cmd/drover-agent; do \
	    out=dist/$${c##*/}-$$os-$$arch$$ext; echo $$out; \
	    GOOS=$$os GOARCH=$$arch $(BUILD) -o $$out ./$$c; \
	  done; \
	done
	@cd dist && sha256sum drover* > SHA256SUMS && cat SHA256SUMS

generate: ## docs/openapi.yaml and what's made from it
	$(GO) generate ./...
	cd web && npm run --silent generate

clean: ## remove what the build made
	rm -rf bin dist web/node_modules
	find web/dist -mindepth 1 ! -name .gitkeep -delete
