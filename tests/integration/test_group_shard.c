/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleet_shard.h by three real processes: every level and stage ends with the bits of an optimizer
 * that has the average of all gradients and the whole state.
 */
#include <errno.h>
#include <sys/resource.h>

#include "include/fleet/fleet_shard.h"
#include "tests/integration/library_processes.h"

#define WORLD   3
#define WEIGHTS 15
#define BIASES  4

/* ---- momentum, with the whole state ---------------------------------------------------------- */

static float rate = 0.125f;

static void momentum(void *context, const struct fleet_update *u)
{
    for (int64_t i = 0; i < u->count; i++) {
        u->state[0][i] = 0.5f * u->state[0][i] + u->gradient[i];
        u->value[i] -= *(float *)context * u->state[0][i];
    }
}

static const struct fleet_optimizer optimizer = {momentum, &rate, 1};

static float begin_at(int e)
{
    return (float)e / 4;
}

static float gradient_of(int r, int e, int step)
{
    return (float)((r + 1) * (e + 1) + step);
}

struct reference {
    float value[WEIGHTS], state[WEIGHTS], gradient[WEIGHTS];
};

static void reference_begin(struct reference *ref, int count)
{
    memset(ref, 0, sizeof(*ref));
    for (int e = 0; e < count; e++)
        ref->value[e] = begin_at(e);
}

static void reference_step(struct reference *ref, int count, int step)
{
    struct fleet_update u = {.count = count, .value = ref->value, .gradient = ref->gradient};

    u.state[0] = ref->state;
    for (int e = 0; e < count; e++) {
        ref->gradient[e] = 0;
        for (int r = 0; r < WORLD; r++)
            ref->gradient[e] += gradient_of(r, e, step) * (1.0f / WORLD);
    }
    momentum(&rate, &u);
}

/* ---- the model ------------------------------------------------------------------------------- */

static float weight[WEIGHTS], weight_gradient[WEIGHTS], bias[BIASES], bias_gradient[BIASES];
static float fixed[2];
static struct fleet_ddp_tensor tensors[3] = {
    {"weight", {weight, FLEET_FP32, 2, {5, 3}}, weight_gradient, FLEET_DDP_DENSE},
    {"bias", {bias, FLEET_FP32, 1, {BIASES}}, bias_gradient, FLEET_DDP_DENSE},
    {"fixed", {fixed, FLEET_FP32, 1, {2}}, NULL, FLEET_DDP_FIXED},
};

static struct fleet_group_sharded *begin(const char *level, struct fleet_shard_options options)
{
    struct fleet_group_sharded *s = NULL;

    CHECK(fleet_env_init(&err) == 0);
    for (int e = 0; e < WEIGHTS; e++)
        weight[e] = rank == 0 ? begin_at(e) : -1; /* those of rank 0 count */
    for (int e = 0; e < BIASES; e++)
        bias[e] = rank == 0 ? begin_at(e) : -1;
    CHECK(fleet_group_shard(tensors, 3, &optimizer, level, &options, NULL, &s, &err) == 0);
    return s;
}

static void add_gradients(int step)
{
    for (int e = 0; e < WEIGHTS; e++)
        weight_gradient[e] += gradient_of(rank, e, step);
    for (int e = 0; e < BIASES; e++)
        bias_gradient[e] += gradient_of(rank, e, step);
}

static void check_values(struct fleet_group_sharded *s, const struct reference *w,
                         const struct reference *b)
{
    float whole[WEIGHTS];

    CHECK(fleet_group_shard_gather(s, 0, whole, &err) == 0);
    for (int e = 0; e < WEIGHTS; e++)
        CHECK(whole[e] == w->value[e]);
    CHECK(fleet_group_shard_gather(s, 1, whole, &err) == 0);
    for (int e = 0; e < BIASES; e++)
        CHECK(whole[e] == b->value[e]);
}

static void level(const char *name, int64_t segment_size)
{
    struct fleet_group_sharded *s =
        begin(name, (struct fleet_shard_options){.segment_size = segment_size});
    struct reference w, b;
    bool updated = false;

    reference_begin(&w, WEIGHTS);
    reference_begin(&b, BIASES);
    CHECK(fleet_group_shard_is_divided(s, 0) == (segment_size == 10));
    CHECK(fleet_group_shard_is_divided(s, 1) == 0);
    CHECK(fleet_group_shard_is_divided(s, 3) == -EINVAL);
    for (int step = 0; step < 3; step++) {
        reference_step(&w, WEIGHTS, step);
        reference_step(&b, BIASES, step);
        add_gradients(step);
        CHECK(fleet_group_shard_step(s, NULL, &updated, &err) == 0 && updated);
        CHECK(weight_gradient[0] == 0);
        check_values(s, &w, &b);
    }
    fleet_group_shard_free(s);
}

