/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/job_check.h"

#include <stdlib.h>

#include "cli/job_file.h"
#include "cli/machine_check.h"
#include "cli/system/processors.h"
#include "libfleet/api/fleetjob.h"
#include "libfleet/api/judge.h"
#include "libfleet/api/memory_limit.h"
#include "libfleet/autoparallel/context_files.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/vocabulary.h"

/* The size of the vocabulary from the tokenizer's file. Errors of that file are reported with the
 * data. */
static void complete(struct fleetjob *job, const char *folder)
{
    struct fleet_error err;

    if (job->spec.has_training && !fleet_errors_touch(&job->unread, "spec.training.model") &&
        !fleet_errors_touch(&job->unread, "spec.training.data"))
        (void)vocabulary_complete(&job->spec.training, folder, &err);
}

static int thread_count(const struct fleetjob *job, const struct job_check_options *options)
{
    int64_t world = options->world_size > 0 ? options->world_size
                                            : fleetjob_world_size(job, job->spec.worker.replicas);

    if (options->command == JOB_CHECK_PLAN || world < 1 || world > TOPOLOGY_WORLD_MAX)
        return 0;
    return processors_per_trainer((int)world);
}

/* The plan is that of the job as it is written. An elastic job may need more at other times. */
static void note_tightest(const struct fleetjob *job, const struct judge_options *judge,
                          struct job_check *check)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf needs = {0};
    struct plan plan;
    int64_t workers;

    if (!judge_tightest(job, judge, &check->plan, &plan, &workers))
        return;
    memory_limit_explain(job, &plan, &needs);
    fleet_errors_add(&check->notes, "spec.worker.minReplicas",
                     "when the job has %lld worker%s, a worker needs most memory: %s",
                     (long long)workers, workers == 1 ? "" : "s", needs.text);
    plan_release(&plan);
}

static void check_text(struct fleetjob *job, const struct job_check_options *options,
                       struct job_check *check)
{
    struct judge_options judge = {.in_cluster = options->in_cluster,
                                  .without_image = options->command == JOB_CHECK_RUN,
                                  .only_explain = options->command == JOB_CHECK_PLAN,
                                  .world_size = options->world_size,
                                  .threads = thread_count(job, options),
                                  .on_one_machine = options->command == JOB_CHECK_RUN,
                                  .cuda_comm = getenv("FLEET_CUDA_COMM"),
                                  .policy = options->policy};

    check->has_plan = judge_job(job, &judge, &check->plan, &check->errors, &check->warnings);
    if (check->has_plan && check->errors.count == 0 && options->command == JOB_CHECK_PLAN)
        note_tightest(job, &judge, check);
}

/* A container gets the program from its image; a process of this machine has no image. */
static void check_command(const struct fleetjob *job, const struct job_check_options *options,
                          struct job_check *check)
{
    char **command = job_file_command(job);

    if (!command && !job->spec.has_training && job->spec.worker.template_ && !options->in_cluster &&
        options->command != JOB_CHECK_RUN) /* validation refuses it */
        fleet_errors_add(&check->notes, "spec.worker.template.spec.containers[0].command",
                         "`fleetjob run` needs it: on this machine there is no image whose "
                         "ENTRYPOINT could run");
    job_file_free_command(command);
}

/* A job that will run elsewhere need not fit into this machine's memory. */
static void check_memory(const struct fleetjob *job, const struct job_check_options *options,
                         struct job_check *check)
{
    struct fleet_errors found = {0};

    machine_check_memory(job, &check->plan, &found);
    if (options->command == JOB_CHECK_RUN)
        fleet_errors_append(&check->errors, &found);
    else if (found.count > 0)
        fleet_errors_add(&check->notes, found.items[0].path,
                         "`fleetjob run` would refuse it on this machine: %s",
                         found.items[0].message);
    fleet_errors_release(&found);
}

static void check_machine(struct fleetjob *job, const struct job_check_options *options,
                          const char *folder, struct job_check *check)
{
    struct machine_check_options machine = {.folder = folder,
                                            .in_cluster = options->in_cluster,
                                            .will_run = options->command == JOB_CHECK_RUN};

    machine_check_files(job, &machine,
                        options->command == JOB_CHECK_PLAN ? &check->warnings : &check->errors,
                        &check->warnings, &check->notes);
    check_command(job, options, check);
    if (check->has_plan && !options->in_cluster && options->world_size == 0)
        check_memory(job, options, check);
}

/* What is said of a strategy file that has not been read: strategy_load() has read it. */
static void drop_load(const struct fleetjob *job, struct job_check *check)
{
    struct context_files files;

    context_files_of(job->spec.auto_parallel, &files);
    if (files.load.path)
        fleet_errors_drop(&check->warnings, "spec.autoParallel", files.load.key);
}

void job_check(struct fleetjob *job, const struct job_check_options *options,
               struct job_check *check)
{
    FLEET_AUTO_FREE char *folder = job_file_folder(options->file);

    if (!options->in_cluster) /* the file may be a different one where the job will train */
        complete(job, folder);
    check_text(job, options, check);
    if (!options->in_cluster)
        drop_load(job, check);
    check_machine(job, options, folder, check);
    /* A field with an error gets no warning. */
    for (size_t i = 0; i < check->errors.count && i < FLEET_ERRORS_MAX; i++)
        fleet_errors_drop(&check->warnings, check->errors.items[i].path, "");
}

void job_check_release(struct job_check *check)
{
    fleet_errors_release(&check->errors);
    fleet_errors_release(&check->warnings);
    fleet_errors_release(&check->notes);
    if (check->has_plan)
        plan_release(&check->plan);
    *check = (struct job_check){0};
}
