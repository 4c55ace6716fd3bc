/* SPDX-License-Identifier: Apache-2.0 */

/* save_inference_model() and load_inference_model(). */
#include <errno.h>
#include <string.h>

#include "agent/runtime/inference/inference_file.h"
#include "distributed/program/program.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/safetensors.h"

_Static_assert(FLEET_PROGRAM_NAMES_MAX == INFERENCE_NAMES_MAX, "lists have the same length");

/* ---- saving ---------------------------------------------------------------------------------- */

static int check_names(const char *which, const char *const *names, int count,
                       struct fleet_error *err)
{
    const char *what = "fleet_save_inference_model";

    if (count < 0 || count > FLEET_PROGRAM_NAMES_MAX || (count > 0 && !names))
        return fleet_error(err, -EINVAL, "%s: %d %s, allowed: 0 to %d", what, count, which,
                           FLEET_PROGRAM_NAMES_MAX);
    for (int i = 0; i < count; i++)
        if (!names[i])
            return fleet_error(err, -EINVAL, "%s: %s[%d] has no name", what, which, i);
    return 0;
}

/* Does this process write? */
static int is_first_rank(bool *out, struct fleet_error *err)
{
    struct fleet_env env;
    int rc = 0;

    if (!fleet_is_initialized()) {
        rc = fleet_env_read(&env, err);
        *out = rc == 0 && env.rank == 0;
    } else {
        *out = fleet_rank(NULL) == 0;
    }
    return rc;
}

static int save(const struct fleet_program *p, const struct inference_request *request,
                const char *path, bool is_first, struct fleet_error *err)
{
    struct inference_names names = {0};
    struct inference_summary summary;
    struct program pruned;
    int rc = inference_prune(&p->program, request, &names, &pruned, err);

    if (rc == 0) {
        if (is_first)
            rc = inference_file_write(&p->state, &pruned, &names, path, &summary, err);
        program_release(&pruned);
    }
    inference_names_release(&names);
    return rc;
}

int fleet_save_inference_model(const struct fleet_program *program, const char *path,
                               const char *const *feeds, int feed_count, const char *const *fetches,
                               int fetch_count, struct fleet_error *err)
{
    const char *own[FLEET_PROGRAM_NAMES_MAX];
    struct inference_request request = {feeds, feed_count, fetches, fetch_count, 0};
    bool is_first = false;
    int rc;

    if (!program || !path || !*path)
        return fleet_error(err, -EINVAL, "fleet_save_inference_model: no %s",
                           program ? "path" : "program");
    rc = check_names("feeds", feeds, feed_count, err);
    if (rc == 0)
        rc = check_names("fetches", fetches, fetch_count, err);
    if (rc == 0)
        rc = is_first_rank(&is_first, err);
    if (rc < 0)
        return rc;
    if (fetch_count == 0) {
        for (int i = 0; i < program->fetch_count; i++)
            own[i] = program->program.vars[program->fetches[i]].name;
        request.fetches = own;
        request.fetch_count = program->fetch_count;
    }
    return save(program, &request, path, is_first, err);
}

/* ---- loading --------------------------------------------------------------------------------- */

/* The variables that the lists of the file name. Feeds are in the order of the list, too. */
static int find_names(const struct inference_names *names, const struct program *source,
                      struct program_wish *wish, struct fleet_error *err)
{
    wish->loss = PROGRAM_NONE;
    for (int i = 0; i < names->feed_count; i++) {
        int var = program_find_var(source, names->feeds[i]);
        if (var == PROGRAM_NONE || source->vars[var].role != PROGRAM_ROLE_INPUT)
            return fleet_error(err, -EINVAL, "%.100s is no input of the program", names->feeds[i]);
    }
    for (int i = 0; i < names->fetch_count; i++) {
        int var = program_find_var(source, names->fetches[i]);
        for (int j = 0; j < wish->fetch_count; j++)
            if (var == wish->fetches[j])
                var = PROGRAM_NONE;
        if (var == PROGRAM_NONE)
            return fleet_error(err, -EINVAL, "%.100s is no variable of the program, or named twice",
                               names->fetches[i]);
        wish->fetches[wish->fetch_count++] = var;
    }
    return wish->fetch_count > 0 ? 0 : fleet_error(err, -EINVAL, "it has no fetches");
}

/* Feeds have the order of the list. */
static int order_feeds(struct fleet_program *p, const struct inference_names *names,
                       struct fleet_error *err)
{
    int feeds[FLEET_PROGRAM_NAMES_MAX];

    if (names->feed_count != p->feed_count)
        return fleet_error(err, -EINVAL, "%d inputs are needed, and %d are named", p->feed_count,
                           names->feed_count);
    for (int i = 0; i < names->feed_count; i++) {
        feeds[i] = program_find_var(&p->program, names->feeds[i]);
        for (int j = 0; j < i; j++)
            if (feeds[j] == feeds[i])
                feeds[i] = PROGRAM_NONE;
        if (feeds[i] == PROGRAM_NONE)
            return fleet_error(err, -EINVAL, "%.100s is not needed, or is named twice",
                               names->feeds[i]);
    }
    memcpy(p->feeds, feeds, sizeof(*feeds) * (size_t)p->feed_count);
    return 0;
}

static int load_tensor(const struct safetensors_file *file, const struct fleet_ddp_tensor *tensor,
                       struct fleet_error *err)
{
    const struct safetensors_tensor *saved = safetensors_find(file, tensor->name);
    const struct fleet_tensor *value = &tensor->value;

    if (!saved || saved->ndim != value->dimensions ||
        memcmp(saved->shape, value->shape, (size_t)saved->ndim * sizeof(*saved->shape)) != 0)
        return fleet_error(err, -EINVAL, "%s is missing, or has another shape", tensor->name);
    return safetensors_read_f32(saved, 0, safetensors_elements(saved), value->data, err);
}

static int make(const struct program *source, const struct inference_names *names, int threads,
                const struct safetensors_file *file, struct fleet_program **out,
                struct fleet_error *err)
{
    struct fleet_program_options options = {.highest = FLEET_PROGRAM_PREDICT, .threads = threads};
    struct program_wish wish = {0};
    struct fleet_program *p = NULL;
    int rc = find_names(names, source, &wish, err);

    if (rc == 0)
        rc = program_make(source, &wish, &options, &p, err);
    if (rc == 0)
        rc = order_feeds(p, names, err);
    for (int i = 0; rc == 0 && i < p->tensor_count; i++)
        rc = load_tensor(file, &p->tensors[i], err);
    if (rc < 0)
        fleet_program_free(p);
    else
        *out = p;
    return rc;
}

int fleet_load_inference_model(const char *path, int threads, struct fleet_program **out,
                               struct fleet_error *err)
{
    struct inference_names names = {0};
    struct safetensors_file file;
    struct program source;
    int rc;

    if (!path || !out || threads < 0)
        return fleet_error(err, -EINVAL, "fleet_load_inference_model: %s",
                           path && out ? "threads is negative" : "no path, or no out");
    rc = safetensors_open(path, &file, err);
    if (rc < 0)
        return rc;
    rc = inference_file_read(&file, &names, &source, err);
    if (rc == 0) {
        rc = make(&source, &names, threads, &file, out, err);
        program_release(&source);
    }
    inference_names_release(&names);
    safetensors_release(&file);
    return rc < 0 ? fleet_error_wrap(err, "%s", path) : rc;
}
