# FleetJob. `make help` lists the goals. One plain makefile, objects under build/<variant>/.
#
#   VARIANT=release|asan|tsan    how to compile; each has its own folder below build/
#   DEV=1                        the long warning list and -Werror
#
# Sources are found by folder: a new .c file below a component's folder belongs to it. Every
# tests/{unit,numerics,integration,sim}/test_*.c is a test program, every tests/fuzz/fuzz_*.c a
# fuzz target, every tests/bench/bench_*.c a benchmark.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-builtin-rules
.DEFAULT_GOAL := all

VARIANT ?= release
OUT     := build/$(VARIANT)
BIN     := build/bin
ifneq ($(VARIANT),release)
BIN     := $(OUT)/bin
endif

CC          ?= gcc
CLANG       ?= clang
VERSION     := 0.1.0
WARNINGS    := -Wall -Wextra
ifeq ($(DEV),1)
WARNINGS    += -Werror -Wshadow -Wvla -Wundef -Wformat=2 -Wpointer-arith -Wwrite-strings \
               -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition \
               -Wimplicit-fallthrough -fno-common
endif
CFLAGS_release := -O2 -g -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fstack-protector-strong
CFLAGS_asan    := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all \
    -fno-omit-frame-pointer
CFLAGS_tsan    := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
# -ffp-contract=off: a fused multiply-add appears only where the code asks for it, so that results
# do not depend on what the compiler finds to fuse.
CFLAGS   := -std=c17 -D_GNU_SOURCE -I. -I$(OUT) $(WARNINGS) $(CFLAGS_$(VARIANT)) -ffp-contract=off \
            -fno-math-errno -fPIE -DFLEET_VERSION='"$(VERSION)"' $(EXTRA_CFLAGS)
LDFLAGS  := $(filter -fsanitize%,$(CFLAGS_$(VARIANT))) -pie -Wl,-z,relro,-z,now -Wl,--as-needed \
    -rdynamic $(EXTRA_LDFLAGS)
LDLIBS   := -lcjson -lcrypto -lssl -lcurl -lwebsockets -luv -lyaml -lpthread -lm -ldl

# Pictures (cli/drawing): only the command-line program draws, and its tests. The font goes into the
# program.
FONT          ?= /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf
FREETYPE      := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags freetype2 2>/dev/null))
DRAWING_CFLAGS = $(FREETYPE) -DFONT_FILE='"$(FONT)"'
DRAWING_LDLIBS = -lfreetype -lpng16

# ---- components: archive <- folders --------------------------------------------------------------
sources   = $(shell find $(1) -name '*.c' $(foreach x,$(2),-not -path '$(x)') 2>/dev/null | \
    LC_ALL=C sort)