static void levels(void)
{
    level("os", 0);
    level("os_g", 0);
    level("p_g_os", 10);
    level("p_g_os", 100);
}

/* The first change is the clipped gradient times the rate. */
static void clipped(void)
{
    struct fleet_group_sharded *s =
        begin("p_g_os", (struct fleet_shard_options){.clip_norm = 0.5, .segment_size = 10});
    float whole[WEIGHTS];
    double squares = 0;

    add_gradients(0);
    CHECK(fleet_group_shard_step(s, NULL, NULL, &err) == 0);
    for (int param = 0; param < 2; param++) {
        CHECK(fleet_group_shard_gather(s, param, whole, &err) == 0);
        for (int e = 0; e < (param ? BIASES : WEIGHTS); e++)
            squares += (double)(whole[e] - begin_at(e)) * (whole[e] - begin_at(e));
    }
    squares /= (double)rate * rate;
    CHECK(squares > 0.2499 && squares < 0.2501);
    fleet_group_shard_free(s);
}

/* A step of gradients with overflow counts for nothing. Two steps are merged. */
static void options(void)
{
    struct fleet_group_sharded *s = begin(
        "os", (struct fleet_shard_options){.merge_steps = 2, .merge_avg = true, .clip_norm = 1e9});
    struct reference w, b;
    bool overflow = rank == 1, updated = true;

    reference_begin(&w, WEIGHTS);
    reference_begin(&b, BIASES);
    add_gradients(100);
    CHECK(fleet_group_shard_step(s, &overflow, &updated, &err) == 0 && overflow && !updated);
    overflow = false;
    for (int i = 0; i < 2; i++) { /* twice the same is its average */
        add_gradients(0);
        CHECK(fleet_group_shard_step(s, &overflow, &updated, &err) == 0 && updated == (i == 1));
    }
    reference_step(&w, WEIGHTS, 0);
    reference_step(&b, BIASES, 0);
    check_values(s, &w, &b);
    fleet_group_shard_free(s);
    clipped();
}

/* ---- saving ---------------------------------------------------------------------------------- */

static char folder[] = "/tmp/test_group_shard.XXXXXX";

static void check_file(const char *name, const void *data, size_t bytes)
{
    char path[128], text[4096];
    size_t size;
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/saved/%s", folder, name);
    file = fopen(path, "r");
    CHECK(file);
    size = fread(text, 1, sizeof(text), file);
    (void)fclose(file);
    CHECK(size > bytes && memcmp(text + size - bytes, data, bytes) == 0);
    CHECK(memmem(text, size, "\"step\":\"1\"", 10));
    CHECK(unlink(path) == 0);
}

/* The first rank names the file; nothing of it is left. */
static void full_disk(struct fleet_group_sharded *s, const char *path)
{
    const struct rlimit limit = {64, 64};

    if (rank == 0) {
        (void)signal(SIGXFSZ, SIG_IGN);
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    }
    CHECK((fleet_group_shard_save(s, path, true, &err) < 0) == (rank == 0));
    if (rank == 0) {
        CHECK(err.code == -EFBIG && strstr(err.text, "model.safetensors: File too large"));
        CHECK(rmdir(path) == 0);
    }
    CHECK(fleet_barrier(NULL, &err) == 0);
}

static void saved(void)
{
    struct fleet_group_sharded *s =
        begin("p_g_os", (struct fleet_shard_options){.segment_size = 10});
    char path[64];
    struct reference w, b;
    float all[WEIGHTS + BIASES];

    reference_begin(&w, WEIGHTS);
    reference_begin(&b, BIASES);
    reference_step(&w, WEIGHTS, 0);
    reference_step(&b, BIASES, 0);
    add_gradients(0);
    CHECK(fleet_group_shard_step(s, NULL, NULL, &err) == 0);
    (void)snprintf(path, sizeof(path), "%s/saved", folder);
    CHECK(fleet_group_shard_save(s, path, true, &err) == 0);
    CHECK(fleet_barrier(NULL, &err) == 0);
    if (rank == 1) {
        memcpy(all, w.value, sizeof(w.value));
        memcpy(all + WEIGHTS, b.value, sizeof(float) * BIASES);
        check_file("model.safetensors", all, sizeof(all));
        memcpy(all, w.state, sizeof(w.state));
        memcpy(all + WEIGHTS, b.state, sizeof(float) * BIASES);
        check_file("optimizer.safetensors", all, sizeof(all));
        CHECK(rmdir(path) == 0);
    }
    CHECK(fleet_group_shard_save(s, "/proc/version", true, &err) == -EINVAL);
    CHECK(strstr(err.text, "/proc/version is a file, needed: a folder"));
    CHECK(fleet_barrier(NULL, &err) == 0);
    /* only the first rank writes, so only it has the error; nobody hangs */
    CHECK((fleet_group_shard_save(s, "/proc/none", false, &err) < 0) == (rank == 0));
    CHECK(fleet_barrier(NULL, &err) == 0);
    full_disk(s, path);
    fleet_group_shard_free(s);
}

