# The CUDA half: included by the Makefile.
#
#   libfleet_cuda.so      kernels, compiled by nvcc for each architecture below, and what launches
#                         them; opened at run time
#   build/emulator/       the same kernels as C++, on the processor (tests/cuda_emulator)

# The toolkit's folder, empty: there is none. CUDA_HOME names one; "none": leave CUDA out.
CUDA := $(shell tools/cuda-toolkit.sh find)

cuda-toolkit: ## the CUDA toolkit: the system's, else PyPI's wheels into the cache (100 MB)
	@tools/cuda-toolkit.sh fetch

# ---- the library ---------------------------------------------------------------------------------
# -fmad=false: as -ffp-contract=off elsewhere, so that the emulator's bits are the device's.
CUDA_KERNELS := $(wildcard cuda/kernels/*.cu)
CUDA_HEADERS := $(wildcard cuda/kernels/*.cuh cuda/kernels/*.h) libfleet/program/program.h \
    libfleet/plan/gpu_scratch.h libfleet/program/fp8.h \
    agent/runtime/comm/comm.h
CUDA_ARCHITECTURES := -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a \
    -gencode arch=compute_100,code=sm_100 -gencode arch=compute_100,code=compute_100
CUDA_CFLAGS := -std=c17 -D_GNU_SOURCE -I. $(WARNINGS) $(CFLAGS_release) -ffp-contract=off -fPIC \
    -DFLEET_VERSION='"$(VERSION)"'

build/cuda/kernels/%.o: cuda/kernels/%.cu $(CUDA_HEADERS)
	@mkdir -p $(@D)
	@echo "  nvcc $<"; "$(CUDA)/bin/nvcc" -std=c++17 -O3 -fmad=false -I. $(CUDA_ARCHITECTURES) \
	    -Xcompiler -fPIC -Werror all-warnings -c -o $@ $<
build/cuda/%.o: %.c
	@mkdir -p $(@D)
	@echo "  cc $<"; $(CC) $(CUDA_CFLAGS) -isystem "$(CUDA)/include" -MMD -MP -c -o $@ $<

# Symbols of cuda/exports.map go out; those of libfleet and the runtime are the program's own copy.
CUDA_OBJECTS := $(CUDA_KERNELS:cuda/%.cu=build/cuda/%.o) \
    $(patsubst %.c,build/cuda/%.o,$(wildcard cuda/*.c) libfleet/base/random.c \
        libfleet/plan/gpu_scratch.c libfleet/program/dgc.c \
        libfleet/program/ops/operand.c)
build/bin/libfleet_cuda.so: $(CUDA_OBJECTS) cuda/exports.map
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CXX) -shared -o $@ $(CUDA_OBJECTS) -Wl,--version-script=cuda/exports.map \
	    -Wl,-z,relro,-z,now -L"$(CUDA)/lib" -L"$(CUDA)/lib64" -l:libcudart_static.a \
	    -lpthread -ldl -lrt
	@nm -D --defined-only $@ | grep -q ' fleet_cuda_gemm' || { \
	    echo "$@ does not export its functions"; rm -f $@; exit 1; }

cuda: ## libfleet_cuda.so, for the GPUs of cuda/cuda.mk; needs a toolkit
cuda: $(if $(CUDA),build/bin/libfleet_cuda.so,cuda-missing)
cuda-missing:
	@echo "libfleet_cuda.so is left out: there is no CUDA toolkit (make cuda-toolkit)"

# ---- benchmarks ----------------------------------------------------------------------------------
# bench_gpu measures the kernels alone: it has them and the runtime in it, and needs the driver only.
BENCH_GPU_SOURCES := $(wildcard tests/bench/gpu/*.c)
build/device/bench_gpu: $(CUDA_KERNELS:cuda/%.cu=build/cuda/%.o) \
    $(BENCH_GPU_SOURCES:%.c=build/cuda/%.o)
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CXX) -static-libstdc++ -static-libgcc -o $@ $^ -L"$(CUDA)/lib" \
	    -L"$(CUDA)/lib64" -l:libcudart_static.a -lpthread -ldl -lrt

# Ways to go on after a lost rank, with NCCL alone; over the fakes it shows that it works.
build/device/bench_nccl: build/cuda/tests/bench/nccl/bench_nccl.o
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CXX) -static-libstdc++ -static-libgcc -o $@ $^ -L"$(CUDA)/lib" \
	    -L"$(CUDA)/lib64" -l:libcudart_static.a -lpthread -ldl -lrt

cuda-sass: cuda ## registers, spills and widths of the kernels, into docs/cuda-sass.md
	@tools/cuda-sass.sh check
	@tools/cuda-sass.sh >docs/cuda-sass.md.new && mv docs/cuda-sass.md.new docs/cuda-sass.md

# ---- the library over fakes ----------------------------------------------------------------------
# libfleet_cuda.so for tests of the host's half: kernels on the emulator, tests/cuda_fake in place of
# libcudart. Of the variant's sanitizers it has the address and undefined ones.
EMULATOR          := $(addprefix tests/cuda_emulator/,emulator.c meet.c memory.c tensor.c)
CUDA_FAKE_OUT     := build/cuda_fake/$(VARIANT)
CUDA_FAKE_SOURCES := $(wildcard cuda/*.c tests/cuda_fake/*.c) libfleet/base/random.c \
    libfleet/plan/gpu_scratch.c libfleet/program/dgc.c \
    libfleet/program/ops/operand.c $(EMULATOR)
CUDA_FAKE_OBJECTS := $(CUDA_KERNELS:%.cu=$(CUDA_FAKE_OUT)/%.cu.o) \
    $(CUDA_FAKE_SOURCES:%.c=$(CUDA_FAKE_OUT)/%.o)
CUDA_FAKE_FLAGS   := -O2 -g -fPIC -DEMULATOR_FAKE -DFLEET_VERSION='"$(VERSION)"' \
    -ffp-contract=off $(if $(filter asan,$(VARIANT)),$(filter -f%,$(CFLAGS_asan))) -I. \
    -isystem tests/cuda_emulator/include
$(CUDA_FAKE_OUT)/%.cu.o: %.cu $(CUDA_HEADERS) $(wildcard tests/cuda_emulator/include/*.h) \
    tests/cuda_emulator/emulator.h
	@mkdir -p $(@D)
	@echo "  cc $<"; $(CXX) -x c++ -std=c++17 -Wall -Wextra -Wno-unknown-pragmas \
	    $(CUDA_FAKE_FLAGS) -c -o $@ $<
$(CUDA_FAKE_OUT)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  cc $<"; $(CC) -std=c17 -D_GNU_SOURCE $(WARNINGS) $(CUDA_FAKE_FLAGS) -MMD -MP -c -o $@ $<
$(CUDA_FAKE_OUT)/libkernels.a: $(CUDA_FAKE_OBJECTS)
	@rm -f $@; ar rcs $@ $^
$(CUDA_FAKE_OUT)/libfleet_cuda.so: $(CUDA_FAKE_OBJECTS) cuda/exports.map
	@echo "  ld $@"; $(CXX) -shared -o $@ $(CUDA_FAKE_OBJECTS) $(filter -fsanitize%,$(CUDA_FAKE_FLAGS)) \
	    -Wl,--version-script=cuda/exports.map -lpthread

# It shows that the benchmark works, not how fast anything is.
$(CUDA_FAKE_OUT)/bench_gpu: $(BENCH_GPU_SOURCES:%.c=$(CUDA_FAKE_OUT)/%.o) \
    $(CUDA_FAKE_OUT)/libkernels.a
	@echo "  ld $@"; $(CXX) $(filter -fsanitize%,$(CUDA_FAKE_FLAGS)) -o $@ $^ -lpthread

$(CUDA_FAKE_OUT)/bench_nccl: $(CUDA_FAKE_OUT)/tests/bench/nccl/bench_nccl.o \
    $(CUDA_FAKE_OUT)/libkernels.a
	@echo "  ld $@"; $(CXX) $(filter -fsanitize%,$(CUDA_FAKE_FLAGS)) -o $@ $^ -lpthread -ldl

# libnccl.so.2 over files (tests/nccl_fake), for the library over fakes.
NCCL_FAKE_SOURCES := $(wildcard tests/nccl_fake/*.c)
build/nccl_fake/libnccl.so.2: $(NCCL_FAKE_SOURCES) $(wildcard tests/nccl_fake/*.h) \
    cuda/nccl_api.h tests/cuda_fake/external.h
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CC) -std=c17 -D_GNU_SOURCE $(WARNINGS) -O2 -g -fPIC -shared -I. \
	    -isystem tests/cuda_emulator/include -o $@ $(NCCL_FAKE_SOURCES) -lpthread

# libcublasLt.so.13 for the library over fakes (tests/cublaslt_fake).
CUBLASLT_FAKE_SOURCES := $(wildcard tests/cublaslt_fake/*.c)
build/cublaslt_fake/libcublasLt.so.13: $(CUBLASLT_FAKE_SOURCES) \
    $(wildcard tests/cublaslt_fake/*.h) cuda/cublaslt_api.h tests/cuda_fake/external.h
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CC) -std=c17 -D_GNU_SOURCE $(WARNINGS) -O2 -g -fPIC -shared -I. \
	    -isystem tests/cuda_emulator/include -o $@ $(CUBLASLT_FAKE_SOURCES) -lm

# ---- the emulator --------------------------------------------------------------------------------
# race: every access to memory is seen; asan: the address and undefined sanitizers.
EMULATOR_FLAGS_race := -fsanitize=thread
EMULATOR_FLAGS_asan := -fsanitize=address,undefined -fno-sanitize-recover=all \
    -fno-omit-frame-pointer
EMULATOR_ARCHIVES_race := build/release
EMULATOR_ARCHIVES_asan := build/asan
EMULATOR_INCLUDES := -I. -isystem tests/cuda_emulator/include
# Few rows in a chunk of the classifier, so that a test of several chunks is small.
EMULATOR_DEFINES := -DRIG_EMULATED -DGPU_CLASSIFIER_ROWS=64
EMULATOR_RUNTIME := $(EMULATOR) tests/cuda_emulator/backend_emulated.c \
    $(wildcard cuda/operators*.c cuda/products*.c) libfleet/plan/gpu_scratch.c
EMULATOR_NUMERICS := test_kernels test_kernels_sizes test_gradients test_attention test_parts \
    test_shared_statistics test_dgc test_dgc_update test_fp8 test_rounding \
    test_trust_squares test_classifier
EMULATOR_TESTS := test_emulator $(EMULATOR_NUMERICS)

# emulator_rules VARIANT
define emulator_rules
build/emulator/$(1)/%.cu.o: %.cu $$(CUDA_HEADERS) $$(wildcard tests/cuda_emulator/include/*.h) \
    tests/cuda_emulator/emulator.h
	@mkdir -p $$(@D)
	@echo "  cc $$<"; $$(CXX) -x c++ -std=c++17 -O1 -g -Wall -Wextra -Wno-unknown-pragmas \
	    -ffp-contract=off $$(EMULATOR_FLAGS_$(1)) $$(EMULATOR_INCLUDES) -c -o $$@ $$<
build/emulator/$(1)/%.o: %.c
	@mkdir -p $$(@D)
	@echo "  cc $$<"; $$(CC) -std=c17 -D_GNU_SOURCE -O1 -g $$(WARNINGS) $$(EMULATOR_DEFINES) \
	    -ffp-contract=off $$(filter-out -fsanitize=thread,$$(EMULATOR_FLAGS_$(1))) \
	    $$(EMULATOR_INCLUDES) -MMD -MP -c -o $$@ $$<
build/emulator/$(1)/libkernels.a: $$(CUDA_KERNELS:%.cu=build/emulator/$(1)/%.cu.o) \
    $$(EMULATOR_RUNTIME:%.c=build/emulator/$(1)/%.o)
	@rm -f $$@; ar rcs $$@ $$^

EMULATOR_LINK_$(1) = $$(CXX) $$(filter-out -fsanitize=thread,$$(EMULATOR_FLAGS_$(1))) -o $$@ \
    $$(filter %.o,$$^) build/emulator/$(1)/libkernels.a -Wl,--start-group \
    $$(addprefix $$(EMULATOR_ARCHIVES_$(1))/,libruntime.a libfakes.a libagent.a libfleet.a) \
    -Wl,--end-group -lcmocka $$(LDLIBS)
EMULATOR_NEEDS_$(1) := build/emulator/$(1)/libkernels.a \
    $$(addprefix $$(EMULATOR_ARCHIVES_$(1))/,libruntime.a libfakes.a libagent.a libfleet.a)
build/emulator/$(1)/test_emulator: build/emulator/$(1)/tests/cuda_emulator/test_emulator.o \
    build/emulator/$(1)/tests/cuda_emulator/planted.cu.o $$(EMULATOR_NEEDS_$(1))
	@echo "  ld $$@"; $$(EMULATOR_LINK_$(1))
$(addprefix build/emulator/$(1)/,$(EMULATOR_NUMERICS)): build/emulator/$(1)/test_%: \
    build/emulator/$(1)/tests/numerics/test_%.o $$(EMULATOR_NEEDS_$(1))
	@echo "  ld $$@"; $$(EMULATOR_LINK_$(1))
emulator-$(1): $$(addprefix build/emulator/$(1)/,$$(EMULATOR_TESTS))
endef
$(eval $(call emulator_rules,race))
$(eval $(call emulator_rules,asan))

EMULATOR_PROGRAMS = $(addprefix build/emulator/$(1)/,$(EMULATOR_TESTS))
check-cuda-emulator: ## the CUDA kernels on the processor: races, then sanitizers
check-cuda-emulator: check-cuda-race check-cuda-asan
check-cuda-race: emulator-race
	@tests/run.sh --variant race $(call EMULATOR_PROGRAMS,race)
check-cuda-asan: # a make of its own: the archives are of another variant
	@$(MAKE) --no-print-directory VARIANT=asan emulator-asan
	@ASAN_OPTIONS=detect_stack_use_after_return=0:detect_leaks=0 \
	    tests/run.sh --variant asan $(call EMULATOR_PROGRAMS,asan)

check-cuda-mutants: emulator-race ## do the tests find bugs that are planted in the kernels? minutes
	@LDLIBS="$(LDLIBS)" tests/cuda_emulator/mutants.py

# ---- on a GPU ------------------------------------------------------------------------------------
# The rig's tests over libfleet_cuda.so, which they open as a trainer does (tests/gpu).
build/device/%.o: %.c
	@mkdir -p $(@D)
	@echo "  cc $<"; $(CC) $(CFLAGS) -DRIG_DEVICE -MMD -MP -c -o $@ $<
GPU_TESTS := $(addprefix build/device/,$(EMULATOR_NUMERICS))
$(GPU_TESTS): build/device/test_%: build/device/tests/numerics/test_%.o \
    build/device/tests/gpu/backend_device.o $(addprefix build/release/,libruntime.a libfakes.a \
    libagent.a libfleet.a)
	@echo "  ld $@"; $(CC) $(LDFLAGS) -Wl,-u,fleet_log_write -Wl,-u,fleet_strbuf_appendf -o $@ \
	    $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group -lcmocka $(LDLIBS)

gpu-package: ## build/gpu: programs, tests and their libraries, for make check-gpu on another machine
gpu-package: cuda programs $(GPU_TESTS) emulator-race \
    $(addprefix build/release/tests/integration/test_,cuda cuda_divided cuda_faults \
        comm_conformance comm_divided comm_ipc comm_loss comm_nccl comm_renewal) \
    build/device/bench_gpu build/device/bench_nccl
	@tests/gpu/package.sh build/gpu

GPU_LOGS ?= build/gpu-logs
check-gpu: ## the whole suite on a GPU; without one it is skipped
	@tests/gpu/check.sh --build $(GPU_LOGS)

GPU_RESULTS ?= build/gpu-results
bench-gpu: ## kernels and jobs on a GPU, beside PyTorch where installed: four minutes
	@[ -e build/gpu/bin/bench_gpu ] || $(MAKE) --no-print-directory gpu-package
	@tests/bench/gpu.py $(GPU_RESULTS)

-include $(shell find build/emulator build/device build/cuda build/cuda_fake -type f -name '*.d' 2>/dev/null)
.PHONY: cuda cuda-sass cuda-missing cuda-toolkit emulator-race emulator-asan check-cuda-emulator \
    check-cuda-race check-cuda-asan check-cuda-mutants gpu-package check-gpu bench-gpu
