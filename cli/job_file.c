/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Builds a job and its plan from a user's file and the command line. Options change the JSON before
 * it is decoded, so their errors are reported like any other.
 */
#include "cli/job_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/resume_division.h"
#include "cli/strategy_load.h"
#include "libfleet/api/document.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml.h"

static char *current_folder(void)
{
    char *folder = getcwd(NULL, 0);

    return folder ? folder : strdup("/");
}

char *job_file_folder(const char *path)
{
    FLEET_AUTO_FREE char *current = current_folder();
    const char *slash = strrchr(path, '/');
    FLEET_AUTO_FREE char *folder = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");

    fleet_assert(current && folder);
    if (slash == path)
        return strdup("/");
    return strcmp(folder, ".") == 0 ? strdup(current) : fleet_file_join(current, folder);
}

/* The object `key` of `parent`; makes it if absent. */
static cJSON *object_at(cJSON *parent, const char *key)
{
    cJSON *item = cJSON_GetObjectItemCaseSensitive(parent, key);

    if (cJSON_IsObject(item))
        return item;
    return fleet_json_set_object(parent, key);
}

static void set_workers(cJSON *worker, double workers)
{
    const cJSON *min = cJSON_GetObjectItemCaseSensitive(worker, "minReplicas");
    const cJSON *max = cJSON_GetObjectItemCaseSensitive(worker, "maxReplicas");

    fleet_json_set_number(worker, "replicas", workers);
    if (cJSON_IsNumber(min) && min->valuedouble > workers)
        fleet_json_set_number(worker, "minReplicas", workers);
    if (cJSON_IsNumber(max) && max->valuedouble < workers)
        fleet_json_set_number(worker, "maxReplicas", workers);
}

static void set_path(cJSON *training, const char *block, const char *key, const char *path)
{
    FLEET_AUTO_FREE char *current = current_folder();
    FLEET_AUTO_FREE char *full = fleet_file_join(current, path);
    cJSON *object = object_at(training, block);

    fleet_json_set_string(object, key, full);
}

/* Options that change the training block. A job with an own trainer has none, and an option would
 * create an incomplete one. */
static void refuse_changes(const struct job_file_changes *changes, struct fleet_errors *errors)
{
    static const char why[] = "this job has no spec.training, its own command decides that";

    if (changes->steps > 0)
        fleet_errors_add(errors, "--steps", why);
    if (changes->data_path)
        fleet_errors_add(errors, "--data", why);
    if (changes->checkpoint_path)
        fleet_errors_add(errors, "--checkpoint", why);
}

static void change_training(cJSON *training, const struct job_file_changes *changes)
{
    if (changes->steps > 0)
        fleet_json_set_number(training, "steps", (double)changes->steps);
    if (changes->data_path)
        set_path(training, "data", "path", changes->data_path);
    if (changes->checkpoint_path)
        set_path(training, "checkpoint", "path", changes->checkpoint_path);
}

static void change(cJSON *root, const struct job_file_changes *changes, struct fleet_errors *errors)
{
    cJSON *spec;

    if (!cJSON_IsObject(root))
        return; /* decoding reports the error */
    spec = object_at(root, "spec");
    if (changes->workers > 0)
        set_workers(object_at(spec, "worker"), (double)changes->workers);
    if (changes->links)
        fleet_json_set(object_at(spec, "autoParallel"), "links", fleet_json_copy(changes->links));
    if (cJSON_GetObjectItemCaseSensitive(spec, "training"))
        change_training(object_at(spec, "training"), changes);
    else
        refuse_changes(changes, errors);
}

int job_file_read(const char *path, const struct job_file_changes *changes, struct fleetjob *out,
                  struct fleet_errors *errors)
{
    FLEET_AUTO_FREE char *text = NULL;
    FLEET_AUTO_JSON cJSON *root = NULL;
    struct fleet_errors faults = {0};
    struct fleet_error err;
    size_t size;

    *out = (struct fleetjob){0};
    if (fleet_file_read(path, FLEET_YAML_SIZE_MAX, &text, &size, &err) < 0) {
        fleet_errors_add(errors, "", "%s", err.text);
        return -EINVAL;
    }
    if (document_pick(text, size, &root, &faults, &err) < 0) {
        fleet_errors_add(errors, "", "%s: %s", path, err.text);
        return -EINVAL;
    }
    change(root, changes, errors);
    (void)fleetjob_decode(root, out, errors);
    document_report_faults(path, &faults, errors);
    fleet_errors_release(&faults);
    strategy_load(root, path, out, errors, NULL);
    resume_division(root, path, out, errors);
    strategy_load_found(root, out, errors);
    return 0;
}

struct words {
    char **items; /* NULL-terminated */
    size_t count;
};

/* Takes `word`. */
static void add_word(struct words *words, char *word)
{
    words->items = realloc(words->items, (words->count + 2) * sizeof(*words->items));
    fleet_assert(words->items && word);
    words->items[words->count++] = word;
    words->items[words->count] = NULL;
}

static void add_list(struct words *words, const cJSON *list)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list) if (cJSON_IsString(item))
        add_word(words, strdup(item->valuestring));
}

static void add_variables(struct words *words, const cJSON *list)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, list)
    {
        const cJSON *name = cJSON_GetObjectItemCaseSensitive(item, "name");
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(item, "value");
        struct fleet_strbuf text = {0};
        if (!cJSON_IsString(name) || !cJSON_IsString(value))
            continue; /* from a Secret or a field of the pod: not available here */
        fleet_strbuf_appendf(&text, "%s=%s", name->valuestring, value->valuestring);
        add_word(words, fleet_strbuf_take(&text));
    }
}

static char **read_command(const cJSON *template)
{
    const cJSON *container = fleet_json_at(template, "spec.containers[0]");
    const cJSON *command = fleet_json_at(container, "command");
    struct words words = {0};

    if (!cJSON_IsArray(command) || cJSON_GetArraySize(command) == 0)
        return NULL;
    add_list(&words, command);
    add_list(&words, fleet_json_at(container, "args"));
    return words.items;
}

char **job_file_command(const struct fleetjob *job)
{
    return job->spec.has_training ? NULL : read_command(job->spec.worker.template_);
}

char **job_file_server_command(const struct fleetjob *job)
{
    return read_command(fleetjob_server_template(job));
}

static char **read_environment(const cJSON *template)
{
    struct words words = {0};

    add_variables(&words, fleet_json_at(template, "spec.containers[0].env"));
    return words.items;
}

char **job_file_environment(const struct fleetjob *job)
{
    return read_environment(job->spec.worker.template_);
}

char **job_file_server_environment(const struct fleetjob *job)
{
    return read_environment(fleetjob_server_template(job));
}

void job_file_free_command(char **command)
{
    for (char **word = command; word && *word; word++)
        free(*word);
    free(command);
}

int job_file_world(const struct fleetjob *job)
{
    return (int)fleetjob_world_size(job, job->spec.worker.replicas);
}
