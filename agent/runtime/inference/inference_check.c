/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Compares a file with the training's own program. executor_inspect() runs the job's whole forward
 * part, loss included, and shows each result right after the operator that writes it. So nothing of
 * the pruning, of the file or of its memory plan takes part in that run.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/registry.h"
#include "agent/runtime/inference/forward.h"
#include "agent/runtime/inference/inference_model.h"
#include "agent/runtime/inference/weights.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/random.h"

struct checker {
    struct inference_model *model;
    struct backend *backend;
    struct forward *forward;
    int feeds[INFERENCE_NAMES_MAX], fetches[INFERENCE_NAMES_MAX]; /* of forward->program */
    int feed_count, fetch_count;
    void *in[INFERENCE_NAMES_MAX];       /* values of the feeds */
    void *expected[INFERENCE_NAMES_MAX]; /* of the fetches, by the whole program */
    void *got[INFERENCE_NAMES_MAX];
};

/* ---- opening --------------------------------------------------------------------------------- */

static void *new_memory(size_t bytes)
{
    void *memory = calloc(1, bytes + 1);

    fleet_assert(memory);
    return memory;
}

/* The variable of the whole program that a feed or fetch stands for. -EBADMSG: it has none. */
static int find_var(const struct checker *c, const struct inference_tensor *tensor,
                    struct fleet_error *err)
{
    const struct program *program = &c->forward->program;
    int var = program_find_var(program, tensor->name);

    if (var == PROGRAM_NONE || program_var_bytes(&program->vars[var]) != tensor->bytes)
        return fleet_error(err, -EBADMSG,
                           "%s is no variable of the job's program, or has another "
                           "size there",
                           tensor->name);
    return var;
}

static int open_operands(struct checker *c, struct fleet_error *err)
{
    const struct inference_tensor *tensor;
    int rc;

    for (int i = 0; (tensor = inference_model_feed(c->model, i)) != NULL; i++) {
        rc = c->feeds[i] = find_var(c, tensor, err);
        if (rc < 0)
            return rc;
        c->in[i] = new_memory(tensor->bytes);
        c->feed_count = i + 1;
    }
    for (int i = 0; (tensor = inference_model_fetch(c->model, i)) != NULL; i++) {
        rc = c->fetches[i] = find_var(c, tensor, err);
        if (rc < 0)
            return rc;
        c->expected[i] = new_memory(tensor->bytes);
        c->got[i] = new_memory(tensor->bytes);
        c->fetch_count = i + 1;
    }
    return 0;
}

static int open_checker(struct checker *c, const struct weights *weights, const char *path,
                        int threads, struct fleet_error *err)
{
    struct forward_options options = {0};
    struct job_record record;
    int rc = inference_model_open(path, threads, &c->model, err);

    if (rc == 0)
        rc = backend_open(threads, &c->backend, err);
    if (rc < 0)
        return rc;
    options.backend = c->backend;
    record = inference_record(&weights->record, inference_model_batch(c->model));
    rc = forward_new(&record, &options, &c->forward, err);
    if (rc == 0)
        rc = forward_load(c->forward, weights, err);
    return rc < 0 ? rc : open_operands(c, err);
}

static void close_checker(struct checker *c)
{
    for (int i = 0; i < INFERENCE_NAMES_MAX; i++) {
        free(c->in[i]);
        free(c->expected[i]);
        free(c->got[i]);
    }
    forward_free(c->forward);
    backend_free(c->backend);
    inference_model_free(c->model);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Values of an input of the whole program, keyed by run and name. */
static void fill_input(const struct checker *c, int var, int run, int64_t limit)
{
    const struct program_var *v = &c->forward->program.vars[var];
    struct fleet_random_key key = fleet_random_key((uint64_t)run, v->name, 0);
    int64_t count = program_var_elements(v);
    void *host = new_memory(program_var_bytes(v));

    fleet_assert(v->type == PROGRAM_FP32 || v->type == PROGRAM_INT32);
    if (v->type == PROGRAM_FP32)
        fleet_random_normal(key, 0, (size_t)count, 0, 1, host);
    else
        for (int64_t i = 0; i < count; i++)
            ((int32_t *)host)[i] = (int32_t)(fleet_random_u64(key, (uint64_t)i) % (uint64_t)limit);
    state_write(&c->forward->state, var, host);
    free(host);
}

static void fill_inputs(const struct checker *c, int run)
{
    const struct program *program = &c->forward->program;

    for (int v = 0; v < program->var_count; v++)
        if (program->vars[v].role == PROGRAM_ROLE_INPUT)
            fill_input(c, v, run, program_value_limit(program, v));
}

/* ---- one run --------------------------------------------------------------------------------- */

static void keep(const struct checker *c, int var, const void *device)
{
    size_t bytes = program_var_bytes(&c->forward->program.vars[var]);

    for (int i = 0; i < c->feed_count; i++)
        if (c->feeds[i] == var)
            c->backend->vtable->copy_out(c->backend, c->in[i], device, bytes);
    for (int i = 0; i < c->fetch_count; i++)
        if (c->fetches[i] == var)
            c->backend->vtable->copy_out(c->backend, c->expected[i], device, bytes);
}

static bool watch(void *context, const struct program_op *op, void *const *out)
{
    const struct checker *c = context;

    for (int i = 0; i < op->output_count; i++)
        if (op->outputs[i] != PROGRAM_NONE && out[i])
            keep(c, op->outputs[i], out[i]);
    return true;
}

static int compare(struct checker *c, int run, struct fleet_sha256 *sha, struct fleet_error *err)
{
    static const atomic_bool never;
    const struct run_scalars scalars = {.evaluation = true};
    int rc;

    fill_inputs(c, run);
    for (int i = 0; i < c->feed_count; i++)
        if (c->forward->program.vars[c->feeds[i]].role == PROGRAM_ROLE_INPUT)
            state_read(&c->forward->state, c->feeds[i], c->in[i]);
    rc = executor_inspect(c->forward->executor, &c->forward->state.bases, &scalars, &never, watch,
                          c, err);
    if (rc == 0)
        rc = inference_model_run(c->model, (const void *const *)c->in, c->got, err);
    for (int i = 0; i < c->fetch_count && rc == 0; i++) {
        const struct inference_tensor *tensor = inference_model_fetch(c->model, i);
        if (memcmp(c->got[i], c->expected[i], tensor->bytes) != 0)
            return fleet_error(err, -EBADMSG,
                               "run %d: %s has other bits than in the job's own program", run,
                               tensor->name);
        fleet_sha256_update(sha, c->got[i], tensor->bytes);
    }
    return rc;
}

int inference_model_check(const struct weights *weights, const char *path, int runs, int threads,
                          char sha256[FLEET_SHA256_HEX_SIZE], struct fleet_error *err)
{
    struct fleet_sha256 *sha = fleet_sha256_new();
    uint8_t digest[FLEET_SHA256_SIZE];
    struct checker c = {0};
    int rc = open_checker(&c, weights, path, threads, err);

    for (int run = 0; run < runs && rc == 0; run++)
        rc = compare(&c, run, sha, err);
    close_checker(&c);
    fleet_sha256_finish(sha, digest);
    if (rc == 0)
        fleet_hex_encode(digest, sizeof(digest), sha256);
    return rc < 0 ? fleet_error_wrap(err, "check %s", path) : 0;
}
