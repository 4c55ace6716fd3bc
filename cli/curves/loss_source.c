/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/curves/loss_source.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/curves/curve.h"
#include "cli/curves/event_losses.h"
#include "cli/curves/loss_decode.h"
#include "cli/curves/loss_record.h"
#include "cli/job_file.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/checkpoint/manifest.h"

/* ---- a file ---------------------------------------------------------------------------------- */

static int read_file(const char *path, struct curve *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;
    int rc = fleet_file_read(path, LOSS_RECORD_SIZE_MAX, &text, &size, err);

    if (rc < 0)
        return rc;
    rc = loss_decode(text, size, out, err);
    if (rc < 0)
        (void)fleet_error_wrap(err, "%s", strcmp(path, "-") == 0 ? "standard input" : path);
    return rc;
}

/* ---- a folder -------------------------------------------------------------------------------- */

static int is_record_file(const struct dirent *entry)
{
    size_t size = strlen(entry->d_name), suffix = strlen(LOSS_RECORD_SUFFIX);

    return strncmp(entry->d_name, LOSS_RECORD_PREFIX, strlen(LOSS_RECORD_PREFIX)) == 0 &&
           size > suffix && strcmp(entry->d_name + size - suffix, LOSS_RECORD_SUFFIX) == 0;
}

/* The path of the folder's only record, heap. -ENOENT: it has none; -EINVAL: several, with their
 * names. */
static int find_record(const char *folder, char **out, struct fleet_error *err)
{
    struct dirent **files = NULL;
    int count = scandir(folder, &files, is_record_file, alphasort), rc = 0;

    if (count < 0)
        return fleet_error(err, -errno, "%s: %s", folder, strerror(errno));
    if (count == 1)
        *out = fleet_file_join(folder, files[0]->d_name);
    else if (count == 0)
        rc = fleet_error(err, -ENOENT,
                         "%s: no losses: expected losses-NAME.tsv, which `fleetjob run` writes "
                         "beside checkpoints, or event files of TensorBoard (log.tensorboard)",
                         folder);
    else
        rc = fleet_error(err, -EINVAL, "%s: records of several jobs (%s, %s%s); name one of them",
                         folder, files[0]->d_name, files[1]->d_name, count > 2 ? ", …" : "");
    for (int i = 0; i < count; i++)
        free(files[i]);
    free(files);
    return rc;
}

static bool is_checkpoint(const char *folder)
{
    FLEET_AUTO_FREE char *manifest = fleet_file_join(folder, MANIFEST_NAME);

    return access(manifest, F_OK) == 0;
}

static int read_folder(const char *folder, struct curve *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *record = NULL;
    struct fleet_error other;
    int rc;

    if (is_checkpoint(folder)) {
        FLEET_AUTO_FREE char *parent = fleet_file_join(folder, "..");
        if ((rc = find_record(parent, &record, err)) < 0)
            return rc;
        return read_file(record, out, err);
    }
    rc = find_record(folder, &record, err);
    if (rc == 0)
        return read_file(record, out, err);
    if (rc != -ENOENT)
        return rc;
    rc = event_losses_read(folder, out, &other);
    if (rc == -ENOENT)
        return err->code;
    if (rc == 0 && out->losses.count + out->evaluations.count == 0) {
        curve_release(out);
        return fleet_error(err, -ENODATA,
                           "%s: its event files have no curve \"loss\" or \"evaluation/loss\"",
                           folder);
    }
    return rc < 0 ? fleet_error(err, rc, "%s: %s", folder, other.text) : 0;
}

/* ---- a job ----------------------------------------------------------------------------------- */

static bool is_job(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot && (strcasecmp(dot, ".yaml") == 0 || strcasecmp(dot, ".yml") == 0);
}

static int read_what_it_left(const char *path, const struct fleetjob *job, struct curve *out,
                             struct fleet_error *err)
{
    const struct training_config *training = &job->spec.training;
    FLEET_AUTO_FREE char *folder = job_file_folder(path), *checkpoints = NULL, *record = NULL,
                         *events = NULL;

    if (job->spec.has_training && training->has_checkpoint &&
        !fleet_path_is_remote(training->checkpoint.path)) {
        checkpoints = fleet_file_join(folder, training->checkpoint.path);
        record = loss_record_path(checkpoints, job->metadata.name);
    }
    if (job->spec.has_training && training->log.tensorboard)
        events = fleet_file_join(folder, training->log.tensorboard);
    if (!record && !events)
        return fleet_error(err, -EINVAL,
                           "%s: this job keeps no losses: it has neither training.checkpoint (in a "
                           "folder, not in a store) nor training.log.tensorboard",
                           path);
    if (record && (!events || access(record, F_OK) == 0))
        return read_file(record, out, err);
    return read_folder(events, out, err);
}

static int read_job(const char *path, struct curve *out, struct fleet_error *err)
{
    struct job_file_changes changes = {0};
    struct fleet_errors errors = {0};
    struct fleetjob job;
    int rc;

    if (job_file_read(path, &changes, &job, &errors) < 0 || errors.count > 0) {
        (void)fleet_errors_result(&errors, err);
        rc = fleet_error_wrap(err, "%s", path);
    } else {
        rc = read_what_it_left(path, &job, out, err);
    }
    fleet_errors_release(&errors);
    fleetjob_release(&job);
    return rc;
}

/* ---- any ------------------------------------------------------------------------------------- */

int loss_source_read(const char *path, struct curve *out, struct fleet_error *err)
{
    struct stat stat_;

    if (strcmp(path, "-") == 0)
        return read_file(path, out, err);
    if (stat(path, &stat_) < 0)
        return fleet_error(err, -errno, "%s: %s", path, strerror(errno));
    if (S_ISDIR(stat_.st_mode))
        return read_folder(path, out, err);
    return is_job(path) ? read_job(path, out, err) : read_file(path, out, err);
}
