/* SPDX-License-Identifier: Apache-2.0 */

/* The state of a trainer: from the rank that has the newest one, from a checkpoint, and to one. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/runtime/comm/comm.h"
#include "distributed/job/job.h"
#include "include/fleet/fleet_job.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/safetensors.h"

static const enum safetensors_type types[] = {
    [FLEET_UINT8] = SAFETENSORS_U8,  [FLEET_INT8] = SAFETENSORS_I8,
    [FLEET_INT32] = SAFETENSORS_I32, [FLEET_INT64] = SAFETENSORS_I64,
    [FLEET_FP16] = SAFETENSORS_F16,  [FLEET_BF16] = SAFETENSORS_BF16,
    [FLEET_FP32] = SAFETENSORS_F32,  [FLEET_FP64] = SAFETENSORS_F64,
    [FLEET_BOOL] = SAFETENSORS_BOOL,
};

static size_t bytes_of(const struct fleet_tensor *tensor)
{
    size_t bytes = comm_type_size((enum comm_type)tensor->type);

    for (int d = 0; d < tensor->dimensions; d++)
        bytes *= (size_t)tensor->shape[d];
    return bytes;
}

static int check_entry(const char *what, const struct fleet_state_entry *state, int i,
                       struct fleet_error *err)
{
    const struct fleet_tensor *tensor = &state[i].tensor;
    int64_t elements = 1;

    if (!state[i].name || !state[i].name[0] || strlen(state[i].name) > SAFETENSORS_NAME_MAX)
        return fleet_error(err, -EINVAL, "%s: state[%d].name: required, at most %d bytes", what, i,
                           SAFETENSORS_NAME_MAX);
    for (int k = 0; k < i; k++)
        if (strcmp(state[k].name, state[i].name) == 0)
            return fleet_error(err, -EINVAL, "%s: state[%d] and state[%d] are both named %s", what,
                               k, i, state[i].name);
    if ((int)tensor->type < 0 || tensor->type > FLEET_BOOL)
        return fleet_error(err, -EINVAL, "%s: type of %s is %d, allowed: 0 to %d", what,
                           state[i].name, (int)tensor->type, FLEET_BOOL);
    if (tensor->dimensions < 0 || tensor->dimensions > FLEET_DIMENSIONS_MAX)
        return fleet_error(err, -EINVAL, "%s: %s has %d dimensions, allowed: 0 to %d", what,
                           state[i].name, tensor->dimensions, FLEET_DIMENSIONS_MAX);
    for (int d = 0; d < tensor->dimensions; d++)
        if (tensor->shape[d] < 0 || __builtin_mul_overflow(elements, tensor->shape[d], &elements) ||
            elements > INT64_MAX / 16)
            return fleet_error(err, -EINVAL, "%s: shape of %s: negative, or too many elements",
                               what, state[i].name);
    if (!tensor->data && elements > 0)
        return fleet_error(err, -EINVAL, "%s: %s has no data", what, state[i].name);
    return 0;
}

static int check_state(const char *what, const struct fleet_state_entry *state, int count,
                       struct fleet_error *err)
{
    int rc = 0;

    if (!state || count < 1)
        return fleet_error(err, -EINVAL, "%s: %s", what,
                           state ? "count is less than 1" : "state is NULL");
    for (int i = 0; rc == 0 && i < count; i++)
        rc = check_entry(what, state, i, err);
    return rc;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int read_tensor(const struct safetensors_file *file, const struct fleet_state_entry *entry,
                       const char *path, struct fleet_error *err)
{
    const struct safetensors_tensor *found = safetensors_find(file, entry->name);
    const struct fleet_tensor *tensor = &entry->tensor;
    bool fits = found && found->type == types[tensor->type] && found->ndim == tensor->dimensions;

    for (int d = 0; fits && d < tensor->dimensions; d++)
        fits = found->shape[d] == tensor->shape[d];
    if (!fits)
        return fleet_error(err, -EINVAL, "%s: %s %s", path, entry->name,
                           found ? "has another type or shape there" : "is not in it");
    return safetensors_read(found, 0, tensor->data, bytes_of(tensor), err);
}

/* All tensors, or an error; *out_step is that of the file. */
static int read_checkpoint(const char *path, const struct fleet_state_entry *state, int count,
                           int64_t *out_step, struct fleet_error *err)
{
    struct safetensors_file file;
    int rc = safetensors_open(path, &file, err);
    const char *step;

    if (rc < 0)
        return rc;
    step = safetensors_metadata(&file, "step");
    *out_step = step ? strtoll(step, NULL, 10) : 0;
    if (*out_step < 1)
        rc = fleet_error(err, -EINVAL, "%s: no checkpoint of fleet_checkpoint_save()", path);
    for (int i = 0; rc == 0 && i < count; i++)
        rc = read_tensor(&file, &state[i], path, err);
    safetensors_release(&file);
    return rc;
}

