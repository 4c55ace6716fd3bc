/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One function for each check; validation_check() at the end lists them in the order of the
 * resource. This file has the checks of metadata and of paths.
 */
#include <errno.h>
#include <string.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/api/odd_fields.h"
#include "libfleet/api/validation_internal.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/api/worker_resources.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"

bool validation_knows(const struct validation *c, const char *path)
{
    return !fleet_errors_touch(&c->job->unread, path);
}

bool validation_can_read(const struct validation *c, const char *block)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf inside = {0};

    fleet_strbuf_appendf(&inside, "%s.", block);
    return !fleet_errors_touch(&c->job->unread, inside.text);
}

/* ---- metadata -------------------------------------------------------------------------------- */

static void check_namespace(const struct validation *c)
{
    const char *name = c->job->metadata.namespace_;

    if (name && validation_knows(c, "metadata.namespace") && !kube_name_is_label(name))
        fleet_errors_add(c->errors, "metadata.namespace",
                         "\"%.100s\" must be at most 63 lower-case letters, digits and '-', with a "
                         "letter or digit at both ends",
                         name);
}

static void check_name(const struct validation *c)
{
    const char *name = c->job->metadata.name;

    if (!name || !validation_knows(c, "metadata.name"))
        return;
    if (strlen(name) > FLEETJOB_NAME_MAX)
        fleet_errors_add(c->errors, "metadata.name",
                         "has %zu bytes; at most %d fit, because pods are called "
                         "<name>-worker-<index>-<attempt> within 63",
                         strlen(name), FLEETJOB_NAME_MAX);
    else if (!kube_name_is_label(name))
        fleet_errors_add(c->errors, "metadata.name",
                         "\"%s\" must be lower-case letters, digits and '-', with a letter or "
                         "digit at both ends",
                         name);
    else if (name[0] >= '0' && name[0] <= '9')
        fleet_errors_add(
            c->errors, "metadata.name",
            "\"%s\" begins with a digit; it must begin with a letter, because the job's "
            "Service has this name: call it \"job-%s\", for instance",
            name, name);
}

/* ---- paths ----------------------------------------------------------------------------------- */

static bool is_below(const char *path, const char *folder)
{
    size_t length = strlen(folder);

    while (length > 1 && folder[length - 1] == '/')
        length--;
    return strncmp(path, folder, length) == 0 &&
           (length == 1 || path[length] == '/' || path[length] == '\0');
}

static bool climbs(const char *path)
{
    for (const char *p = strstr(path, ".."); p; p = strstr(p + 1, ".."))
        if ((p == path || p[-1] == '/') && (p[2] == '/' || p[2] == '\0'))
            return true;
    return false;
}

/* The deepest volume that contains the path, or NULL. */
static const struct fleetjob_volume *volume_of(const struct fleetjob_worker *worker,
                                               const char *path)
{
    const struct fleetjob_volume *best = NULL;

    for (size_t i = 0; i < worker->volumes.count; i++) {
        const struct fleetjob_volume *volume = &worker->volumes.items[i];
        if (volume->mount_path && is_below(path, volume->mount_path) &&
            (!best || strlen(volume->mount_path) > strlen(best->mount_path)))
            best = volume;
    }
    return best;
}

static bool may_be_remote(const char *name)
{
    static const char *const fields[] = {
        "spec.training.data.path", "spec.training.data.vocabulary", "spec.training.data.merges",
        "spec.training.model.initialWeights", "spec.training.checkpoint.path"};

    for (size_t i = 0; i < FLEET_COUNT(fields); i++)
        if (strcmp(name, fields[i]) == 0)
            return true;
    return false;
}

/* Why a place in a store is none: NULL if it is one. */
static const char *why_no_place(const char *url)
{
    const char *at = strstr(url, "://") + strlen("://");
    bool is_hdfs = strncmp(url, "hdfs:", 5) == 0;

    if (at[0] == '\0' || (at[0] == '/' && !is_hdfs))
        return "names no bucket or server: needed: s3://BUCKET/KEY, webhdfs://HOST:PORT/PATH or "
               "swebhdfs://HOST:PORT/PATH";
    if (strpbrk(at, "*?[#"))
        return "must be one file or one folder: patterns are for files of this machine";
    return NULL;
}

/* Why the text is not a path: it contains something that a shell or a library would expand. NULL if
 * it is a path. */
static const char *why_no_path(const char *name, const char *text)
{
    if (fleet_path_is_remote(text) && may_be_remote(name))
        return why_no_place(text);
    if (strstr(text, "://") && may_be_remote(name))
        return "is an address that is not known here: allowed: a path, s3://, hdfs://, webhdfs:// "
               "and swebhdfs://";
    if (fleet_path_is_remote(text))
        return "is in a store, where only data, vocabulary, merges, initialWeights and checkpoints "
               "may be: use a volume, or copy it";
    if (strstr(text, "://"))
        return "is an address: files are read and written by path; use a volume, or copy them";
    if (text[0] == '~' || text[0] == '$' || strstr(text, "/$") || strstr(text, "${"))
        return "is taken as it stands, ~ and variables are not expanded: write the whole path";
    return NULL;
}

/* The image of FleetJob has no Hadoop. */
static void warn_of_program(const struct validation *c, const char *name, const char *url)
{
    if (strncmp(url, "hdfs:", 5) == 0 && c->warnings)
        fleet_errors_add(c->warnings, name,
                         "\"%.200s\" is read and written by the program HADOOP_HOME/bin/hadoop, "
                         "which the workers' image must have; webhdfs:// needs no program",
                         url);
}