LIBFLEET  := $(call sources,libfleet)
RUNTIME   := $(call sources,agent/runtime,agent/runtime/main.c)
AGENT     := $(call sources,agent,agent/runtime/* agent/main.c agent/entrypoint/preload.c)
CONTROLLER:= $(call sources,controller,controller/main.c)
CLI       := $(call sources,cli,cli/main.c)
CRD       := $(call sources,tools/crd)
FAKES     := $(call sources,tests/fake) $(call sources,tests/support)

objects = $(patsubst %.c,$(OUT)/%.o,$(1))

# Kernels are compiled once a level: x_avx2.c, x_avx512.c, … get that level's instructions.
%_avx2.o:       CFLAGS += -mavx2 -mfma -mf16c
%_avx512.o:     CFLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512
%_avx512bf16.o: CFLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma \
    -mprefer-vector-width=512
%_amx.o:        CFLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mamx-tile \
    -mamx-bf16 -mfma

# Every header of kernels: a new one needs no line elsewhere.
CPU := agent/runtime/backend/cpu
$(OUT)/cpu_kernels.h: $(CPU)/kernels
	@mkdir -p $(@D)
	@printf '#include "%s"\n' $(filter-out %/table.h,$(wildcard $</*.h)) >$@.new
	@if cmp -s $@ $@.new; then rm $@.new; else mv $@.new $@; fi
$(patsubst %.c,$(OUT)/%.o,$(wildcard $(CPU)/kernels_*.c)): $(OUT)/cpu_kernels.h
$(patsubst %.c,build/lint/%.ok,$(wildcard $(CPU)/kernels_*.c)): $(OUT)/cpu_kernels.h

# Loops over elements of any type, for the compiler to make vectors of.
$(OUT)/agent/runtime/comm/fold_%.o: CFLAGS += -O3

ARCHIVES := $(addprefix $(OUT)/,libcli.a libcontroller.a libruntime.a libagent.a libfakes.a \
    libcrd.a libfleet.a)
$(OUT)/libfleet.a:      $(call objects,$(LIBFLEET))
$(OUT)/libruntime.a:    $(call objects,$(RUNTIME))
$(OUT)/libcrd.a:        $(call objects,$(CRD))
$(OUT)/libagent.a:      $(call objects,$(AGENT))
$(OUT)/libcontroller.a: $(call objects,$(CONTROLLER))
$(OUT)/libcli.a:        $(call objects,$(CLI))
$(OUT)/libfakes.a:      $(call objects,$(FAKES))
$(OUT)/lib%.a:
	@mkdir -p $(@D); rm -f $@; ar rcs $@ $^

$(OUT)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  cc $<"; $(CC) $(CFLAGS) -MMD -MP -c -o $@ $<

$(OUT)/tests/unit/test_cublaslt.o: CFLAGS += -isystem tests/cuda_emulator/include
$(OUT)/cli/%.o: CFLAGS += $(DRAWING_CFLAGS)
$(OUT)/cli/drawing/font.o: $(FONT)
$(FONT):
	@echo "$@ is missing: tools/prerequisites.sh build, or say where a TrueType font is:" \
	    "make FONT=/path/to/font.ttf" >&2; exit 1

# ---- programs ------------------------------------------------------------------------------------
MAINS    := $(wildcard cli/main.c agent/main.c agent/runtime/main.c controller/main.c)
name_of   = $(patsubst cli/main.c,fleetjob,$(patsubst agent/main.c,fleetjob-agent,$(patsubst \
              agent/runtime/main.c,fleetjob-train,$(patsubst \
              controller/main.c,fleetjob-controller,$(1)))))
PROGRAMS := $(addprefix $(BIN)/,$(foreach m,$(MAINS),$(call name_of,$(m))))

$(BIN)/fleetjob:            $(OUT)/cli/main.o $(OUT)/libcli.a $(OUT)/libcontroller.a \
    $(OUT)/libruntime.a $(OUT)/libagent.a $(OUT)/libfleet.a
$(BIN)/fleetjob-agent:      $(OUT)/agent/main.o $(OUT)/libagent.a $(OUT)/libfleet.a
$(BIN)/fleetjob-train:      $(OUT)/agent/runtime/main.o $(OUT)/libruntime.a $(OUT)/libagent.a \
    $(OUT)/libfleet.a
$(BIN)/fleetjob-controller: $(OUT)/controller/main.o $(OUT)/libcontroller.a $(OUT)/libfleet.a
$(BIN)/fleetjob: private LDLIBS += $(DRAWING_LDLIBS)
$(PROGRAMS):
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CC) $(LDFLAGS) -o $@ -Wl,--start-group $^ -Wl,--end-group $(LDLIBS)

# Loaded into programs of any C library by their own loaders, so it has none, and nothing that older
# loaders do not know.
# Its constructor comes before all others (initfirst): then the program's own libraries need
# not start.
PRELOAD  := $(BIN)/fleetjob-preload.so
$(PRELOAD): agent/entrypoint/preload.c agent/entrypoint/first_process.c \
    $(wildcard agent/entrypoint/*.h) libfleet/api/wellknown.h
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CC) -std=c17 -D_GNU_SOURCE -I. $(WARNINGS) -O2 -ffreestanding -fPIC \
	    -fvisibility=hidden \
	    -fno-stack-protector -U_FORTIFY_SOURCE -shared -nostdlib \
	    -Wl,-z,defs,-z,initfirst,-z,noexecstack,-z,relro,-z,now,--hash-style=both,--build-id=none \
	    -o $@ $(filter %.c,$^)

programs: $(PROGRAMS) $(PRELOAD)
all: ## build the programs into build/bin, the manual into build/man
all: $(PROGRAMS) $(PRELOAD) $(if $(filter release,$(VARIANT)),build/man/fleetjob.1)

build/man/fleetjob.1: build/bin/fleetjob tools/man.sh
	@rm -rf build/man && tools/man.sh $< build/man

# kubectl finds kubectl-fleetjob in the PATH and runs it as `kubectl fleetjob`.
PREFIX ?= /usr/local
install: all install-library
install: ## programs, library, manual and completion below DESTDIR and PREFIX (/usr/local)
	@install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/man/man1 \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	@install -m 755 $(PROGRAMS) $(DESTDIR)$(PREFIX)/bin
	@ln -sf fleetjob $(DESTDIR)$(PREFIX)/bin/kubectl-fleetjob
	@install -m 644 build/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	@install -m 644 cli/completion/fleetjob.bash \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions/fleetjob
	@echo "installed below $(DESTDIR)$(PREFIX)"


# ---- tests ---------------------------------------------------------------------------------------
TEST_SOURCES := $(wildcard tests/unit/test_*.c tests/numerics/test_*.c tests/integration/test_*.c \
    tests/sim/test_*.c)
TESTS        := $(patsubst tests/%.c,$(OUT)/tests/%,$(TEST_SOURCES))
CHECKS       := $(filter $(OUT)/tests/unit/% $(OUT)/tests/numerics/%,$(TESTS))
BENCHES      := $(patsubst tests/bench/%.c,$(OUT)/bench/%,$(wildcard tests/bench/bench_*.c))
FUZZERS      := $(patsubst tests/fuzz/%.c,build/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))

# Recordings of other systems: kinds of files and their readers (tests/golden/runner.h).
GOLDEN_DIR   ?= tests/golden
# GOLDEN_FILES: a pattern of their names, all by default
$(OUT)/golden: $(patsubst %.c,$(OUT)/%.o,$(wildcard tests/golden/*.c)) $(ARCHIVES)
	@echo "  ld $@"; $(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) -Wl,--start-group $(ARCHIVES) \
	    -Wl,--end-group $(LDLIBS)

.PRECIOUS: $(OUT)/%.o
$(TESTS) $(BENCHES) $(OUT)/golden: private LDLIBS += $(DRAWING_LDLIBS)
$(OUT)/tests/%: $(OUT)/tests/%.o $(ARCHIVES)
	@echo "  ld $@"; $(CC) $(LDFLAGS) -o $@ $< -Wl,--start-group $(ARCHIVES) -Wl,--end-group \
	    -lcmocka $(LDLIBS)
$(OUT)/bench/%: $(OUT)/tests/bench/%.o $(ARCHIVES)
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CC) $(LDFLAGS) -o $@ $< -Wl,--start-group $(ARCHIVES) -Wl,--end-group \
	    $(LDLIBS)

$(OUT)/tests/integration/test_golden: $(OUT)/golden

# Preloaded into trainers by a test, not linked into anything; sanitizers have an allocator of their
# own.
PRELOADED := $(addprefix build/release/tests/preload/,allocations.so die_saving.so)
build/release/tests/preload/allocations.so: tests/preload/allocations.h
$(PRELOADED): build/release/tests/preload/%.so: tests/preload/%.c
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CC) -std=c17 -D_GNU_SOURCE -I. $(WARNINGS) $(CFLAGS_release) -fPIC \
	    -shared -o $@ $< -ldl
build/release/tests/integration/test_memory: build/release/tests/preload/allocations.so
build/release/tests/integration/test_rollback: build/release/tests/preload/die_saving.so
# Trainers open it for places in a store.
$(addprefix $(OUT)/tests/integration/test_store_,cache hdfs minio run): | $(LIBRARY)

# Preloaded by `make soak` only: tests run with the C library's own malloc().
QUICK_MEMORY := build/release/tests/preload/quick_memory.so
$(QUICK_MEMORY): tests/preload/quick_memory.c
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CC) -std=c17 -D_GNU_SOURCE $(WARNINGS) $(CFLAGS_release) -fno-builtin -fPIC \
	    -shared -o $@ $<

# Preloaded into jobs by tests/chaos.
SLOW_DISK := build/release/tests/preload/slow_disk.so
$(SLOW_DISK): tests/preload/slow_disk.c
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CC) -std=c17 -D_GNU_SOURCE $(WARNINGS) $(CFLAGS_release) -fPIC -shared -o $@ \
	    $< -ldl

# Opened by trainers, and linked into a test of its calls (cuda/cuda.mk).
CUDA_FAKE_LIBRARY := build/cuda_fake/$(VARIANT)/libkernels.a
$(addprefix $(OUT)/tests/unit/test_,cuda_calls cuda_graphs cuda_snapshot cublaslt): \
    $(OUT)/tests/unit/test_%: $(OUT)/tests/unit/test_%.o $(CUDA_FAKE_LIBRARY) $(ARCHIVES)
	@echo "  ld $@"; $(CXX) $(LDFLAGS) -o $@ $< $(CUDA_FAKE_LIBRARY) -Wl,--start-group $(ARCHIVES) \
	    -Wl,--end-group -lcmocka $(LDLIBS) $(DRAWING_LDLIBS)
$(OUT)/tests/unit/test_cublaslt: | build/cublaslt_fake/libcublasLt.so.13 \
    build/nccl_fake/libnccl.so.2
$(addprefix $(OUT)/tests/integration/test_cuda,_divided _faults _graphed _ipc _memory) \
    $(OUT)/tests/integration/test_cuda: \
    build/cublaslt_fake/libcublasLt.so.13 \
    build/cuda_fake/$(VARIANT)/libfleet_cuda.so \
    build/nccl_fake/libnccl.so.2
$(addprefix build/release/tests/integration/test_comm_,conformance divided ipc loss nccl renewal): \
    private LDFLAGS += -Wl,-u,fleet_log_write -Wl,-u,fleet_strbuf_appendf
$(addprefix build/release/tests/integration/test_comm_,conformance divided ipc loss nccl renewal): \
    build/cuda_fake/release/libfleet_cuda.so build/nccl_fake/libnccl.so.2
build/release/tests/integration/test_nccl_ways: | build/cuda_fake/release/bench_nccl \
    build/nccl_fake/libnccl.so.2

tests: $(PROGRAMS) $(PRELOAD) $(TESTS) ## build everything that `check` and `test` run

check: check-format check-width check-size check-prose check-tests check-logs check-docs
check: check-includes
check: $(PROGRAMS) $(PRELOAD) $(CHECKS) ## unit and numerics tests, form of the sources: a minute
	@tests/run.sh --variant $(VARIANT) $(CHECKS)

check-all: ## unit, numerics, integration and simulation on the release build
check-all: $(PROGRAMS) $(PRELOAD) $(TESTS)
	@tests/run.sh --variant $(VARIANT) $(TESTS)

golden: ## every recording of other systems below GOLDEN_DIR (tests/golden)
golden: $(PROGRAMS) $(OUT)/golden
	@LSAN_OPTIONS=suppressions=$(CURDIR)/tests/sanitizers/lsan.supp:print_suppressions=0 \
	TSAN_OPTIONS=suppressions=$(CURDIR)/tests/sanitizers/tsan.supp:halt_on_error=1 \
	FLEET_BIN=$(abspath $(BIN)) FLEET_TEST_VARIANT=$(VARIANT) $(OUT)/golden '$(GOLDEN_DIR)' \
	    $(if $(GOLDEN_FILES),'$(GOLDEN_FILES)')

check-levels: $(PROGRAMS) $(TESTS) ## the numbers again with every instruction-set level forced
	@tests/levels.sh $(filter $(OUT)/tests/numerics/%,$(TESTS))

# What reads or writes a trainer's state: steps, kills, saves, resumes, evaluation, exports.
GUARDED := $(filter $(addprefix $(OUT)/tests/integration/test_,equality equality_kills \
             equality_knobs faults faults_files health sync_batch_norm trained_weights \
             training_fields weights),$(TESTS))
check-guard: $(PROGRAMS) $(GUARDED) ## trainers over memory that only kernels can touch
	@FLEET_BACKEND=guard tests/run.sh --variant $(VARIANT) $(GUARDED)

test: prerequisites-test ## everything: tests, a real cluster, sanitizers, every level, fuzzing
	@tests/all.sh

e2e: prerequisites-test ## the scenarios on a real Kubernetes
	@tests/all.sh programs e2e

# The fibers of the fake's emulator were not tried under the address sanitizer in a library. The
# jobs of test_lossy_knobs are those of test_knobs_run, only longer: they take seven minutes there.
NOT_ASAN := %/test_lossy_knobs %/test_cuda_calls %/test_cuda_graphs %/test_cuda_snapshot \
    %/test_cuda %/test_cuda_divided %/test_cuda_faults %/test_cuda_graphed %/test_cuda_ipc \
    %/test_cuda_memory
check-asan: ## unit, numerics, integration under address and undefined sanitizers
	@$(MAKE) VARIANT=asan tests
	@tests/run.sh --variant asan $(patsubst $(OUT)/%,build/asan/%,$(filter-out $(NOT_ASAN),$(TESTS)))

# What runs threads; the rest of the code has none to race.
THREADED := $(filter $(OUT)/tests/numerics/test_programs $(OUT)/tests/numerics/test_initial_state \
    $(addprefix $(OUT)/tests/integration/test_,equality equality_kills faults faults_files \
        sync_batch_norm comm_conformance) \
    $(addprefix $(OUT)/tests/unit/test_,thread_pool backend executor queue communication comm \
    comm_faults comm_connect comm_groups tree_sum prefetch snapshot checkpoint checkpoint_damage \
    dataset hub_server hub_server_limits hub_server_tls trainer_process line_writer),$(TESTS))
threaded: $(PROGRAMS) $(THREADED)
check-tsan: ## what runs threads under the thread sanitizer, with plain kernels
	@$(MAKE) VARIANT=tsan threaded
	@FLEET_ISA=plain tests/run.sh --variant tsan $(patsubst $(OUT)/%,build/tsan/%,$(THREADED))

check-valgrind: $(PROGRAMS) ## trainers under memcheck at the levels it knows (needs valgrind)
	@tests/valgrind.sh $(BIN)

# ---- fuzzing (clang's libFuzzer; sources compiled again with coverage) ---------------------------
FUZZ_SECONDS ?= 10
FUZZ_CFLAGS := -std=c17 -D_GNU_SOURCE -I. -O1 -g -fsanitize=fuzzer-no-link,address,undefined \
               -fno-sanitize-recover=all -ffp-contract=off -DFLEET_VERSION='"$(VERSION)"' \
               -Wno-unknown-warning-option
FUZZ_OBJECTS := $(patsubst %.c,build/fuzz/%.o,$(LIBFLEET) agent/link.c agent/link_message.c \
    agent/progress_line.c agent/runtime/comm/type.c \
    $(addprefix distributed/,rpc/frame.c rpc/pack.c data/instance.c) \
    $(addprefix distributed/ps/,file_read.c file_write.c frame.c merge.c rule.c table.c) \
    $(call sources,agent/runtime/checkpoint agent/runtime/data agent/runtime/tensorboard) \
    $(addprefix cli/curves/,curve.c loss_decode.c loss_record.c event_losses.c json_losses.c))
build/fuzz/%.o: %.c
	@mkdir -p $(@D)
	@echo "  fuzz-cc $<"; $(CLANG) $(FUZZ_CFLAGS) -MMD -MP -c -o $@ $<
build/fuzz/libfuzzed.a: $(FUZZ_OBJECTS)
	@mkdir -p $(@D); rm -f $@; ar rcs $@ $^
build/fuzz/fuzz_%: build/fuzz/tests/fuzz/fuzz_%.o build/fuzz/libfuzzed.a
	@$(CLANG) -fsanitize=fuzzer,address,undefined -o $@ $< build/fuzz/libfuzzed.a $(LDLIBS)

fuzzers: $(FUZZERS)
fuzz: ## every fuzz target for FUZZ_SECONDS (10) on its corpus, from FUZZ_SEED (1; 0: a new one)
fuzz: fuzzers
	@tests/fuzz/run.sh $(FUZZ_SECONDS) $(FUZZERS)

HISTORIES ?= 100000
FIRST     ?= 1
soak: ## HISTORIES (100000) of a whole cluster with faults, by seeds from FIRST (1)
soak: JOBS ?= $(shell nproc)
soak: $(OUT)/tests/sim/test_cluster $(QUICK_MEMORY)
	@HISTORIES=$(HISTORIES) FIRST=$(FIRST) JOBS=$(JOBS) \
	    $(if $(filter release,$(VARIANT)),LD_PRELOAD=$(abspath $(QUICK_MEMORY))) $<

check-reshard: ## every pair of placements on a mesh of two dimensions, by four processes
check-reshard: $(OUT)/tests/integration/test_dtensor
	@FLEET_ALL_PAIRS=1 $<
combinations: ## 500 random strategies, models and numbers of workers by seeds from FIRST (1)
combinations: $(PROGRAMS) $(PRELOAD) $(OUT)/tests/integration/test_combinations
	@COMBINATIONS=500 FIRST=$(FIRST) FLEET_BIN=$(abspath $(BIN)) \
	    $(OUT)/tests/integration/test_combinations

# SECONDS is bash's own count: here it is a variable of make only.
SEED ?= 1
chaos: ## real jobs struck at random for SECONDS (600), or RUNS of them, by seeds from SEED (1)
chaos: $(PROGRAMS) $(SLOW_DISK)
	@tests/chaos/chaos.py --seconds '$(or $(SECONDS),600)' --runs '$(or $(RUNS),0)' --seed '$(SEED)'
CHAOS_RUNS := 12
check-chaos: ## a few runs of chaos, a minute
check-chaos: $(PROGRAMS) $(SLOW_DISK)
	@tests/chaos/chaos.py --runs $(CHAOS_RUNS)
check-model: ## the membership protocol by spin, and whether its properties notice errors
	@libfleet/rendezvous/model/check.sh

grids: ## every grid of eight workers trains with the same bits
grids: $(PROGRAMS) $(PRELOAD) $(OUT)/tests/integration/test_grids
	@GRIDS=all FLEET_BIN=$(abspath $(BIN)) $(OUT)/tests/integration/test_grids

auto-parallel: ## each context of MindSpore on one to eight workers beside one process
auto-parallel: $(PROGRAMS) $(PRELOAD) $(OUT)/tests/integration/test_auto_parallel_workers
	@AUTO_PARALLEL=all FLEET_BIN=$(abspath $(BIN)) \
	    $(OUT)/tests/integration/test_auto_parallel_workers

benches: $(PROGRAMS) $(BENCHES)
bench: prerequisites-test ## the figures of docs/performance.md, beside their rivals where installed
	@$(MAKE) --no-print-directory benches
	@tests/bench/run.sh $(BENCHES)

bench-comm: $(OUT)/bench/bench_comm ## collectives beside Gloo's; gets torch from PyPI (gigabytes)
	@tests/bench/comm.sh $<

bench-strategies: programs ## predicted beside measured step times of strategies on 8 ranks
	@tests/bench/strategies.py $(BIN)/fleetjob --json build/bench-strategies.json

bench-network: programs ## step times of strategies at 1 and 10 Gbit/s; needs root
	@tests/bench/network.py $(BIN)/fleetjob --json build/bench-network.json

bench-cluster: prerequisites-test ## a thousand pods on a real API server, beside others; needs root
	@$(MAKE) --no-print-directory $(PROGRAMS) $(OUT)/bench/bench_pods
	@tests/bench/cluster.sh

# ---- demo ----------------------------------------------------------------------------------------
prerequisites: ; @tools/prerequisites.sh build
prerequisites-test: ; @tools/prerequisites.sh test
DATA ?=
demo: ## a real Kubernetes on this machine, a job trained in it, a worker killed on the way
demo: prerequisites
	@e2e/cluster/cluster check || { \
	    echo "'make demo-local' does without a cluster, and without root"; exit 1; }
	@$(MAKE) -s --no-print-directory -j2 all image
	@tools/demo.sh $(if $(DATA),--data "$(DATA)")
demo-down: ## stop the demo's Kubernetes
	@tools/demo.sh --down
demo-local: prerequisites ## the demo without Kubernetes or root: four worker processes
	@$(MAKE) --no-print-directory -j2 all
	@tools/demo-local.sh $(if $(DATA),--data "$(DATA)")

pictures: $(BIN)/fleetjob ## the pictures of the documentation again, from real runs: some minutes
	@tools/pictures.sh

# ---- images --------------------------------------------------------------------------------------
# The same objects, linked to run from /fleetjob in any image: the loader and the libraries there
# are meant, even if the image has others. The older tag of the two, because it reaches libraries'
# libraries and comes before LD_LIBRARY_PATH. Without a build id, because that depends on the folder
# built in.
IMAGE_FOLDER    ?= build/images
IMAGE_REGISTRY  ?= fleet.local
CLOSURE_LDFLAGS := -Wl,--dynamic-linker=/fleetjob/lib/ld-linux-x86-64.so.2 \
                   -Wl,--disable-new-dtags,-rpath,/fleetjob/lib -Wl,--build-id=none
closure: all library ## the programs as they go into images, below build/release/closure
	@$(MAKE) --no-print-directory BIN=$(OUT)/closure EXTRA_LDFLAGS='$(CLOSURE_LDFLAGS)' programs
	@cp $(LIBRARY) $(OUT)/closure/
image: closure ## image archives below build/images, without a daemon
	@tools/image.sh $(OUT)/closure $(IMAGE_FOLDER) $(IMAGE_REGISTRY) $(VERSION) \
	    controller runtime
image-cuda: closure ## the image of workers on NVIDIA GPUs; gets its libraries from PyPI (gigabytes)
	@tools/cuda-toolkit.sh fetch >/dev/null
	@$(MAKE) --no-print-directory cuda
	@cp $(BIN)/libfleet_cuda.so $(OUT)/closure/
	@CUDA_LIBRARIES=$$(tools/cuda-toolkit.sh libraries) && export CUDA_LIBRARIES && \
	    tools/image.sh $(OUT)/closure $(IMAGE_FOLDER) $(IMAGE_REGISTRY) $(VERSION) runtime-cuda
check-image: image ## start every program in an otherwise empty root, train a job in the image
	@tests/image/run.sh $(IMAGE_FOLDER)
check-transformers: ## exports in Hugging Face's transformers; gets it from PyPI (gigabytes)
check-transformers: $(PROGRAMS)
	@tests/transformers/run.sh --install
check-foreign: ## scripts of PyTorch, Paddle and MindSpore; gets these from PyPI (gigabytes)
check-foreign: $(PROGRAMS)
	@tests/foreign/run.sh --install
check-hadoop: ## a job at hdfs:// whose servers are killed; needs what tools/hdfs.sh fetches
check-hadoop: $(PROGRAMS) $(OUT)/tests/integration/test_store_hdfs
	@FLEET_CHECK_HADOOP=1 $(OUT)/tests/integration/test_store_hdfs
check-chart: ## lint the chart and render it for all kinds of values
	@tests/chart/run.sh

# ---- generated files -----------------------------------------------------------------------------
GENERATED := crds/fleetjobs.fleetjob.dev.yaml \
             $(addprefix docs/reference/,fleetjob.md training.md status.md)
$(OUT)/tools/generate: $(OUT)/tools/generate.o $(OUT)/cli/yaml_print.o $(OUT)/libcrd.a \
    $(OUT)/libfleet.a
	@echo "  ld $@"; $(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(OUT)/tools/generate_strategy: $(OUT)/tools/generate_strategy.o $(OUT)/tools/strategy_page.o \
    $(OUT)/tools/strategy_example.o $(OUT)/cli/yaml_print.o $(OUT)/libfleet.a
	@echo "  ld $@"; $(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
CHART_CRD := charts/fleetjob/files/fleetjobs.fleetjob.dev.yaml
generate: ## write crds/ and docs/reference/ from the tables
generate: $(OUT)/tools/generate $(OUT)/tools/generate_strategy
	@rm -rf docs/reference/strategy && $(OUT)/tools/generate_strategy docs/reference/strategy
	@for file in $(GENERATED); do $< $$file >$$file.new && mv $$file.new $$file; done
	@cp crds/fleetjobs.fleetjob.dev.yaml $(CHART_CRD)
	@tools/api-page.sh >docs/reference/api.md.new && mv docs/reference/api.md.new docs/reference/api.md
verify: ## do the generated files agree with the tables?
verify: $(OUT)/tools/generate $(OUT)/tools/generate_strategy
	@rm -rf $(OUT)/generated && $(OUT)/tools/generate_strategy $(OUT)/generated && \
	    diff -ru docs/reference/strategy $(OUT)/generated || { \
	    echo "docs/reference/strategy is stale: make generate"; exit 1; }
	@for file in $(GENERATED); do $< $$file | diff -u $$file - || { \
	    echo "$$file is stale: make generate"; exit 1; }; done
	@tools/api-page.sh | diff -u docs/reference/api.md - || { \
	    echo "docs/reference/api.md is stale: make generate"; exit 1; }
	@diff -u crds/fleetjobs.fleetjob.dev.yaml $(CHART_CRD) || { \
	    echo "$(CHART_CRD) is stale: make generate"; exit 1; }

# ---- hygiene -------------------------------------------------------------------------------------
C_FILES := $(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh' 2>/dev/null)

format: ## rewrite every C file with clang-format
	@clang-format -i $(C_FILES)
check-format: ## is every C file as clang-format writes it?
	@clang-format --dry-run --Werror $(C_FILES)

# clang-tidy reads every source, gcc's analyzer those of libfleet. A source is read again when it,
# one of its headers or the list of checks has changed.
LINT_CFLAGS = -std=c17 -D_GNU_SOURCE -I. -I$(OUT) -Iinclude -DFLEET_VERSION='"lint"' \
              $(if $(filter cli/%,$<),$(DRAWING_CFLAGS)) \
              $(if $(filter cuda/%,$<),-isystem tests/cuda_emulator/include)
# Left to the sanitizers: gcc 12 takes an assertion's end for a leak, and a half named initializer
# for an unset one.
ANALYZED := -O1 -fanalyzer -Wno-analyzer-malloc-leak \
    -Wno-analyzer-use-of-uninitialized-value -Werror
LINTED   := $(filter-out tests/%,$(filter %.c,$(C_FILES)))
build/lint/%.ok: %.c .clang-tidy
	@mkdir -p $(@D)
	@clang-tidy --quiet --warnings-as-errors='*' $< -- $(LINT_CFLAGS) 2>/dev/null
	@$(CC) $(LINT_CFLAGS) \
	    $(if $(filter libfleet/%,$<),$(ANALYZED) -c -o $(@:.ok=.o),-fsyntax-only) \
	    -MMD -MP -MT $@ -MF $(@:.ok=.d) $<
	@rm -f $(@:.ok=.o); touch $@
lint: ## clang-tidy and gcc's analyzer; shellcheck, yamllint, codespell
lint: $(LINTED:%.c=build/lint/%.ok)
	@tools/lint.sh
check-width: ## no line is wider than 100 columns
	@tools/check-width.sh
check-size: ## no file has more than 500 lines, no function more than 60
	@tools/check-size.sh
check-prose: ## wordings to look at (CONTRIBUTING.md)
	@tools/check-prose.sh
check-tests: ## the names of tests
	@tools/check-tests.sh
check-logs: ## does each line of the log get its keys?
	@tools/check-logs.sh
check-docs: ## do the pages name files and tests that exist?
	@tools/check-docs.sh
stats: ## our column of the comparison table
	@tools/stats.sh
folders: ## the folders of the code and the includes between them; AT=COMMIT: as they were
	@tools/folders.sh $(AT)
check-includes: ## the arrows between folders that are allowed
	@tools/check-includes.sh
check-headers: $(OUT)/cpu_kernels.h
check-headers: ## every header compiles alone
	@tools/check-headers.sh '$(CC)' '-std=c17 -D_GNU_SOURCE -I. -I$(OUT) $(FREETYPE) $(WARNINGS)'

clean: ## remove build/
	@rm -rf build

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | LC_ALL=C sort | \
	    awk -F'\t' '{printf "  %-18s %s\n", $$1, $$2}'

include cuda/cuda.mk
include distributed/distributed.mk

# Those of the fuzz targets where they are asked for: another make may be writing them.
FUZZED := $(if $(filter fuzz% build/fuzz/%,$(MAKECMDGOALS)),build/fuzz)
LINT_DEPENDENCIES := $(if $(filter lint%,$(MAKECMDGOALS)),build/lint)
-include $(shell find $(OUT) $(FUZZED) $(LINT_DEPENDENCIES) -type f -name '*.d' 2>/dev/null)
.PHONY: check-foreign check-hadoop chaos check-chaos check-model check-transformers \
    check-valgrind install \
    golden threaded check-chart check-image closure image image-cuda generate verify all \
    programs tests test e2e check check-all check-levels prerequisites prerequisites-test demo \
    demo-down demo-local check-asan check-tsan fuzz fuzzers soak bench combinations benches \
    bench-comm check-reshard bench-strategies bench-network bench-cluster format check-format \
    check-width \
    check-size check-prose check-tests check-logs check-docs lint pictures stats folders \
    check-includes check-headers clean help auto-parallel