/* ---- on a mesh ------------------------------------------------------------------------------- */

static void stage_of(int stage, struct fleet_placement placement)
{
    const int64_t ids[WORLD] = {0, 1, 2}, shape[1] = {WORLD};
    const struct fleet_placement sum = {FLEET_PARTIAL, 0, FLEET_SUM};
    struct fleet_shard_stage options = {.stage = stage, .accumulation_steps = 2};
    float values[WEIGHTS], terms[WEIGHTS], whole[WEIGHTS];
    struct fleet_tensor global = {values, FLEET_FP32, 2, {5, 3}},
                        out = {whole, FLEET_FP32, 2, {5, 3}};
    struct fleet_param param = {"weight", global, NULL};
    struct fleet_sharded_optimizer *s = NULL;
    struct fleet_dtensor *gradient = NULL;
    struct fleet_mesh *mesh = NULL;
    struct reference ref;
    bool updated, divides = stage > 0 && placement.kind == FLEET_REPLICATE;

    reference_begin(&ref, WEIGHTS);
    memcpy(values, ref.value, sizeof(values));
    CHECK(fleet_mesh_new(1, shape, ids, NULL, &mesh, &err) == 0);
    CHECK(fleet_dtensor_from_global(&global, mesh, &placement, 1, &param.sharded, &err) == 0);
    CHECK(fleet_optimizer_shard(&param, 1, &optimizer, &options, &s, &err) == 0);
    CHECK(fleet_optimizer_shard_placements(s, 0)[0].kind ==
          (divides ? FLEET_SHARD : placement.kind));
    CHECK(fleet_dtensor_placements(param.sharded)[0].kind ==
          (divides && stage == 3 ? FLEET_SHARD : placement.kind));
    for (int step = 0; step < 2; step++) {
        reference_step(&ref, WEIGHTS, step);
        for (int e = 0; e < WEIGHTS; e++)
            terms[e] = gradient_of(rank, e, step) * (1.0f / WORLD);
        CHECK(fleet_dtensor_from_local(terms, &global, mesh, &sum, 1, &gradient, &err) == 0);
        for (int call = 0; call < 2; call++) {
            const struct fleet_dtensor *const list[1] = {gradient};
            CHECK(fleet_optimizer_shard_step(s, list, &updated, &err) == 0);
            CHECK(updated == (call == 1));
        }
        fleet_dtensor_free(gradient);
        CHECK(fleet_dtensor_unshard(param.sharded, &out, &err) == 0);
        for (int e = 0; e < WEIGHTS; e++)
            CHECK(whole[e] == ref.value[e]);
    }
    fleet_optimizer_shard_free(s);
    fleet_dtensor_free(param.sharded);
    fleet_mesh_free(mesh);
}

static void stages(void)
{
    CHECK(fleet_env_init(&err) == 0);
    for (int stage = 0; stage <= 3; stage++) {
        stage_of(stage, (struct fleet_placement){FLEET_REPLICATE, 0, FLEET_SUM});
        stage_of(stage, (struct fleet_placement){FLEET_SHARD, 1, FLEET_SUM});
    }
}

/* ---- wrong use ------------------------------------------------------------------------------- */

static void refused(const struct fleet_ddp_tensor *list, int count, struct fleet_optimizer o,
                    const char *name, struct fleet_shard_options options, const char *words)
{
    struct fleet_group_sharded *s = NULL;

    CHECK(fleet_group_shard(list, count, &o, name, &options, NULL, &s, &err) == -EINVAL);
    CHECK(!s && strstr(err.text, words));
}

