# The facade: every goal installs what it needs, can be repeated, and builds with CMake presets underneath.
#   make build | demo | test | bench | lint | install PREFIX=… | clean          CUDA=auto|on|off   JOBS=N
SHELL := /bin/bash
.DEFAULT_GOAL := build
.PHONY: help deps build demo test bench lint format install clean

CUDA   ?= auto
JOBS   ?= $(shell nproc)
PREFIX ?= /usr/local

# auto: the CUDA backend where there is one in the tree, a compiler for it and a GPU to run it on.
NVCC    := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
KERNELS := $(firstword $(shell find src -name '*.cu'))
# What only a CUDA build compiles beside the kernels: all other files are the same in both.
CUDA_OPS := $(wildcard src/ops/*/*cublas.cpp src/ops/*/*cudnn.cpp)
CUDA_PARALLEL := $(wildcard src/parallel/*nccl.cpp)
ifeq ($(CUDA),auto)
  PRESET := $(if $(and $(KERNELS),$(NVCC),$(shell nvidia-smi -L 2>/dev/null)),cuda,release)
else ifeq ($(CUDA),on)
  PRESET := cuda
else ifeq ($(CUDA),off)
  PRESET := release
else
  $(error CUDA must be auto, on or off, got $(CUDA))
endif
BUILD := build/$(PRESET)

help:
	@sed -n '1,2s/^# \?//p' Makefile

deps:
	@scripts/install_deps.sh build

build: deps
	@cmake --preset $(PRESET) --log-level=WARNING
	@cmake --build $(BUILD) -j $(JOBS) --target bhyt
	@ln -sfn $(PRESET)/bhyt build/bhyt

demo: build
	@scripts/demo.sh build/bhyt

test:
	@scripts/install_deps.sh test $(if $(and $(KERNELS),$(NVCC)),cuda)
	cmake --preset $(PRESET) -DBHYT_WERROR=ON -DBHYT_TESTS=ON
	cmake --build $(BUILD) -j $(JOBS)
	@ln -sfn $(PRESET)/bhyt build/bhyt
ifneq ($(and $(KERNELS),$(NVCC),$(filter release,$(PRESET))),)
	cmake --preset cuda -DBHYT_WERROR=ON -DBHYT_TESTS=OFF -DBHYT_BENCH=OFF -DBHYT_CUDA_ARCHS=90a
	cmake --build build/cuda -j $(JOBS) --target bhyt_core_kernels bhyt_ops_kernels bhyt_parallel_kernels \
	  $(CUDA_OPS:%=CMakeFiles/bhyt_ops.dir/%.o) $(CUDA_PARALLEL:%=CMakeFiles/bhyt_parallel.dir/%.o)
endif
	@status=0; ctest --test-dir $(BUILD) -j $(if $(filter cuda,$(PRESET)),1,$(JOBS)) --output-on-failure || status=1; scripts/test_summary.sh $(BUILD) || status=1; exit $$status

bench: build
	@scripts/bench.sh build/bhyt

lint:
	@scripts/install_deps.sh lint
	@scripts/lint.sh

format:
	@scripts/install_deps.sh lint
	@git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs clang-format-16 -i

install: deps
	cmake --preset $(PRESET)
	cmake --build $(BUILD) -j $(JOBS) --target bhyt
	cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	rm -rf build
