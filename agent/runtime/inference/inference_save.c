/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/registry.h"
#include "agent/runtime/inference/forward.h"
#include "agent/runtime/inference/inference_file.h"
#include "agent/runtime/inference/inference_model.h"
#include "agent/runtime/inference/weights.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/checkpoint/safetensors.h"
#include "libfleet/program/print.h"
#include "libfleet/program/prune.h"

struct job_record inference_record(const struct job_record *record, int64_t batch)
{
    struct job_record result = *record;
    struct training_config *training = &result.training;

    if (batch > 0) {
        training->global_batch_size = training->global_batch_size / training->micro_batch_size;
        training->global_batch_size *= batch;
        training->micro_batch_size = batch;
    }
    return result;
}

/* ---- pruning --------------------------------------------------------------------------------- */

static int find_vars(const struct program *program, const char *const *names, int count, int *out,
                     struct fleet_error *err)
{
    if (count < 0 || count > INFERENCE_NAMES_MAX)
        return fleet_error(err, -EINVAL, "%d names, allowed: 0 to %d", count, INFERENCE_NAMES_MAX);
    for (int i = 0; i < count; i++) {
        out[i] = program_find_var(program, names[i]);
        if (out[i] == PROGRAM_NONE)
            return fleet_error(err, -ENOENT, "the forward program has no variable %.100s",
                               names[i]);
        for (int j = 0; j < i; j++)
            if (out[j] == out[i])
                return fleet_error(err, -EINVAL, "%s is named twice", names[i]);
    }
    return 0;
}

static int prune(const struct forward *forward, const struct inference_request *request,
                 struct inference_names *names, struct program *out, struct fleet_error *err)
{
    const struct program *program = &forward->program;
    int feeds[INFERENCE_NAMES_MAX], fetches[INFERENCE_NAMES_MAX], rc;
    struct prune_request prune = {.feeds = feeds,
                                  .feed_count = request->feed_count,
                                  .fetches = fetches,
                                  .fetch_count = request->fetch_count};

    rc = find_vars(program, request->feeds, request->feed_count, feeds, err);
    if (rc == 0)
        rc = find_vars(program, request->fetches, request->fetch_count, fetches, err);
    if (rc < 0)
        return rc;
    if (prune.fetch_count == 0) {
        fetches[0] = forward->logits == PROGRAM_NONE ? program->loss : forward->logits;
        prune.fetch_count = 1;
    }
    rc = prune_forward(program, &prune, out, err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < prune.fetch_count; i++)
        inference_names_add(names, false, program->vars[fetches[i]].name);
    for (int i = 0; i < prune.feed_count; i++)
        inference_names_add(names, true, program->vars[feeds[i]].name);
    for (int v = 0; v < out->var_count && request->feed_count == 0; v++)
        if (out->vars[v].role == PROGRAM_ROLE_INPUT)
            inference_names_add(names, true, out->vars[v].name);
    return 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

struct saved {
    const struct forward *forward;
    struct program program;
    struct inference_names names;
    struct safetensors_tensor *tensors; /* [count], by name; names of `program` */
    size_t count;
};

static int compare_tensors(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;

    return strcmp(x->name, y->name);
}

static void list_tensors(struct saved *saved, struct inference_summary *summary)
{
    saved->tensors = calloc((size_t)saved->program.var_count + 1, sizeof(*saved->tensors));
    fleet_assert(saved->tensors);
    for (int v = 0; v < saved->program.var_count; v++) {
        const struct program_var *var = &saved->program.vars[v];
        struct safetensors_tensor *tensor = &saved->tensors[saved->count];
        if (var->role != PROGRAM_ROLE_PARAMETER && var->role != PROGRAM_ROLE_BUFFER)
            continue;
        *tensor = (struct safetensors_tensor){.name = var->name,
                                              .type = SAFETENSORS_F32,
                                              .ndim = var->ndim,
                                              .bytes = program_var_bytes(var)};
        memcpy(tensor->shape, var->shape, (size_t)var->ndim * sizeof(*var->shape));
        saved->count++;
        *(var->role == PROGRAM_ROLE_PARAMETER ? &summary->parameters : &summary->buffers) += 1;
        summary->weights_bytes += (int64_t)tensor->bytes;
    }
    if (saved->count)
        qsort(saved->tensors, saved->count, sizeof(*saved->tensors), compare_tensors);
}

/* Hand all tensors to `sha` or to `fd`, one after the other. */
static int pass_weights(const struct saved *saved, struct fleet_sha256 *sha, int fd,
                        struct fleet_error *err)
{
    const struct state *state = &saved->forward->state;
    int rc = 0;