/* ---- resuming -------------------------------------------------------------------------------- */

/* For all ranks: the rank that sends the state, its step, or the reason why there is none. */
struct source {
    int64_t rank, step;
    struct fleet_error error;
};

/* Rank 0: the newest state is that of a rank or of the checkpoint. */
static void find_source(const int64_t *steps, int world, const struct fleet_state_entry *state,
                        int count, struct source *out)
{
    const char *path = getenv("FLEET_RESUME_PATH"), *said = getenv("FLEET_RESUME_STEP");
    int64_t saved = said ? strtoll(said, NULL, 10) : 0;

    for (int r = 0; r < world; r++)
        if (steps[r] > out->step) {
            out->rank = r;
            out->step = steps[r];
        }
    if (path && path[0] && (saved > out->step || out->step == 0)) {
        out->rank = 0;
        out->error.code = read_checkpoint(path, state, count, &out->step, &out->error);
    }
}

static int agree(int64_t step, const struct fleet_state_entry *state, int count,
                 struct source *source, struct fleet_error *err)
{
    int world = fleet_world_size(NULL);
    FLEET_AUTO_FREE int64_t *steps = calloc((size_t)world, sizeof(*steps));
    struct fleet_tensor all = {steps, FLEET_INT64, 1, {world}}, one = {&step, FLEET_INT64, 0, {0}};
    struct fleet_tensor bytes = {source, FLEET_UINT8, 1, {sizeof(*source)}};
    int rc;

    if (!steps)
        return fleet_error(err, -ENOMEM, "out of memory");
    rc = fleet_all_gather(&all, &one, NULL, NULL, err);
    if (rc == 0 && fleet_rank(NULL) == 0)
        find_source(steps, world, state, count, source);
    if (rc == 0)
        rc = fleet_broadcast(&bytes, 0, NULL, NULL, err);
    if (rc == 0 && source->error.code < 0)
        rc = fleet_error(err, source->error.code, "%s", source->error.text);
    return rc;
}

int fleet_resume(const struct fleet_state_entry *state, int count, int64_t *step,
                 struct fleet_error *err)
{
    const char *what = "fleet_resume";
    struct fleet_group *world;
    struct source source = {0};
    char line[48];
    int rc = group_ready(what, NULL, &world, err);