static void arguments(void)
{
    const struct fleet_shard_options none = {0};
    struct fleet_ddp_tensor bad = tensors[0];
    struct fleet_optimizer o = optimizer;
    struct fleet_group_sharded *s = NULL;
    struct fleet_sharded_optimizer *sharded = NULL;
    struct fleet_shard_stage stage = {.stage = 4};
    struct fleet_param param = {"weight", tensors[0].value, NULL};

    CHECK(fleet_group_shard(tensors, 3, &o, "os", NULL, NULL, &s, &err) == FLEET_NOT_INITIALIZED);
    CHECK(fleet_env_init(&err) == 0);
    refused(tensors, 3, o, "stage2", none, "level is \"stage2\", allowed: os, os_g, p_g_os");
    refused(tensors, 3, o, NULL, none, "level is \"NULL\"");
    refused(tensors, 0, o, "os", none, "no tensors");
    o.states = 5;
    refused(tensors, 3, o, "os", none, "states are 5, allowed: 0 to 4");
    o = (struct fleet_optimizer){0};
    refused(tensors, 3, o, "os", none, "no update function");
    o = optimizer;
    refused(tensors, 3, o, "os", (struct fleet_shard_options){.clip_norm = -1}, "clip_norm is -1");
    refused(tensors, 3, o, "os", (struct fleet_shard_options){.merge_steps = -1}, "merge_steps");
    bad.value.type = FLEET_FP16;
    refused(&bad, 1, o, "os", none, "weight must be fp32");
    bad = tensors[0];
    bad.kind = FLEET_DDP_SPARSE;
    refused(&bad, 1, o, "os", none, "weight is sparse");
    bad = tensors[0];
    bad.gradient = NULL;
    refused(&bad, 1, o, "os", none, "weight has no value or no gradient");
    CHECK(fleet_group_shard_step(NULL, NULL, NULL, &err) == -EINVAL);
    CHECK(fleet_optimizer_shard(&param, 1, &o, &stage, &sharded, &err) == -EINVAL);
    CHECK(strstr(err.text, "stage is 4, allowed: 0 to 3"));
    CHECK(fleet_optimizer_shard(&param, 1, &o, NULL, &sharded, &err) == -EINVAL);
    CHECK(strstr(err.text, "parameter 0 has no tensor on a mesh"));
}

static void a_dead_peer(void)
{
    struct fleet_group_sharded *s = begin("os", (struct fleet_shard_options){0});

    CHECK(fleet_barrier(NULL, &err) == 0);
    if (rank == 1)
        (void)raise(SIGKILL);
    while (fleet_group_shard_step(s, NULL, NULL, &err) == 0)
        continue;
    CHECK(err.code == -ECONNRESET || err.code == -EPROTO);
    fleet_group_shard_free(s);
}

/* ---- sizes, and tests ------------------------------------------------------------------------ */

static void test_group_shard__sizes_of_structures(void **state)
{
    (void)state;
    assert_int_equal(sizeof(struct fleet_update), 72);
    assert_int_equal(sizeof(struct fleet_optimizer), 24);
    assert_int_equal(sizeof(struct fleet_shard_options), 32);
    assert_int_equal(sizeof(struct fleet_shard_stage), 40);
}

static void test_group_shard__every_level_has_the_bits_of_one_optimizer(void **state)
{
    (void)state;
    run_processes(WORLD, levels, -1);
}

static void test_group_shard__merges_clips_and_skips_an_overflow(void **state)
{
    (void)state;
    run_processes(WORLD, options, -1);
}

static void test_group_shard__is_saved_by_the_first_rank(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    run_processes(WORLD, saved, -1);
    assert_int_equal(rmdir(folder), 0);
}

static void test_group_shard__every_stage_on_a_mesh(void **state)
{
    (void)state;
    run_processes(WORLD, stages, -1);
}

static void test_group_shard__wrong_arguments(void **state)
{
    (void)state;
    run_processes(WORLD, arguments, -1);
}

static void test_group_shard__a_dead_peer(void **state)
{
    (void)state;
    run_processes(WORLD, a_dead_peer, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_group_shard__every_level_has_the_bits_of_one_optimizer),
        cmocka_unit_test(test_group_shard__merges_clips_and_skips_an_overflow),
        cmocka_unit_test(test_group_shard__is_saved_by_the_first_rank),
        cmocka_unit_test(test_group_shard__every_stage_on_a_mesh),
        cmocka_unit_test(test_group_shard__wrong_arguments),
        cmocka_unit_test(test_group_shard__a_dead_peer),
        cmocka_unit_test(test_group_shard__sizes_of_structures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
