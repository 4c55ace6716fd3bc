/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Modes of fleet_ps.h with several workers, and what happens when servers and workers are killed.
 * The reference is a plain loop in one process.
 */
#include <math.h>

#include "tests/integration/ps_processes.h"

#define STEPS   6
#define KEYS    5
#define WIDTH   2
#define WORKERS 2
#define DENSE   7

static enum fleet_ps_mode mode;
static int pause_step;        /* each worker tells and waits before it pushes in this step */
static bool is_paused_behind; /* or between the push and the end of the step */
static char results[64];      /* folder for the workers' results */

/* ---- a small model --------------------------------------------------------------------------- */

/* Keys of worker `id` in `step`: some are shared by the workers. */
static void keys_of(int id, int step, uint64_t out[KEYS])
{
    for (int i = 0; i < KEYS; i++)
        out[i] = (uint64_t)(i < 2 ? i : 10 * id + i + step % 3) * 77;
}

/* A gradient that depends on the values: lost updates change all that follow. */
static void gradient_of(int id, int step, const float *values, int count, float *out)
{
    for (int i = 0; i < count; i++)
        out[i] = values[i] * 0.3F + (float)((id * 7 + step * 3 + i) % 11) / 7 - 0.6F;
}

static struct fleet_ps_table rows_table(void)
{
    struct fleet_ps_table table = sparse_table(0, WIDTH);

    if (mode != FLEET_PS_GEO)
        table.rule = FLEET_PS_ADAGRAD;
    table.initial_range = 0.5F;
    return table;
}

static struct fleet_ps_table dense(void)
{
    struct fleet_ps_table table = dense_table(1, DENSE);

    if (mode != FLEET_PS_GEO)
        table.rule = FLEET_PS_ADAM;
    table.initial_range = 0.5F;
    return table;
}

static void train_step(int id, int step)
{
    uint64_t keys[KEYS];
    float rows[KEYS * WIDTH], gradients[KEYS * WIDTH], block[DENSE], block_gradient[DENSE];

    keys_of(id, step, keys);
    CHECK(fleet_ps_pull(ps, 0, keys, KEYS, true, rows, &err) == 0);
    CHECK(fleet_ps_pull_dense(ps, 1, block, &err) == 0);
    gradient_of(id, step, rows, KEYS * WIDTH, gradients);
    gradient_of(id, step, block, DENSE, block_gradient);
    if (step == pause_step && !is_paused_behind)
        tell_and_wait();
    CHECK(fleet_ps_push(ps, 0, keys, KEYS, gradients, NULL, NULL, &err) == 0);
    CHECK(fleet_ps_push_dense(ps, 1, block_gradient, &err) == 0);
    if (step == pause_step && is_paused_behind)
        tell_and_wait();
    CHECK(fleet_ps_step_end(ps, &err) == 0);
}

/* What the worker sees at the end, as a file. */
static void write_result(int id)
{
    uint64_t keys[100];
    float rows[100 * WIDTH], block[DENSE];
    char path[96];
    FILE *file;

    for (int i = 0; i < 100; i++)
        keys[i] = (uint64_t)i * 77;
    CHECK(fleet_ps_pull(ps, 0, keys, 100, false, rows, &err) == 0);
    CHECK(fleet_ps_pull_dense(ps, 1, block, &err) == 0);
    (void)snprintf(path, sizeof(path), "%s/%d", results, id);
    file = fopen(path, "w");
    CHECK(file && fwrite(rows, sizeof(rows), 1, file) == 1);
    CHECK(fwrite(block, sizeof(block), 1, file) == 1 && fclose(file) == 0);
}

static void train(void)
{
    struct fleet_ps_table sparse_rows = rows_table(), block = dense();
    int id = rank;

    be_worker(id, mode);
    CHECK(fleet_ps_table_new(ps, &sparse_rows, &err) == 0);
    CHECK(fleet_ps_table_new(ps, &block, &err) == 0);
    for (int step = (int)fleet_ps_step(ps); step < STEPS; step++)
        train_step(id, step);
    CHECK(fleet_worker_barrier(ps, &err) == 0);
    write_result(id);
    CHECK(fleet_worker_barrier(ps, &err) == 0);
    CHECK(fleet_worker_stop(ps, &err) == 0);
}

/* ---- running it ------------------------------------------------------------------------------ */