    if (rc == 0)
        rc = check_state(what, state, count, err);
    if (rc < 0)
        return rc;
    if (!step || *step < 0)
        return fleet_error(err, -EINVAL, "%s: *step is %s", what, step ? "negative" : "NULL");
    rc = agree(*step, state, count, &source, err);
    for (int i = 0; rc == 0 && i < count; i++)
        rc = fleet_broadcast(&state[i].tensor, (int)source.rank, NULL, NULL, err);
    if (rc < 0)
        return fleet_error_wrap(err, "%s", what);
    *step = source.step;
    (void)snprintf(line, sizeof(line), "{\"resumed\": %" PRId64 "}", *step);
    return fleet_rank(NULL) == 0 ? job_report(line, err) : 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

static int write_file(const char *path, int64_t step, const struct fleet_state_entry *state,
                      int count, struct fleet_error *err)
{
    FLEET_AUTO_FREE struct safetensors_tensor *tensors = calloc((size_t)count, sizeof(*tensors));
    FLEET_AUTO_STRBUF struct fleet_strbuf header = {0};
    struct fleet_file_draft draft;
    char number[32];
    struct safetensors_metadata metadata = {(char *)"step", number};
    int rc;

    if (!tensors)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (int i = 0; i < count; i++) {
        tensors[i] = (struct safetensors_tensor){.name = (char *)state[i].name,
                                                 .type = types[state[i].tensor.type],
                                                 .ndim = state[i].tensor.dimensions};
        memcpy(tensors[i].shape, state[i].tensor.shape,
               (size_t)tensors[i].ndim * sizeof(tensors[i].shape[0]));
    }
    (void)snprintf(number, sizeof(number), "%" PRId64, step);
    (void)safetensors_header_encode(tensors, (size_t)count, &metadata, 1, &header);
    rc = fleet_file_draft_open(path, &draft, err);
    if (rc < 0)
        return rc;
    rc = fleet_file_write_all(draft.fd, header.text, header.length);
    for (int i = 0; rc == 0 && i < count; i++)
        rc = fleet_file_write_all(draft.fd, state[i].tensor.data, bytes_of(&state[i].tensor));
    if (rc == 0)
        return fleet_file_draft_commit(&draft, FLEET_FILE_DURABLE, err);
    fleet_file_draft_discard(&draft);
    return fleet_error(err, rc, "write %s: %s", path, strerror(-rc));
}

/* Tell the agent, and keep this file and the one before. */
static int report_file(char *path, int64_t step, struct fleet_error *err)
{
    static char *kept[2];
    FLEET_AUTO_STRBUF struct fleet_strbuf line = {0};

    if (kept[1] && strcmp(kept[1], path) == 0) { /* the step was trained again */
        free(kept[1]);
        kept[1] = path;
    } else {
        if (kept[0] && strcmp(kept[0], path) != 0)
            (void)unlink(kept[0]);
        free(kept[0]);
        kept[0] = kept[1];
        kept[1] = path;
    }
    fleet_strbuf_appendf(&line, "{\"checkpoint\": %" PRId64 ", \"path\": \"%s\"}", step, path);
    return job_report(line.text, err);
}

int fleet_checkpoint_save(const char *folder, int64_t step, const struct fleet_state_entry *state,
                          int count, struct fleet_error *err)
{
    const char *what = "fleet_checkpoint_save";
    struct fleet_strbuf path = {0};
    int rc;

    if (!folder || !folder[0] || strpbrk(folder, "\"\\\n"))
        return fleet_error(err, -EINVAL, "%s: folder: required, without quotes and backslashes",
                           what);
    if (step < 1)
        return fleet_error(err, -EINVAL, "%s: step is %" PRId64 ", allowed: 1 or more", what, step);
    rc = check_state(what, state, count, err);
    if (rc < 0 || fleet_rank(NULL) != 0)
        return rc;
    rc = fleet_file_make_folder(folder, err);
    fleet_strbuf_appendf(&path, "%s/step-%" PRId64 ".safetensors", folder, step);
    if (rc == 0)
        rc = write_file(fleet_strbuf_text(&path), step, state, count, err);
    if (rc < 0)
        fleet_strbuf_release(&path);
    else
        rc = report_file(fleet_strbuf_take(&path), step, err);
    return rc < 0 ? fleet_error_wrap(err, "%s", what) : 0;
}

int fleet_report(int64_t step, int64_t steps, double loss, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf line = {0};

    if (step < 0 || steps < 0)
        return fleet_error(err, -EINVAL,
                           "fleet_report: step is %" PRId64 ", steps %" PRId64
                           ", allowed: 0 or more",
                           step, steps);
    if (fleet_rank(NULL) != 0)
        return 0;
    fleet_strbuf_appendf(&line, "{\"step\": %" PRId64, step);
    if (steps > 0)
        fleet_strbuf_appendf(&line, ", \"steps\": %" PRId64, steps);
    if (isfinite(loss))
        fleet_strbuf_appendf(&line, ", \"loss\": %.9g", loss);
    fleet_strbuf_append(&line, "}");
    return job_report(line.text, err);
}
