/* SPDX-License-Identifier: Apache-2.0 */

/* The last checkpoint of a job, or of this rank: it is tried again until it is on disk. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <time.h>

#include "agent/runtime/save/save_internal.h"
#include "agent/runtime/step/average.h"
#include "agent/runtime/trainer.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/variable.h"

#define RETRY_LAST_MS       5000.0 /* while there is nothing else to do */
#define RETRY_TOGETHER_MS   1000.0 /* the same, for all ranks */
#define DISK_MS             3600e3 /* a disk may be slow */
#define SAVE_PATIENCE_S     300    /* for the job's last checkpoint */
#define SAVE_PATIENCE_S_MAX 86400
#define LEAVE_PATIENCE_MS   10e3 /* when asked to leave, which has a grace of its own */

/* Rank 0 has the weights that a checkpoint holds, without asking the others. */
static bool has_weights(const struct trainer *trainer)
{
    return average_is_common(trainer) || trainer->progress.viewed == trainer->progress.committed;
}

/* Sleeps until then, in short naps: false if the generation is over or we are asked to leave
 * first. */
static bool sleep_until(const struct trainer *trainer, double at_ms, bool is_leaving)
{
    while (fleet_monotonic_ms() < at_ms) {
        struct timespec nap = {.tv_nsec = 50000000};
        if (!is_leaving &&
            (atomic_load(control_stop(trainer->control)) || control_leaving(trainer->control)))
            return false;
        (void)nanosleep(&nap, NULL);
    }
    return true;
}

/* The newest state of all, which the job's end or our leaving would lose. On the first rank: until
 * it is on disk, `patience_ms` are over, or the generation is. True if it is on disk. */
static bool insist(struct trainer *trainer, double patience_ms, bool is_leaving)
{
    double give_up_ms = fleet_monotonic_ms() + patience_ms;

    save_finish(trainer);
    if (trainer->generation.rank != 0)
        trainer->save.failures = 0; /* of a generation in which it was the first */
    while (trainer->save.failures > 0) {
        double now_ms = fleet_monotonic_ms();
        double next_ms = fmin(trainer->save.retry_at_ms, now_ms + RETRY_LAST_MS);
        if (now_ms >= give_up_ms || !sleep_until(trainer, fmin(next_ms, give_up_ms), is_leaving))
            return false;
        save_alone(trainer);
        save_finish(trainer);
    }
    return true;
}

enum verdict {
    SAVED,
    AGAIN,
    GIVEN_UP,
};

/* Of the first rank, which ends a checkpoint of all. */
static int agree(struct trainer *trainer, double give_up_ms, enum verdict *out,
                 struct fleet_error *err)
{
    int32_t verdict = trainer->save.failures == 0          ? SAVED
                      : fleet_monotonic_ms() >= give_up_ms ? GIVEN_UP
                                                           : AGAIN;

    if (comm_broadcast(trainer->net.comm, &verdict, sizeof(verdict), 0,
                       fleet_monotonic_ms() + DISK_MS, err) < 0)
        return fleet_error_wrap(err, "learn whether the last checkpoint is on disk");
    *out = (enum verdict)verdict;
    return 0;
}

/* The same where all ranks write, each a part. *out is false also if the generation is over, or
 * this rank is asked to leave. */
static int insist_together(struct trainer *trainer, double patience_ms, bool *out,
                           struct fleet_error *err)
{
    double give_up_ms = fleet_monotonic_ms() + patience_ms;
    enum verdict verdict;

    for (;;) {
        double next_ms = fleet_monotonic_ms() + RETRY_TOGETHER_MS;
        save_finish(trainer);
        if (agree(trainer, give_up_ms, &verdict, err) < 0)
            return err->code;
        *out = verdict == SAVED;
        if (verdict == SAVED)
            trainer->save.failures = 0;
        if (verdict != AGAIN || !sleep_until(trainer, next_ms, false))
            return 0;
        if (save_together(trainer, err) < 0)
            return err->code;
    }
}

int save_read_patience(struct trainer *trainer, struct fleet_error *err)
{
    int seconds;
    int rc = fleet_variable_number(LINK_SAVE_PATIENCE_ENV, 0, SAVE_PATIENCE_S_MAX, SAVE_PATIENCE_S,
                                   &seconds, err);

    if (rc == 0)
        trainer->save.patience_ms = seconds * 1e3;
    return rc;
}

/* The job does not succeed without its last checkpoint. */
int save_last(struct trainer *trainer, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf newest = {0};
    bool is_saved;

    if (!save_is_divided(trainer) || trainer->generation.world == 1)
        is_saved = insist(trainer, trainer->save.patience_ms, false);
    else if (insist_together(trainer, trainer->save.patience_ms, &is_saved, err) < 0)
        return err->code;
    if (is_saved)
        return 0;
    if (atomic_load(control_stop(trainer->control)))
        return fleet_error(err, -ECANCELED, "the generation is over");
    if (control_leaving(trainer->control))
        return fleet_error(err, -EINTR, "asked to leave");
    save_describe_newest(trainer, &newest);
    return fleet_error(err, -ENOTRECOVERABLE,
                       "the last checkpoint, of step %" PRId64
                       ", could not be written to %s and is lost (tried for %.0f s): %s; %s",
                       trainer_steps(trainer, trainer->progress.committed),
                       trainer->job.config.checkpoint.path, trainer->save.patience_ms / 1e3,
                       trainer->save.error, newest.text);
}

void save_before_leaving(struct trainer *trainer)
{
    if (!has_weights(trainer) && trainer->generation.rank == 0)
        trainer_warn(trainer,
                     "local SGD: the checkpoint of step %" PRId64
                     " holds the parameters of one worker, which had no time to average them; what "
                     "the others have done since step %" PRId64 " is not in it",
                     trainer_steps(trainer, trainer->progress.committed),
                     trainer_steps(trainer, trainer->progress.ledger->averaging.last));
    save_alone(trainer);
    (void)insist(trainer, LEAVE_PATIENCE_MS, true);
}
