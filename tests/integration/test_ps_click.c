/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A click-through model on synthetic clicks: logistic regression over ids, whose true weights are
 * known. It is trained by one process in a plain loop and by workers with servers. In sync mode
 * both have the same area under the curve to the last bit, because all weights have. In the other
 * modes it may differ by a bound.
 *
 * The bound. Both models are consistent estimates of one true model, so each of their areas is at
 * most that of the true model on the test set, plus sampling noise. The standard error of an area
 * A with n positive and n negative samples is below sqrt(A (1 - A) / n) (Hanley and McNeil 1982,
 * the term of independent pairs by the smaller class). Two areas on the same samples differ by
 * less than 3 of these errors when they differ by noise alone. The learning rate times the largest
 * curvature (0.27) times the most pushes on their way (34) is below pi / 2, so that late gradients
 * do not make the model unstable on any machine.
 */
#include <math.h>

#include "tests/integration/ps_processes.h"

#define WORKERS 2
#define SLOTS   4
#define IDS     50  /* of each slot */
#define BATCH   32  /* of each worker */
#define STEPS   500 /* enough for the plain loop to come close to the true model */
#define TESTS   4000

static enum fleet_ps_mode mode;
static char result_path[96];

/* ---- clicks ---------------------------------------------------------------------------------- */

/* Uniform in [0, 1), a function of its arguments. */
static double uniform(uint64_t stream, uint64_t at)
{
    uint64_t x = stream * 0x9e3779b97f4a7c15U + at * 0xbf58476d1ce4e5b9U + 0x94d049bb133111ebU;

    for (int i = 0; i < 3; i++) {
        x ^= x >> 31;
        x *= 0xd6e8feb86659fd93U;
    }
    return (double)(x >> 11) * 0x1p-53;
}

static double true_weight(uint64_t key)
{
    return 3 * uniform(1, key) - 1.5;
}

struct sample {
    uint64_t keys[SLOTS];
    int click;
};

static struct sample sample_of(uint64_t number)
{
    struct sample sample;
    double score = -0.5;

    for (int i = 0; i < SLOTS; i++) {
        sample.keys[i] = (uint64_t)(i * IDS) + (uint64_t)(uniform(10 + (uint64_t)i, number) * IDS);
        score += true_weight(sample.keys[i]);
    }
    sample.click = uniform(2, number) < 1 / (1 + exp(-score));
    return sample;
}

/* ---- the model ------------------------------------------------------------------------------- */

static struct fleet_ps_table weights_table(void)
{
    struct fleet_ps_table table = sparse_table(0, 1);

    table.rule = FLEET_PS_SGD;
    table.learning_rate = 0.1F;
    table.initial_range = 0;
    return table;
}

/* Gradients of worker `id`'s batch; weights[i] belongs to keys[i]. The bias is key SLOTS · IDS. */
#define KEYS (BATCH * (SLOTS + 1))
static void batch_keys(int id, int step, uint64_t keys[KEYS])
{
    for (int b = 0; b < BATCH; b++) {
        struct sample sample = sample_of((uint64_t)((step * WORKERS + id) * BATCH + b));
        memcpy(keys + b * (SLOTS + 1), sample.keys, sizeof(sample.keys));
        keys[b * (SLOTS + 1) + SLOTS] = (uint64_t)SLOTS * IDS;
    }
}

static void batch_gradients(int id, int step, const float weights[KEYS], float gradients[KEYS])
{
    for (int b = 0; b < BATCH; b++) {
        struct sample sample = sample_of((uint64_t)((step * WORKERS + id) * BATCH + b));
        float score = 0, g;
        for (int i = 0; i <= SLOTS; i++)
            score += weights[b * (SLOTS + 1) + i];
        g = (1 / (1 + expf(-score)) - (float)sample.click) / BATCH;
        for (int i = 0; i <= SLOTS; i++)
            gradients[b * (SLOTS + 1) + i] = g;
    }
}

/* Area under the curve of weights[SLOTS · IDS] on samples that no worker trains on. */
static double area(const float *weights)
{
    static float scores[2][TESTS];
    int count[2] = {0, 0};
    double pairs = 0;

    for (int n = 0; n < TESTS; n++) {
        struct sample sample = sample_of(1000000 + (uint64_t)n);
        float score = 0;
        for (int i = 0; i < SLOTS; i++)
            score += weights[sample.keys[i]];
        scores[sample.click][count[sample.click]++] = score;
    }
    for (int i = 0; i < count[1]; i++)
        for (int k = 0; k < count[0]; k++)
            pairs += scores[1][i] > scores[0][k] ? 1 : scores[1][i] == scores[0][k] ? 0.5 : 0;
    return pairs / ((double)count[0] * count[1]);
}

/* ---- one process ----------------------------------------------------------------------------- */

