/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/machine_check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/runtime/data/probe.h"
#include "cli/system/machine_memory.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/api/memory_limit.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/memory.h"
#include "libfleet/checkpoint/safetensors.h"

struct check {
    const struct fleetjob *job;
    const struct machine_check_options *options;
    struct fleet_errors *errors, *warnings;
    struct fleet_strbuf *elsewhere; /* "field (path), field (path)": paths that do not exist here */
    struct fleet_strbuf *stores;    /* the same for places in a store */
};

static bool is_known(const struct check *c, const char *path)
{
    return !fleet_errors_touch(&c->job->unread, path);
}

/* Is there an error about exactly this field? */
static bool is_reported(const struct check *c, const char *field)
{
    for (size_t i = 0; i < c->errors->count && i < FLEET_ERRORS_MAX; i++)
        if (strcmp(c->errors->items[i].path, field) == 0)
            return true;
    return false;
}

/* Does the path exist here: a file, a folder, or a pattern with a match? */
static bool is_here(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0;
}

/* The folder of a pattern, or of a file that may not exist yet. */
static char *folder_of(const char *path)
{
    size_t length = strcspn(path, "*?[");
    char *folder = strndup(path, length);

    fleet_assert(folder != NULL);
    if (path[length])
        *(strrchr(folder, '/') ? strrchr(folder, '/') : folder) = '\0';
    return folder;
}

static bool is_below(const char *path, const char *folder)
{
    size_t length = folder ? strlen(folder) : 0;

    while (length > 1 && folder[length - 1] == '/')
        length--;
    return length > 0 && strncmp(path, folder, length) == 0 &&
           (length == 1 || path[length] == '/' || path[length] == '\0');
}

/* Of spec.worker.volumes, or of the template's first container. */
static bool is_on_volume(const struct fleetjob *job, const char *path)
{
    const struct fleetjob_worker *worker = &job->spec.worker;
    const cJSON *mount;

    for (size_t i = 0; i < worker->volumes.count; i++)
        if (is_below(path, worker->volumes.items[i].mount_path))
            return true;
    cJSON_ArrayForEach(mount, fleet_json_at(worker->template_, "spec.containers[0].volumeMounts"))
    {
        if (is_below(path,
                     cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(mount, "mountPath"))))
            return true;
    }
    return false;
}

/* Should this path of the job be checked here? A path that exists only in the pod is added to the
 * list. A field with an error needs no second one. */
static bool is_ours(const struct check *c, const char *field, const char *path)
{
    FLEET_AUTO_FREE char *folder = folder_of(path);

    if (fleet_path_is_remote(path)) { /* the trainers have its keys */
        if (!is_reported(c, field))
            fleet_strbuf_appendf(c->stores, "%s%s (%s)", c->stores->length ? ", " : "", field,
                                 path);
        return false;
    }
    if (c->options->will_run ||
        (!c->options->in_cluster && (!is_on_volume(c->job, path) || is_here(folder))))
        return !is_reported(c, field);
    fleet_strbuf_appendf(c->elsewhere, "%s%s (%s)", c->elsewhere->length ? ", " : "", field, path);
    return false;
}

/* ---- what is read ---------------------------------------------------------------------------- */

static bool knows_data(const struct check *c)
{
    static const char *const fields[] = {"spec.training.data", "spec.training.model",
                                         "spec.training.globalBatchSize"};

    for (size_t i = 0; i < FLEET_COUNT(fields); i++)
        if (!is_known(c, fields[i]))
            return false;
    /* Is such an error about the tokens? */
    return !is_reported(c, "spec.training.model.vocabulary") &&
           !is_reported(c, "spec.training.data.tokenizer");
}

/* Has validation reported samples of the wrong kind? */
static bool fits_model(const struct training_config *config)
{
    bool is_image = config->data.tokenizer == TRAINING_TOKENIZER_CIFAR10 ||
                    config->data.tokenizer == TRAINING_TOKENIZER_CIFAR100;
    bool is_text =
        config->model.name == TRAINING_MODEL_GPT || config->model.name == TRAINING_MODEL_LLAMA;

    return is_image != is_text;
}

static char *join(const struct check *c, const char *path)
{
    return path ? fleet_file_join(c->options->folder, path) : NULL;
}

/* Check that the data exist, which does not depend on the model. False: they cannot be checked
 * here. */
static bool check_place(const struct check *c, const char *field, const char *given)
{
    FLEET_AUTO_FREE char *path = join(c, given);

    if (!given)
        return true;
    if (!is_known(c, field) || !is_ours(c, field, given))
        return false;
    if (!strpbrk(given, "*?[") && access(path, R_OK) < 0)
        fleet_errors_add(c->errors, field, "open %s: %s", path, strerror(errno)); /* NOLINT */
    return true;
}

static bool check_places(const struct check *c)
{
    const struct training_data *data = &c->job->spec.training.data;
    bool good = check_place(c, "spec.training.data.path", data->path);

    good = check_place(c, "spec.training.data.vocabulary", data->vocabulary) && good;
    return check_place(c, "spec.training.data.merges", data->merges) && good;
}

