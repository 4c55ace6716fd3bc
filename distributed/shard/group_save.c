/* SPDX-License-Identifier: Apache-2.0 */

/* save_group_sharded_model(): all ranks gather, the first one writes. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "distributed/shard/shard.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/safetensors.h"

/* A file that grows tensor by tensor. Other ranks than the first only gather. */
struct writer {
    struct fleet_group_sharded *sharded;
    struct fleet_file_draft draft;
    bool writes, is_open;
    int rc; /* of the file; the gathers go on, since other ranks are in them */
    struct fleet_error error;
};

static void keep(struct writer *w, int rc)
{
    if (rc < 0 && w->rc == 0)
        w->rc = rc;
}

static void add(struct writer *w, const void *data, size_t bytes)
{
    int rc = w->writes && w->rc == 0 ? fleet_file_write_all(w->draft.fd, data, bytes) : 0;

    if (rc < 0)
        keep(w, fleet_error(&w->error, rc, "write %s: %s", w->draft.path, strerror(-rc)));
}

static void begin(struct writer *w, const char *folder, const char *name,
                  const struct safetensors_tensor *tensors, size_t count)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0}, header = {0};
    char step[32];
    const struct safetensors_metadata metadata = {(char *)"step", step};

    if (!w->writes || w->rc < 0)
        return;
    (void)snprintf(step, sizeof(step), "%" PRId64, w->sharded->step);
    fleet_strbuf_appendf(&path, "%s/%s", folder, name);
    (void)safetensors_header_encode(tensors, count, &metadata, 1, &header);
    keep(w, fleet_file_draft_open(fleet_strbuf_text(&path), &w->draft, &w->error));
    w->is_open = w->rc == 0;
    add(w, header.text, header.length);
}

static void end(struct writer *w)
{
    struct fleet_error error;

    if (!w->is_open)
        return;
    w->is_open = false;
    if (w->rc < 0)
        fleet_file_draft_discard(&w->draft);
    else if (fleet_file_draft_commit(&w->draft, FLEET_FILE_DURABLE, &error) < 0) {
        w->error = error;
        keep(w, error.code);
    }
}

/* ---- the two files --------------------------------------------------------------------------- */

static struct safetensors_tensor describe(const struct shard_param *param, char *name)
{
    struct safetensors_tensor out = {
        .name = name, .type = SAFETENSORS_F32, .ndim = param->tensor.dimensions};

    memcpy(out.shape, param->tensor.shape, (size_t)out.ndim * sizeof(out.shape[0]));
    return out;
}

static int save_model(struct writer *w, const char *folder, struct fleet_error *err)
{
    struct fleet_group_sharded *s = w->sharded;
    FLEET_AUTO_FREE struct safetensors_tensor *tensors = calloc((size_t)s->count, sizeof(*tensors));
    size_t count = 0;
    int rc = 0;

    if (!tensors)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (int i = 0; i < s->count; i++)
        if (!s->params[i].is_fixed)
            tensors[count++] = describe(&s->params[i], s->params[i].name);
    begin(w, folder, "model.safetensors", tensors, count);
    for (int i = 0; i < s->count && rc == 0; i++) {
        const struct shard_param *param = &s->params[i];
        FLEET_AUTO_FREE void *whole = NULL;

        if (param->is_fixed)
            continue;
        if (param->is_divided)
            rc = shard_gather("fleet_group_shard_save", s, param, param->part, &whole, err);
        if (rc == 0)
            add(w, whole ? whole : param->value, (size_t)param->elements * sizeof(float));
    }
    return rc;
}

static int save_states(struct writer *w, const char *folder, struct fleet_error *err)
{
    struct fleet_group_sharded *s = w->sharded;
    size_t all = (size_t)s->count * FLEET_STATES_MAX, count = 0;
    FLEET_AUTO_FREE struct safetensors_tensor *tensors = calloc(all, sizeof(*tensors));
    int rc = 0;

    if (!tensors)
        return fleet_error(err, -ENOMEM, "out of memory");
    for (int i = 0; i < s->count; i++)
        for (int k = 0; k < s->optimizer.states && !s->params[i].is_fixed; k++) {
            char *name = NULL;
            if (asprintf(&name, "%s.state%d", s->params[i].name, k) >= 0)
                tensors[count++] = describe(&s->params[i], name);
        }
    begin(w, folder, "optimizer.safetensors", tensors, count);
    for (size_t i = 0; i < count; i++)
        free(tensors[i].name);
    for (int i = 0; i < s->count && rc == 0; i++)
        for (int k = 0; k < s->optimizer.states && rc == 0 && !s->params[i].is_fixed; k++) {
            FLEET_AUTO_FREE void *whole = NULL;
            rc = shard_gather("fleet_group_shard_save", s, &s->params[i], s->params[i].state[k],
                              &whole, err);
            if (rc == 0)
                add(w, whole, (size_t)s->params[i].elements * sizeof(float));
        }
    return rc;
}

int fleet_group_shard_save(struct fleet_group_sharded *s, const char *folder, bool with_optimizer,
                           struct fleet_error *err)
{
    const char *what = "fleet_group_shard_save";
    struct writer w = {.sharded = s};
    struct stat info;
    int rc;

    if (!s || !folder || !folder[0])
        return fleet_error(err, -EINVAL, "%s: %s", what, s ? "no folder" : "sharded is NULL");
    if (stat(folder, &info) == 0 && !S_ISDIR(info.st_mode))
        return fleet_error(err, -EINVAL, "%s: %s is a file, needed: a folder", what, folder);
    w.writes = s->group->comm->rank == 0;
    if (w.writes)
        keep(&w, fleet_file_make_folder(folder, &w.error));
    rc = save_model(&w, folder, err);
    end(&w);
    if (rc == 0 && with_optimizer)
        rc = save_states(&w, folder, err);
    if (rc < 0)
        keep(&w, rc);
    end(&w);
    if (rc < 0)
        return fleet_error_wrap(err, "%s", what);
    if (w.rc < 0 && err)
        *err = w.error;
    return w.rc < 0 ? fleet_error_wrap(err, "%s", what) : 0;
}