static void train_plainly(float weights[SLOTS * IDS + 1])
{
    for (int i = 0; i <= SLOTS * IDS; i++)
        weights[i] = 0;
    for (int step = 0; step < STEPS; step++) {
        float sums[SLOTS * IDS + 1] = {0};
        for (int id = 0; id < WORKERS; id++) {
            uint64_t keys[KEYS];
            float values[KEYS], gradients[KEYS];
            batch_keys(id, step, keys);
            for (int i = 0; i < KEYS; i++)
                values[i] = weights[keys[i]];
            batch_gradients(id, step, values, gradients);
            for (int i = 0; i < KEYS; i++)
                sums[keys[i]] += gradients[i];
        }
        for (int i = 0; i <= SLOTS * IDS; i++) {
            weights[i] -= 0.1F * (sums[i] * (1.0F / WORKERS));
            weights[i] = weights[i] > 10 ? 10 : weights[i] < -10 ? -10 : weights[i];
        }
    }
}

/* ---- workers and servers --------------------------------------------------------------------- */

static void train(void)
{
    struct fleet_ps_table table = weights_table();
    uint64_t keys[KEYS];
    float weights[KEYS], gradients[KEYS], all[SLOTS * IDS + 1];
    int id = rank;

    be_worker(id, mode);
    CHECK(fleet_ps_table_new(ps, &table, &err) == 0);
    for (int step = (int)fleet_ps_step(ps); step < STEPS; step++) {
        batch_keys(id, step, keys);
        CHECK(fleet_ps_pull(ps, 0, keys, KEYS, true, weights, &err) == 0);
        batch_gradients(id, step, weights, gradients);
        CHECK(fleet_ps_push(ps, 0, keys, KEYS, gradients, NULL, NULL, &err) == 0);
        CHECK(fleet_ps_step_end(ps, &err) == 0);
    }
    CHECK(fleet_worker_barrier(ps, &err) == 0);
    for (int i = 0; id == 0 && i <= SLOTS * IDS; i++) {
        uint64_t key = (uint64_t)i;
        CHECK(fleet_ps_pull(ps, 0, &key, 1, false, &all[i], &err) == 0);
    }
    if (id == 0) {
        FILE *file = fopen(result_path, "w");
        CHECK(file && fwrite(all, sizeof(all), 1, file) == 1 && fclose(file) == 0);
    }
    CHECK(fleet_worker_stop(ps, &err) == 0);
}

static void train_with_servers(enum fleet_ps_mode wanted, float weights[SLOTS * IDS + 1])
{
    char folder[64];
    pid_t workers[WORKERS];
    FILE *file;

    mode = wanted;
    snapshots[0] = '\0';
    (void)snprintf(folder, sizeof(folder), "%s", new_folder());
    (void)snprintf(result_path, sizeof(result_path), "%s/weights", folder);
    start_servers(2, WORKERS);
    for (int i = 0; i < WORKERS; i++)
        workers[i] = start_worker(i, train);
    for (int i = 0; i < WORKERS; i++)
        end_well(workers[i]);
    servers_end_well();
    file = fopen(result_path, "r");
    assert_non_null(file);
    assert_int_equal(fread(weights, sizeof(float), SLOTS * IDS + 1, file), SLOTS * IDS + 1);
    (void)fclose(file);
    remove_folder(folder);
}

static void test_ps_click__sync_is_the_model_of_one_process(void **state)
{
    float one[SLOTS * IDS + 1], many[SLOTS * IDS + 1], best[SLOTS * IDS];

    (void)state;
    train_plainly(one);
    train_with_servers(FLEET_PS_SYNC, many);
    assert_memory_equal(one, many, sizeof(one));
    for (int i = 0; i < SLOTS * IDS; i++)
        best[i] = (float)true_weight((uint64_t)i);
    assert_true(area(many) > 0.65 && area(many) <= area(best) + 0.02);
    assert_true(area(many) == area(one));
}

static void test_ps_click__other_modes_reach_the_same_area(void **state)
{
    static const enum fleet_ps_mode modes[] = {FLEET_PS_HALF_ASYNC, FLEET_PS_ASYNC, FLEET_PS_GEO};
    float one[SLOTS * IDS + 1], many[SLOTS * IDS + 1];
    double expected, bound;

    (void)state;
    train_plainly(one);
    expected = area(one);
    bound = 3 * sqrt(expected * (1 - expected) / (TESTS * 0.3)); /* at least 0.3 of each class */
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        train_with_servers(modes[i], many);
        if (fabs(area(many) - expected) > bound)
            fail_msg("mode %d: the area is %f, of one process %f", (int)modes[i], area(many),
                     expected);
        (void)printf("mode %d: %.4f, one process %.4f, bound %.4f\n", (int)modes[i], area(many),
                     expected, bound);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ps_click__sync_is_the_model_of_one_process),
        cmocka_unit_test(test_ps_click__other_modes_reach_the_same_area),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