static void check_data(const struct check *c)
{
    struct training_config config = c->job->spec.training; /* this copy's paths change below */
    FLEET_AUTO_FREE char *path = NULL, *vocabulary = NULL, *merges = NULL;
    struct fleet_errors found = {0};

    if (!check_places(c) || !config.data.path || !knows_data(c) || !fits_model(&config))
        return;
    config.data.path = path = join(c, config.data.path);
    config.data.vocabulary = vocabulary = join(c, config.data.vocabulary);
    config.data.merges = merges = join(c, config.data.merges);
    probe_data(&config, &found, c->warnings);
    fleet_errors_merge(c->errors, &found); /* the missing files are already known */
    fleet_errors_release(&found);
}

static void check_weights(const struct check *c)
{
    static const char field[] = "spec.training.model.initialWeights";
    const char *given = c->job->spec.training.model.initial_weights;
    FLEET_AUTO_FREE char *path = join(c, given);
    struct safetensors_file file;
    struct fleet_error err;

    if (!given || !is_known(c, field) || !is_ours(c, field, given))
        return;
    if (safetensors_open(path, &file, &err) < 0)
        fleet_errors_add(c->errors, field, "%s", err.text);
    else
        safetensors_release(&file);
}

/* ---- what is written ------------------------------------------------------------------------- */

/* The deepest existing part of `path`; heap. */
static char *existing_part(const char *path)
{
    char *part = strdup(path), *slash;

    fleet_assert(part != NULL);
    while (!is_here(part) && (slash = strrchr(part, '/')) && slash > part)
        *slash = '\0';
    if (!is_here(part))
        (void)strcpy(part, "/"); /* NOLINT: there is no shorter path */
    return part;
}

static void refuse_folder(const struct check *c, const char *field, const char *path,
                          const char *part, const char *why)
{
    if (strcmp(path, part) == 0)
        fleet_errors_add(c->errors, field, "cannot write to %s: %s", path, why);
    else
        fleet_errors_add(c->errors, field, "cannot create %s: %s: %s", path, part, why);
}

static void check_folder(const struct check *c, const char *field, const char *given)
{
    FLEET_AUTO_FREE char *path = join(c, given), *part = NULL;
    struct fleet_error err;
    struct stat st;

    if (!given || !given[0] || !is_known(c, field) || !is_ours(c, field, given))
        return;
    part = existing_part(path);
    if (stat(part, &st) < 0)
        refuse_folder(c, field, path, part, strerror(errno));
    else if (!S_ISDIR(st.st_mode))
        refuse_folder(c, field, path, part, "not a folder");
    else if (fleet_file_try_folder(part, &err) < 0)
        refuse_folder(c, field, path, part,
                      err.code == -ENOENT ? "nothing can be created there" : strerror(-err.code));
}

static void check_file(const struct check *c, const char *field, const char *given)
{
    FLEET_AUTO_FREE char *path = join(c, given), *folder = NULL;
    struct stat st;

    if (!given || !given[0] || !is_known(c, field))
        return;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        if (is_ours(c, field, given))
            fleet_errors_add(c->errors, field, "%s is not a regular file, and is not replaced",
                             path);
        return;
    }
    folder = fleet_dup_text(given);
    if (!strrchr(folder, '/'))
        (void)strcpy(folder, "."); /* NOLINT: "" was skipped above */
    else
        *(strrchr(folder, '/') + (strrchr(folder, '/') == folder)) = '\0';
    check_folder(c, field, folder);
}

static void check_outputs(const struct check *c)
{
    const struct training_config *training = &c->job->spec.training;

    if (training->has_checkpoint)
        check_folder(c, "spec.training.checkpoint.path", training->checkpoint.path);
    check_folder(c, "spec.training.log.tensorboard", training->log.tensorboard);
    if (!c->options->in_cluster) /* file types that cannot take a curve */
        check_file(c, "spec.training.log.curve", training->log.curve);
}

void machine_check_files(const struct fleetjob *job, const struct machine_check_options *options,
                         struct fleet_errors *errors, struct fleet_errors *warnings,
                         struct fleet_errors *notes)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf elsewhere = {0}, stores = {0};
    struct check check = {.job = job,
                          .options = options,
                          .errors = errors,
                          .warnings = warnings,
                          .elsewhere = &elsewhere,
                          .stores = &stores};

    if (!job->spec.has_training)
        return;
    check_data(&check);
    check_weights(&check);
    check_outputs(&check);
    if (elsewhere.length > 0)
        fleet_errors_add(notes, "", "not checked here, these are paths of the pods: %s",
                         elsewhere.text);
    if (stores.length > 0)
        fleet_errors_add(notes, "", "not checked here, trainers read and write it: %s",
                         stores.text);
}

/* ---- memory ---------------------------------------------------------------------------------- */

void machine_check_memory(const struct fleetjob *job, const struct plan *plan,
                          struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf has = {0}, sum = {0}, each = {0};
    const char *what;
    int64_t limit = machine_memory_limit("", &what), workers = job->spec.worker.replicas;
    int64_t needed = workers * memory_limit_needed(job, plan) -
                     (workers - 1) * (int64_t)plan->snapshot_bytes; /* one writes */

    if (!plan->has_program || needed <= limit)
        return;
    fleet_strbuf_append_size(&has, (double)limit);
    fleet_strbuf_append_size(&sum, (double)needed);
    memory_limit_explain(job, plan, &each);
    fleet_errors_add(errors, "spec.worker.replicas",
                     "%lld worker%s need%s %s of memory, %s has %s; each needs %s",
                     (long long)workers, workers == 1 ? "" : "s", workers == 1 ? "s" : "", sum.text,
                     what, has.text, each.text);
}