struct result {
    float rows[100 * WIDTH], block[DENSE];
};

static void read_result(int id, struct result *out)
{
    char path[96];
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%d", results, id);
    file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fread(out, sizeof(*out), 1, file), 1);
    (void)fclose(file);
}

static pid_t worker_pids[WORKERS];

static void begin(enum fleet_ps_mode wanted, int servers, int paused, bool behind, int every)
{
    mode = wanted;
    pause_step = paused;
    is_paused_behind = behind;
    snapshot_every = every;
    (void)snprintf(results, sizeof(results), "%s", new_folder());
    (void)snprintf(snapshots, sizeof(snapshots), every > 0 ? "%s/s" : "", results);
    open_pipes();
    start_servers(servers, WORKERS);
    for (int i = 0; i < WORKERS; i++)
        worker_pids[i] = start_worker(i, train);
}

static void finish(struct result *first)
{
    struct result other;

    for (int i = 0; i < WORKERS; i++)
        end_well(worker_pids[i]);
    servers_end_well();
    read_result(0, first);
    read_result(1, &other);
    if (mode != FLEET_PS_GEO) /* in geo mode each has its copies */
        assert_memory_equal(first, &other, sizeof(other));
    close_pipes();
    remove_folder(results);
}

/* ---- the reference: one process without servers ---------------------------------------------- */

/* The first values, which are the servers' own rule. */
static void first_values(struct result *out)
{
    struct fleet_ps_table sparse_rows, block;
    uint64_t keys[100];

    mode = FLEET_PS_SYNC;
    snapshots[0] = '\0';
    sparse_rows = rows_table();
    block = dense();
    start_servers(1, 1);
    (void)setenv("FLEET_WORLD_SECRET", "a secret", 1);
    be_worker(0, mode);
    CHECK(fleet_ps_table_new(ps, &sparse_rows, &err) == 0);
    CHECK(fleet_ps_table_new(ps, &block, &err) == 0);
    for (int i = 0; i < 100; i++)
        keys[i] = (uint64_t)i * 77;
    CHECK(fleet_ps_pull(ps, 0, keys, 100, true, out->rows, &err) == 0);
    CHECK(fleet_ps_pull_dense(ps, 1, out->block, &err) == 0);
    CHECK(fleet_worker_stop(ps, &err) == 0);
    servers_end_well();
}

struct plain {
    struct result values;
    float sums[100], m[DENSE], v[DENSE], power1, power2;
    bool is_touched[100];
};

static void adam_step(struct plain *p, const float *g)
{
    float correction = sqrtf(1 - p->power2), rate = 0.05F * correction / (1 - p->power1);

    for (int i = 0; i < DENSE; i++) {
        p->m[i] = 0.9F * p->m[i] + (1 - 0.9F) * g[i];
        p->v[i] = 0.999F * p->v[i] + (1 - 0.999F) * g[i] * g[i];
        p->values.block[i] -= rate * (p->m[i] / (sqrtf(p->v[i]) + 1e-8F * correction));
    }
    p->power1 *= 0.9F;
    p->power2 *= 0.999F;
}

static void adagrad_step(struct plain *p, int row, const float *g)
{
    float rate = 0.05F * sqrtf(3 / (3 + p->sums[row]));
    double squares = 0;

    for (int k = 0; k < WIDTH; k++) {
        p->values.rows[row * WIDTH + k] -= rate * g[k];
        squares += (double)g[k] * g[k];
    }
    p->sums[row] += (float)(squares / WIDTH);
}

/* One step: the gradients of all workers in their order, divided by their number. */
static void plain_step(struct plain *p, int step)
{
    float rows[100][WIDTH] = {{0}}, block[DENSE] = {0};
    bool has[100] = {false};

    for (int id = 0; id < WORKERS; id++) {
        uint64_t keys[KEYS];
        float values[KEYS * WIDTH], g[KEYS * WIDTH], dense_g[DENSE];
        keys_of(id, step, keys);
        for (int i = 0; i < KEYS; i++)
            memcpy(values + i * WIDTH, p->values.rows + keys[i] / 77 * WIDTH,
                   WIDTH * sizeof(float));
        gradient_of(id, step, values, KEYS * WIDTH, g);
        gradient_of(id, step, p->values.block, DENSE, dense_g);
        for (int i = 0; i < KEYS; i++)
            for (int k = 0; k < WIDTH; k++)
                rows[keys[i] / 77][k] += g[i * WIDTH + k];
        for (int i = 0; i < KEYS; i++)
            has[keys[i] / 77] = p->is_touched[keys[i] / 77] = true;
        for (int i = 0; i < DENSE; i++)
            block[i] += dense_g[i];
    }
    for (int row = 0; row < 100; row++) {
        for (int k = 0; k < WIDTH; k++)
            rows[row][k] *= 1.0F / WORKERS;
        if (has[row])
            adagrad_step(p, row, rows[row]);
    }
    for (int i = 0; i < DENSE; i++)
        block[i] *= 1.0F / WORKERS;
    adam_step(p, block);
}

