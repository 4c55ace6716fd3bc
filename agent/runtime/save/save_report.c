/* SPDX-License-Identifier: Apache-2.0 */

/* What the trainer reports of its checkpoints: to its agent, to the log, to the job's status. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "agent/runtime/save/save_internal.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

/* after a save that failed; twice as long after each further one … */
#define RETRY_FIRST_MS 1000.0
#define RETRY_MAX_MS   60e3 /* … up to this, while training goes on */

/* Once a process. */
static void report_shared(struct trainer *trainer, const char *theirs)
{
    if (trainer->save.is_shared)
        return;
    trainer->save.is_shared = true;
    trainer_warn(trainer,
                 "spec.training.checkpoint.path: %s is written by another run, too: %s is not of "
                 "this one; each may delete what the other goes on from; give each run a folder "
                 "of its own",
                 trainer->job.config.checkpoint.path, theirs);
}

void save_describe_newest(const struct trainer *trainer, struct fleet_strbuf *out)
{
    if (trainer->save.newest_step > 0)
        fleet_strbuf_appendf(out, "the newest checkpoint is %s of step %" PRId64,
                             trainer->save.newest_folder, trainer->save.newest_step);
    else
        fleet_strbuf_append(out, "there is no checkpoint yet");
}

void save_remember_newest(struct trainer *trainer, int64_t step, const char *folder)
{
    trainer->save.failures = 0;
    trainer->save.newest_step = step;
    (void)snprintf(trainer->save.newest_folder, sizeof(trainer->save.newest_folder), "%s", folder);
}

/* To the log and to the job's status; the save is tried again after a back-off. */
void save_report_failed(struct trainer *trainer, int64_t step, const char *reason)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct link_message message = {.kind = LINK_CHECKPOINT_FAILED};
    double wait_ms = fmin(RETRY_FIRST_MS * exp2(fmin(trainer->save.failures, 16)), RETRY_MAX_MS);

    trainer->save.saved = TRAINER_NO_STATE; /* nothing of this process is */
    trainer->save.failures++;
    if (step == trainer->save.due_step)
        trainer->save.failed_step = step;
    trainer->save.retry_at_ms = fleet_monotonic_ms() + wait_ms;
    fleet_strbuf_appendf(&text,
                         "checkpoint of step %" PRId64
                         " failed and is tried again (spec.training.checkpoint.path %s): %s; ",
                         step, trainer->job.config.checkpoint.path, reason);
    save_describe_newest(trainer, &text);
    (void)snprintf(trainer->save.error, sizeof(trainer->save.error), "%s", reason);
    message.checkpoint_failed.step = step;
    (void)snprintf(message.checkpoint_failed.text, sizeof(message.checkpoint_failed.text), "%s",
                   text.text);
    control_send(trainer->control, &message);
    trainer_warn(trainer, "%s", text.text);
}

void save_report(struct trainer *trainer, const struct snapshot_result *result)
{
    const char *path = trainer->job.config.checkpoint.path;
    struct link_message message = {.kind = LINK_CHECKPOINT_DONE,
                                   .generation = trainer->save.begun_in};
    FLEET_AUTO_FREE char *place = fleet_file_join(path, result->folder);

    if (result->shard > 0 && result->rc < 0 && trainer->save.remote)
        trainer_warn(trainer, "this worker's part of the checkpoint of step %" PRId64 ": %s",
                     result->step, result->err.text); /* the store may have no note of it */
    if (result->shard > 0)                            /* the first rank reports */
        return;
    if (result->is_shared)
        report_shared(trainer, result->theirs);
    if (result->rc < 0) {
        save_report_failed(trainer, result->step, result->err.text);
        return;
    }
    save_remember_newest(trainer, result->step, result->folder);
    message.checkpoint_done.step = result->step;
    (void)snprintf(message.checkpoint_done.path, sizeof(message.checkpoint_done.path), "%s", place);
    control_send(trainer->control, &message);
}
