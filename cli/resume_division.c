/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/resume_division.h"

#include <errno.h>

#include "cli/job_file.h"
#include "libfleet/api/divisions.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/checkpoint/job_record.h"
#include "libfleet/checkpoint/manifest.h"

static bool resumes(const struct fleetjob *job)
{
    const struct training_config *training = &job->spec.training;

    return divisions_are_searched(job) && training->has_checkpoint &&
           training->checkpoint.resume != TRAINING_RESUME_NEVER &&
           !fleet_path_is_remote(training->checkpoint.path);
}

/* Degrees that divide one divide the other. */
static bool is_same_model(const struct training_config *a, const struct training_config *b)
{
    return a->model.name == b->model.name && a->model.layers == b->model.layers &&
           a->model.heads == b->model.heads && a->model.kv_heads == b->model.kv_heads &&
           a->model.width == b->model.width && a->model.hidden == b->model.hidden;
}

/* The record of the checkpoint that training goes on from: the newest, or that of a step. */
static int read_record(const char *path, int64_t resume, struct job_record *out)
{
    struct manifest_list list = {0};
    struct fleet_error err;
    int rc = manifest_scan(path, NULL, &list, NULL, &err);
    size_t i = 0;

    if (rc < 0)
        return rc;
    while (i < list.count && resume >= 0 && list.entries[i].manifest.step != resume)
        i++;
    rc = i < list.count ? job_record_decode(list.entries[i].manifest.job, out, &err) : -ENOENT;
    manifest_list_release(&list);
    return rc;
}

void resume_division(cJSON *root, const char *file, struct fleetjob *job,
                     struct fleet_errors *errors)
{
    FLEET_AUTO_FREE char *folder = NULL, *path = NULL;
    struct job_record record;

    if (errors->count > 0 || !resumes(job))
        return;
    folder = job_file_folder(file);
    path = fleet_file_join(folder, job->spec.training.checkpoint.path);
    if (read_record(path, job->spec.training.checkpoint.resume, &record) < 0)
        return;
    if (is_same_model(&record.training, &job->spec.training)) {
        divisions_continue(root, job, &record.strategy.strategy, record.training.micro_batch_size);
        fleetjob_release(job);
        (void)fleetjob_decode(root, job, errors);
        cJSON_Delete(job->status.plan); /* this run has no status yet */
        job->status.plan = NULL;
        job->has_status = false;
    }
    job_record_release(&record);
}