/* The result of one process: rows that no worker has touched are unknown to the servers. */
static void expect_plain(const struct result *actual)
{
    struct plain p = {.power1 = 0.9F, .power2 = 0.999F};

    first_values(&p.values);
    for (int step = 0; step < STEPS; step++)
        plain_step(&p, step);
    for (int row = 0; row < 100; row++)
        if (!p.is_touched[row])
            memset(p.values.rows + row * WIDTH, 0, WIDTH * sizeof(float));
    assert_memory_equal(actual->rows, p.values.rows, sizeof(p.values.rows));
    assert_memory_equal(actual->block, p.values.block, sizeof(p.values.block));
}

/* ---- sync ------------------------------------------------------------------------------------ */

static void test_ps_faults__sync_has_the_bits_of_one_process(void **state)
{
    struct result result;

    (void)state;
    for (int servers = 1; servers <= 3; servers++) {
        begin(FLEET_PS_SYNC, servers, -1, false, 0);
        finish(&result);
        expect_plain(&result);
    }
}

/* Kill server 1 in the middle of step 3, and start it again. */
static void kill_a_server(bool behind, struct result *result)
{
    begin(FLEET_PS_SYNC, 2, 3, behind, 1);
    hear(WORKERS);
    kill_hard(server_pids[1]);
    start_server(1);
    allow(WORKERS);
    finish(result);
}

static void test_ps_faults__a_replaced_server_loses_nothing_in_sync_mode(void **state)
{
    struct result result;

    (void)state;
    kill_a_server(false, &result);
    expect_plain(&result);
    kill_a_server(true, &result);
    expect_plain(&result);
}

/* Connections in TLS, also the second one to the replaced server. */
static void test_ps_faults__encrypted_values_have_the_same_bits(void **state)
{
    struct result result;

    (void)state;
    (void)setenv("FLEET_WORLD_SECRET", "a secret", 1);
    (void)setenv("FLEET_DATA_ENCRYPTION", "AES-GCM", 1);
    kill_a_server(true, &result);
    (void)unsetenv("FLEET_DATA_ENCRYPTION");
    expect_plain(&result);
}

static void test_ps_faults__both_servers_are_replaced(void **state)
{
    struct result result;

    (void)state;
    begin(FLEET_PS_SYNC, 2, 3, true, 1);
    hear(WORKERS);
    kill_hard(server_pids[0]);
    kill_hard(server_pids[1]);
    start_server(0);
    start_server(1);
    allow(WORKERS);
    finish(&result);
    expect_plain(&result);
}

/* Kill worker 1 in the middle of step 3. Another process computes the step again. */
static void kill_a_worker(bool behind, struct result *result)
{
    begin(FLEET_PS_SYNC, 2, 3, behind, 0);
    hear(WORKERS);
    kill_hard(worker_pids[1]);
    pause_step = -1;
    worker_pids[1] = start_worker(1, train);
    allow(1);
    finish(result);
}

static void test_ps_faults__a_replaced_worker_computes_its_step_again(void **state)
{
    struct result result;

    (void)state;
    kill_a_worker(false, &result);
    expect_plain(&result);
    kill_a_worker(true, &result);
    expect_plain(&result);
}

/* Snapshots every 100 steps: the server begins again, and the others go on. */
static void test_ps_faults__a_server_without_a_snapshot_goes_on(void **state)
{
    struct result result;

    (void)state;
    begin(FLEET_PS_SYNC, 2, 3, false, 100);
    hear(WORKERS);
    kill_hard(server_pids[1]);
    start_server(1);
    allow(WORKERS);
    finish(&result);
}

