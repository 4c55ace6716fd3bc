/* SPDX-License-Identifier: Apache-2.0 */

/* Writes the files of inference_model.h: what is cut from a program, and its weights. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/inference/inference_file.h"
#include "agent/runtime/state.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/checkpoint/safetensors.h"
#include "libfleet/program/print.h"
#include "libfleet/program/prune.h"

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

int inference_prune(const struct program *program, const struct inference_request *request,
                    struct inference_names *names, struct program *out, struct fleet_error *err)
{
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
    if (request->fetch_count == 0)
        return fleet_error(err, -EINVAL, "nothing is fetched");
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
    const struct state *state; /* has the weights */
    const struct program *program;
    const struct inference_names *names;
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
    saved->tensors = calloc((size_t)saved->program->var_count + 1, sizeof(*saved->tensors));
    fleet_assert(saved->tensors);
    for (int v = 0; v < saved->program->var_count; v++) {
        const struct program_var *var = &saved->program->vars[v];
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
    const struct state *state = saved->state;
    int rc = 0;

    for (size_t i = 0; i < saved->count && rc == 0; i++) {
        const struct safetensors_tensor *tensor = &saved->tensors[i];
        int var = program_find_var(state->program, tensor->name);
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
    FLEET_AUTO_FREE char *feeds = inference_names_print(saved->names, true);
    FLEET_AUTO_FREE char *fetches = inference_names_print(saved->names, false);
    struct fleet_sha256 *sha = fleet_sha256_new();
    uint8_t digest[FLEET_SHA256_SIZE];
    int rc;

    print_program(saved->program, &text);
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

int inference_file_write(const struct state *state, const struct program *program,
                         const struct inference_names *names, const char *path,
                         struct inference_summary *out, struct fleet_error *err)
{
    struct saved saved = {.state = state, .program = program, .names = names};
    struct inference_summary summary = {.operators = program->op_count};
    int rc;

    list_tensors(&saved, &summary);
    rc = write_file(&saved, path, &summary, err);
    free(saved.tensors);
    if (rc == 0)
        *out = summary;
    return rc;
}