static void check_path(void *context, const char *name, char **value)
{
    const struct validation *c = context;
    const char *why = why_no_path(name, *value);

    if (why)
        fleet_errors_add(c->errors, name, "\"%.200s\" %s", *value, why);
    if (why || !c->options->in_cluster)
        return;
    if (fleet_path_is_remote(*value)) {
        warn_of_program(c, name, *value);
        return;
    }
    if ((*value)[0] != '/')
        fleet_errors_add(c->errors, name,
                         "\"%.200s\" must be absolute in a cluster, where no job file is near",
                         *value);
    else if (climbs(*value))
        fleet_errors_add(c->errors, name, "\"%.200s\" must not contain \"..\"", *value);
}

/* Files that the job writes must outlive the pod; a store does. */
static void check_written(const struct validation *c, const char *name, const char *path)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;
    const struct fleetjob_volume *volume = volume_of(worker, path);

    if (!c->options->in_cluster || worker->template_ || path[0] != '/')
        return;
    if (!volume)
        fleet_errors_add(c->errors, name,
                         "\"%.200s\" lies on no volume of spec.worker.volumes, so it would be lost "
                         "with the pod",
                         path);
    else if (volume->read_only || volume->config_map)
        fleet_errors_add(c->errors, name, "\"%.200s\" lies on volume %s, which cannot be written",
                         path, volume->name);
    else if (volume->host_path && c->warnings)
        fleet_errors_add(
            c->warnings, name,
            "\"%.200s\" lies on volume %s, the folder %s of a node: workers run as user "
            "%d, who must be able to write there. If it belongs to root, run \"chown -R "
            "%d:%d %s\" on the node",
            path, volume->name, volume->host_path, WELLKNOWN_WORKER_USER, WELLKNOWN_WORKER_USER,
            WELLKNOWN_WORKER_USER, volume->host_path);
    else if (volume->empty_dir && c->warnings)
        fleet_errors_add(c->warnings, name,
                         "\"%.200s\" lies on volume %s, an emptyDir that is lost with its pod",
                         path, volume->name);
}

/* The setting with which each worker writes a part of a checkpoint that no other has; NULL: none
 * does. */
static const char *part_writer(const struct strategy *s)
{
    if (s->sharding || s->hybrid_configs.sharding_degree > 1)
        return "sharding";
    return s->localsgd            ? "localsgd"
           : s->adaptive_localsgd ? "adaptive_localsgd"
           : s->dgc               ? "dgc"
                                  : NULL;
}

/* Then all workers need one folder, or a store. */
static void check_shared(const struct validation *c, const char *name, const char *path)
{
    const struct fleetjob_worker *worker = &c->job->spec.worker;
    const struct fleetjob_volume *volume = volume_of(worker, path);
    const char *setting = part_writer(&c->job->spec.strategy);

    if (!c->options->in_cluster || worker->template_ || worker->replicas < 2 || !setting || !volume)
        return;
    if (volume->empty_dir)
        fleet_errors_add(
            c->errors, name,
            "\"%.200s\" lies on volume %s, an emptyDir that each worker has for itself: "
            "with %s all workers write parts of one checkpoint, so they need a volume "
            "that all share, a claim for example",
            path, volume->name, setting);
    else if (volume->host_path && c->warnings)
        fleet_errors_add(
            c->warnings, name,
            "with %s all workers write parts of one checkpoint: all nodes must show the "
            "same files below %s",
            setting, volume->host_path);
}

void validation_path(const struct validation *c, const char *name, const char *path,
                     bool is_written)
{
    char *value = (char *)path;

    check_path((void *)c, name, &value);
    if (is_written)
        check_written(c, name, path);
}

static void check_paths(const struct validation *c)
{
    const struct training_config *training = &c->job->spec.training;

    if (!c->job->spec.has_training || !validation_can_read(c, "spec.training"))
        return;
    /* The visitor only reads, so the job does not change. */
    fleet_object_paths(&training_type, (void *)training, "spec.training", check_path, (void *)c);
    if (training->has_checkpoint && validation_knows(c, "spec.training.checkpoint.path")) {
        check_written(c, "spec.training.checkpoint.path", training->checkpoint.path);
        check_shared(c, "spec.training.checkpoint.path", training->checkpoint.path);
    }
    if (training_lacks_vocabulary(training) && fleet_path_is_remote(training->data.vocabulary))
        fleet_errors_add(c->errors, "spec.training.model.vocabulary",
                         "required, because spec.training.data.vocabulary (%.200s) is in a store "
                         "and is not read before the trainers start",
                         training->data.vocabulary);
    else if (c->options->in_cluster && c->warnings && training_lacks_vocabulary(training))
        fleet_errors_add(c->warnings, "spec.training.model.vocabulary",
                         "is not given; the trainers read it from spec.training.data.vocabulary, "
                         "which cannot be read here: memory is not planned, nor checked against "
                         "the limits");
}

int validation_check(const struct fleetjob *job, const struct validation_options *options,
                     struct fleet_errors *errors, struct fleet_errors *warnings)
{
    size_t before = errors->count;
    struct validation check = {
        .job = job, .options = options, .errors = errors, .warnings = warnings};

    check_name(&check);
    check_namespace(&check);
    validation_worker(&check);
    validation_server(&check);
    worker_resources_check(job, errors);
    validation_strategy(&check);
    validation_auto_parallel(&check);
    check_paths(&check);
    if (warnings && validation_can_read(&check, "spec.training"))
        odd_fields_warn(job, warnings);
    return errors->count > before ? -EINVAL : 0;
}