/* ---- other modes ----------------------------------------------------------------------------- */

static void test_ps_faults__other_modes_survive_kills(void **state)
{
    static const enum fleet_ps_mode modes[] = {FLEET_PS_HALF_ASYNC, FLEET_PS_ASYNC, FLEET_PS_GEO};
    struct result result;

    (void)state;
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        begin(modes[i], 2, 3, false, 1);
        hear(WORKERS);
        kill_hard(server_pids[0]);
        start_server(0);
        kill_hard(worker_pids[1]);
        pause_step = -1;
        worker_pids[1] = start_worker(1, train);
        allow(1);
        finish(&result);
    }
}

/* One worker that is alone gets in geo mode what it trains by itself. */
static void train_alone(void)
{
    struct fleet_ps_table table = sparse_table(0, 1);
    struct fleet_ps_options options;
    struct fleet_role *role = role_of(FLEET_WORKER, 0);
    const uint64_t key = 3;
    const float gradient = 1;
    float first, copy;

    fleet_ps_options_init(&options);
    options.mode = FLEET_PS_GEO;
    options.k_steps = 2;
    options.timeout_ms = TIMEOUT_MS;
    CHECK(fleet_worker_start(role, &options, &ps, &err) == 0);
    table.rule = FLEET_PS_ADAM;
    CHECK(fleet_ps_table_new(ps, &table, &err) == -EINVAL && strstr(err.text, "geo"));
    table.rule = FLEET_PS_SGD;
    CHECK(fleet_ps_table_new(ps, &table, &err) == 0);
    CHECK(fleet_ps_pull(ps, 0, &key, 1, true, &first, &err) == 0);
    for (int step = 0; step < 4; step++) {
        CHECK(fleet_ps_push(ps, 0, &key, 1, &gradient, NULL, NULL, &err) == 0);
        CHECK(fleet_ps_step_end(ps, &err) == 0);
    }
    CHECK(fleet_ps_pull(ps, 0, &key, 1, true, &copy, &err) == 0);
    CHECK(copy < first - 0.19F && copy > first - 0.21F); /* 4 · 0.05 */
    CHECK(fleet_worker_stop(ps, &err) == 0);
    fleet_role_free(role);
}

static void test_ps_faults__geo_alone_is_training_alone(void **state)
{
    (void)state;
    snapshots[0] = '\0';
    start_servers(2, 1);
    end_well(start_worker(0, train_alone));
    servers_end_well();
}

/* The process that was replaced lives on, and is refused. */
static void be_replaced(void)
{
    struct fleet_ps_table table = sparse_table(0, 1);
    const uint64_t key = 1;
    float out;

    be_worker(0, FLEET_PS_SYNC);
    CHECK(fleet_ps_table_new(ps, &table, &err) == 0);
    tell_and_wait();
    CHECK(fleet_ps_pull(ps, 0, &key, 1, true, &out, &err) == -ECONNABORTED);
    CHECK(strstr(err.text, "taken the place of worker 0"));
    fleet_ps_free(ps);
}

static void test_ps_faults__the_old_process_of_a_worker_is_refused(void **state)
{
    pid_t old;

    (void)state;
    snapshots[0] = '\0';
    open_pipes();
    start_servers(1, 1);
    old = start_worker(0, be_replaced);
    hear(1);
    (void)setenv("FLEET_WORLD_SECRET", "a secret", 1);
    be_worker(0, FLEET_PS_SYNC);
    allow(1);
    end_well(old);
    CHECK(fleet_worker_stop(ps, &err) == 0);
    servers_end_well();
    close_pipes();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ps_faults__sync_has_the_bits_of_one_process),
        cmocka_unit_test(test_ps_faults__a_replaced_server_loses_nothing_in_sync_mode),
        cmocka_unit_test(test_ps_faults__encrypted_values_have_the_same_bits),
        cmocka_unit_test(test_ps_faults__both_servers_are_replaced),
        cmocka_unit_test(test_ps_faults__a_replaced_worker_computes_its_step_again),
        cmocka_unit_test(test_ps_faults__a_server_without_a_snapshot_goes_on),
        cmocka_unit_test(test_ps_faults__other_modes_survive_kills),
        cmocka_unit_test(test_ps_faults__geo_alone_is_training_alone),
        cmocka_unit_test(test_ps_faults__the_old_process_of_a_worker_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