    for (size_t i = 0; i < saved->count && rc == 0; i++) {
        const struct safetensors_tensor *tensor = &saved->tensors[i];
        int var = program_find_var(&saved->forward->program, tensor->name);
        void *host = state_map(state, var, BACKEND_READ);
        if (sha)
            fleet_sha256_update(sha, host, tensor->bytes);
        else
            rc = fleet_file_write_all(fd, host, tensor->bytes);
        state_unmap(state, var, BACKEND_READ, host);
    }
    return rc < 0 ? fleet_error(err, rc, "write: %s", strerror(-rc)) : 0;
}

static int write_model(const struct saved *saved, int fd, struct inference_summary *summary,
                       struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0}, header = {0};
    FLEET_AUTO_FREE char *feeds = inference_names_print(&saved->names, true);
    FLEET_AUTO_FREE char *fetches = inference_names_print(&saved->names, false);
    struct fleet_sha256 *sha = fleet_sha256_new();
    uint8_t digest[FLEET_SHA256_SIZE];
    int rc;

    print_program(&saved->program, &text);
    inference_sha256_begin(sha, text.text, feeds, fetches);
    (void)pass_weights(saved, sha, -1, NULL);
    fleet_sha256_finish(sha, digest);
    fleet_hex_encode(digest, sizeof(digest), summary->sha256);
    {
        const struct safetensors_metadata metadata[] = {
            {(char *)INFERENCE_PROGRAM, text.text},
            {(char *)INFERENCE_FEED, feeds},
            {(char *)INFERENCE_FETCH, fetches},
            {(char *)INFERENCE_SHA256, summary->sha256}};
        (void)safetensors_header_encode(saved->tensors, saved->count, metadata, 4, &header);
    }
    rc = fleet_file_write_all(fd, header.text, header.length);
    return rc < 0 ? fleet_error(err, rc, "write: %s", strerror(-rc))
                  : pass_weights(saved, NULL, fd, err);
}

static int write_file(const struct saved *saved, const char *path,
                      struct inference_summary *summary, struct fleet_error *err)
{
    struct fleet_file_draft draft;
    int rc = fleet_file_draft_open(path, &draft, err);

    if (rc < 0)
        return rc;
    rc = write_model(saved, draft.fd, summary, err);
    if (rc == 0)
        return fleet_file_draft_commit(&draft, FLEET_FILE_DURABLE, err);
    fleet_file_draft_discard(&draft);
    return fleet_error_wrap(err, "%s", path);
}

static int save(const struct forward *forward, const struct inference_request *request,
                const char *path, struct inference_summary *summary, struct fleet_error *err)
{
    struct saved saved = {.forward = forward};
    int rc = prune(forward, request, &saved.names, &saved.program, err);

    if (rc == 0) {
        list_tensors(&saved, summary);
        summary->operators = saved.program.op_count;
        rc = write_file(&saved, path, summary, err);
        program_release(&saved.program);
    }
    inference_names_release(&saved.names);
    free(saved.tensors);
    return rc;
}

int inference_model_save(const struct weights *weights, const struct inference_request *request,
                         const char *path, struct inference_summary *out, struct fleet_error *err)
{
    struct forward_options options = {.parameters_only = true};
    struct inference_summary summary = {0};
    struct forward *forward = NULL;
    struct job_record record;
    int rc;

    if (request->batch < 0)
        return fleet_error(err, -EINVAL, "batch is %lld, allowed: 0 or more",
                           (long long)request->batch);
    record = inference_record(&weights->record, request->batch);
    rc = backend_open(1, &options.backend, err);
    if (rc < 0)
        return rc;
    rc = forward_new(&record, &options, &forward, err);
    if (rc == 0)
        rc = forward_load(forward, weights, err);
    if (rc == 0)
        rc = save(forward, request, path, &summary, err);
    forward_free(forward);
    backend_free(options.backend);
    if (rc == 0)
        *out = summary;
    return rc;
}
