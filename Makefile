# The commands that people type. Each installs and builds what it needs first.
.DEFAULT_GOAL := help
JOBS ?= $(shell nproc)
BUILD := build/release
SGACTOR := $(BUILD)/bin/sgactor
DEMO_RUN ?= runs/demo

.PHONY: help deps configure build demo test bench bench-meshes lint fuzz soak clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

deps:  ## install missing Debian packages
	@cmake/install_deps.sh

configure: deps
	@cmake --preset release $(CMAKE_ARGS) > /dev/null || cmake --preset release $(CMAKE_ARGS)

build: configure  ## build everything into build/release
	@cmake --build --preset release -j $(JOBS)

demo: configure  ## train llama-tiny with two workers, kill one half way, and lose no bit
	@cmake --build --preset release -j $(JOBS) --target sgactor
	@python3 apps/tools/demo.py $(SGACTOR) $(DEMO_RUN)

test: build  ## build and run every test that this machine can run
	@ctest --test-dir $(BUILD) --output-on-failure -LE soak -j $(JOBS)

bench: build  ## actors, kernels, and llama-15m beside PyTorch on this CPU
	@$(SGACTOR) bench actors
	@$(SGACTOR) bench step apps/examples/llama-15m.toml
	@python3 tests/bench/step/side_by_side.py --sgactor $(SGACTOR)

bench-meshes: build  ## llama-tiny for 50 steps on every mesh of workers: same bits, tokens/s
	@python3 tests/bench/meshes/bench_meshes.py $(SGACTOR)

lint:  ## check format, layers, lengths and text
	@tests/lint/check_all.sh

fuzz: deps  ## build the parsers' fuzzers with clang and run each for a fixed number of inputs
	@cmake --preset fuzz > /dev/null
	@cmake --build --preset fuzz -j $(JOBS) --target fuzzers
	@ctest --test-dir build/fuzz --output-on-failure -R '_fuzz$$'

soak: build  ## long forms of fault, fuzz and multi-process tests
	@ctest --test-dir $(BUILD) --output-on-failure -L soak

clean:  ## remove build and demo output
	@rm -rf build runs
