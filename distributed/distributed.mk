# libfleet.so: fleet.h for trainers of one's own. Its objects are position-independent and lie in a
# folder of their own, of the release build in every variant. The archive libfleet.a is internal and
# another thing.

LIBRARY     := build/lib/libfleet.so.0
LIBRARY_OUT := build/pic
LIBRARY_SOURCES := $(call sources,distributed) $(call sources,agent/runtime/comm) \
    agent/runtime/backend/cpu/backend_level.c \
    $(addprefix libfleet/base/,assert.c child.c clock.c digest.c division.c error.c errors.c file.c isa.c \
        json.c json_build.c json_get.c json_print.c json_scan.c json_tree.c map.c memory.c \
        random.c strbuf.c value_path.c variable.c) \
    $(filter-out %/strategy_options.c %/strategy_spec.c,$(call sources,libfleet/strategy)) \
    $(call sources,libfleet/program,libfleet/program/models/* libfleet/program/passes/*) \
    $(call sources,agent/runtime/executor) $(addprefix agent/runtime/,state.c step/running.c \
        inference/inference_file.c inference/inference_write.c) \
    $(filter-out %/backend_level.c,$(call sources,agent/runtime/backend/cpu)) \
    $(addprefix libfleet/checkpoint/,safetensors.c safetensors_header.c) \
    $(addprefix libfleet/plan/,adders.c arena.c gathers.c memory_plan.c ownership.c \
        runtime_hierarchy.c runtime_memory.c runtime_traffic.c tree.c) \
    $(addprefix libfleet/autoparallel/mesh/,mesh.c reshard.c)
LIBRARY_OBJECTS := $(LIBRARY_SOURCES:%.c=$(LIBRARY_OUT)/%.o)

$(LIBRARY_OUT)/agent/runtime/comm/fold_%.o: CFLAGS += -O3
# Loops over the elements of a row, for the compiler to make vectors of.
$(addprefix $(LIBRARY_OUT)/distributed/ps/,frame.o rule.o): CFLAGS += -O3
$(patsubst %.c,$(LIBRARY_OUT)/%.o,$(wildcard $(CPU)/kernels_*.c)): $(OUT)/cpu_kernels.h
$(LIBRARY_OUT)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  cc $< (pic)"; $(CC) $(CFLAGS_release) $(filter-out -fPIE $(CFLAGS_$(VARIANT)),$(CFLAGS)) \
	    -fPIC -ffunction-sections -MMD -MP -c -o $@ $<
$(LIBRARY): $(LIBRARY_OBJECTS) distributed/libfleet.map
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CC) -shared -Wl,-soname,libfleet.so.0 -Wl,-z,defs,-z,relro,-z,now \
	    -Wl,--as-needed,--gc-sections -Wl,--version-script=distributed/libfleet.map $(EXTRA_LDFLAGS) \
	    -o $@ $(LIBRARY_OBJECTS) -lcjson -lcurl -lssl -lcrypto -lpthread -lm
	@ln -sf libfleet.so.0 build/lib/libfleet.so

library: $(LIBRARY) ## libfleet.so, for trainers that use include/fleet/fleet.h

install-library: library ## the library, its headers, its pkg-config file and its Python
	@install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include/fleet
	@install -m 755 $(LIBRARY) $(DESTDIR)$(PREFIX)/lib
	@ln -sf libfleet.so.0 $(DESTDIR)$(PREFIX)/lib/libfleet.so
	@install -m 644 include/fleet/*.h $(DESTDIR)$(PREFIX)/include/fleet
	@install -d $(DESTDIR)$(PREFIX)/share/fleetjob/python
	@install -m 644 python/*.py $(DESTDIR)$(PREFIX)/share/fleetjob/python
	@sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' distributed/fleet.pc.in \
	    >$(DESTDIR)$(PREFIX)/lib/pkgconfig/fleet.pc

# The tests are users of the library, not of our archives.
LIBRARY_TESTS := $(OUT)/tests/unit/test_role \
    $(addprefix $(OUT)/tests/integration/,test_ddp test_ddp_use test_distributed test_dtensor test_dtensor_use test_fleet_init test_group_shard test_program_use \
        test_fleet_data test_fleet_job test_fs test_fs_hdfs_real test_fs_s3 test_fs_webhdfs test_ps test_ps_click test_ps_faults \
        test_recompute test_rpc test_spawn test_split)
$(LIBRARY_TESTS): %: %.o $(LIBRARY)
	@echo "  ld $@"; $(CC) $(LDFLAGS) -o $@ $< $(LIBRARY) -Wl,-rpath,$(abspath build/lib) -lcmocka -lpthread -lm

$(addprefix $(OUT)/bench/,bench_ps bench_rpc): $(OUT)/bench/%: $(OUT)/tests/bench/%.o $(LIBRARY)
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CC) $(LDFLAGS) -o $@ $< $(LIBRARY) -Wl,-rpath,$(abspath build/lib)

# These look at what the library does not export.
$(OUT)/tests/unit/test_instance: $(OUT)/tests/unit/test_instance.o \
    $(OUT)/distributed/data/instance.o $(OUT)/libfleet/base/error.o
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CC) $(LDFLAGS) -o $@ $^ -lcmocka -lm

$(OUT)/tests/unit/test_ps_wire: $(addprefix $(OUT)/,tests/unit/test_ps_wire.o \
    distributed/ps/wire.o distributed/rpc/secure.o libfleet/base/error.o)
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CC) $(LDFLAGS) -o $@ $^ -lcmocka -lssl -lcrypto -lpthread -lm

$(OUT)/tests/unit/test_ps_table: $(addprefix $(OUT)/,tests/unit/test_ps_table.o \
    $(addprefix distributed/ps/,frame.o merge.o rule.o table.o) \
    $(addprefix libfleet/base/,assert.o error.o random.o))
	@mkdir -p $(@D)
	@echo "  ld $@"; $(CC) $(LDFLAGS) -o $@ $^ -lcmocka -lm

# The first compiles its trainer with fleet.h, the last opens the library.
$(addprefix $(OUT)/tests/integration/test_,own_trainer launch_servers program_job): | $(LIBRARY)

-include $(LIBRARY_OBJECTS:.o=.d)
