/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A click-through model with a parameter server: logistic regression over the ids of synthetic
 * clicks. The same program is server and worker; the launcher's variables say which.
 *
 *     cc click-through.c $(pkg-config --cflags --libs fleet) -lm -o click-through
 *     fleetjob launch --server_num 2 --worker_num 2 click-through 500 SNAPSHOTS
 *
 * In sync mode a server writes a snapshot to the folder SNAPSHOTS after each step. So if a server
 * or a worker is killed, nothing is lost, and the last line is the same. All servers and their
 * successors must reach the folder.
 */
#include <fleet/fleet_ps.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SLOTS 4
#define IDS   50 /* of each slot */
#define BATCH 32 /* of each worker */
#define KEYS  (BATCH * SLOTS)
#define TESTS 2000

static int failed(const struct fleet_error *err)
{
    (void)fprintf(stderr, "%s\n", err->text);
    return 1; /* this process is started again */
}

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

/* Each id has a true weight in ±1.5. Returns whether the sample was clicked. */
static int sample(uint64_t number, uint64_t keys[SLOTS])
{
    double score = 0;

    for (int i = 0; i < SLOTS; i++) {
        keys[i] = (uint64_t)(i * IDS) + (uint64_t)(uniform(10 + (uint64_t)i, number) * IDS);
        score += 3 * uniform(1, keys[i]) - 1.5;
    }
    return uniform(2, number) < 1 / (1 + exp(-score));
}

/* ---- a worker -------------------------------------------------------------------------------- */

static int train_step(struct fleet_ps *ps, uint64_t batch, struct fleet_error *err)
{
    uint64_t keys[KEYS];
    float weights[KEYS], gradients[KEYS];
    int clicks[BATCH], rc;

    for (int b = 0; b < BATCH; b++)
        clicks[b] = sample(batch * BATCH + (uint64_t)b, keys + b * SLOTS);
    rc = fleet_ps_pull(ps, 0, keys, KEYS, true, weights, err);
    for (int b = 0; rc == 0 && b < BATCH; b++) {
        float score = 0;
        for (int i = 0; i < SLOTS; i++)
            score += weights[b * SLOTS + i];
        for (int i = 0; i < SLOTS; i++)
            gradients[b * SLOTS + i] = (1 / (1 + expf(-score)) - (float)clicks[b]) / BATCH;
    }
    if (rc == 0)
        rc = fleet_ps_push(ps, 0, keys, KEYS, gradients, NULL, NULL, err);
    return rc < 0 ? rc : fleet_ps_step_end(ps, err);
}

/* The share of pairs of a clicked and another sample in which the clicked one has the higher score,
 * on samples that no worker trains on. */
static int print_area(struct fleet_ps *ps, struct fleet_error *err)
{
    static float scores[2][TESTS];
    uint64_t keys[SLOTS];
    float weights[SLOTS];
    double pairs = 0, sum = 0;
    int count[2] = {0, 0};

    for (int n = 0; n < TESTS; n++) {
        int click = sample((1ULL << 40) + (uint64_t)n, keys);
        float *score = &scores[click][count[click]++];
        int rc = fleet_ps_pull(ps, 0, keys, SLOTS, false, weights, err);
        if (rc < 0)
            return rc;
        for (int i = 0; i < SLOTS; i++)
            *score += weights[i];
        sum += (double)*score * (n + 1);
    }
    for (int i = 0; i < count[1]; i++)
        for (int k = 0; k < count[0]; k++)
            pairs += scores[1][i] > scores[0][k] ? 1 : scores[1][i] == scores[0][k] ? 0.5 : 0;
    printf("area under the curve %.4f, scores %a\n", pairs / ((double)count[0] * count[1]), sum);
    return 0;
}

/* For the status of a FleetJob. */
static void report(long step, long steps)
{
    const char *path = getenv("FLEET_PROGRESS_FILE");
    FILE *file = path ? fopen(path, "w") : NULL;

    if (!file)
        return;
    (void)fprintf(file, "{\"step\": %ld, \"steps\": %ld}\n", step, steps);
    (void)fclose(file);
}

static int work(const struct fleet_role *role, long steps, struct fleet_error *err)
{
    int id = fleet_role_worker_index(role), rc;
    uint64_t workers = (uint64_t)fleet_role_worker_num(role);
    struct fleet_ps_table table;
    struct fleet_ps *ps;

    if (fleet_worker_start(role, NULL, &ps, err) < 0)
        return err->code;
    fleet_ps_table_defaults(&table);
    table.width = 1;
    table.rule = FLEET_PS_SGD;
    table.learning_rate = 0.1F;
    table.initial_range = 0;
    rc = fleet_ps_table_new(ps, &table, err);
    for (long step = fleet_ps_step(ps); rc == 0 && step < steps; step++) {
        rc = train_step(ps, (uint64_t)step * workers + (uint64_t)id, err);
        if (rc == 0 && id == 0 && step % 10 == 9) {
            printf("step %ld\n", step + 1);
            (void)fflush(stdout);
            report(step + 1, steps);
        }
    }
    if (rc == 0 && id == 0) /* in sync mode a step that is over has the gradients of all workers */
        rc = print_area(ps, err);
    if (rc < 0) {
        fleet_ps_free(ps);
        return rc;
    }
    return fleet_worker_stop(ps, err);
}

int main(int argc, char **argv)
{
    struct fleet_server_options options = {.snapshot_folder = argc > 2 ? argv[2] : NULL,
                                           .snapshot_every = 1};
    struct fleet_server *server;
    struct fleet_role *role;
    struct fleet_error err;
    int rc;

    if (argc < 2 || fleet_role_from_env(false, &role, &err) < 0)
        return argc < 2 ? 2 : failed(&err);
    if (fleet_role_is_server(role)) {
        rc = fleet_server_init(role, &options, &server, &err);
        if (rc == 0) {
            rc = fleet_server_run(server, &err);
            fleet_server_free(server);
        }
    } else {
        rc = work(role, strtol(argv[1], NULL, 10), &err);
    }
    fleet_role_free(role);
    return rc < 0 ? failed(&err) : 0;
}
