/* SPDX-License-Identifier: Apache-2.0 */

/*
 * runPolicy.restart. Restarts of the training are counted by the hub, which knows what caused each
 * generation; here are the pods that end before there is any training to restart, and how long to
 * wait before a pod that keeps ending is made again.
 */
#include "controller/fleetjob/pass.h"
#include "libfleet/api/wellknown.h"

#define SHORT_LIFE_MS    5000 /* a pod that lived longer has started properly */
#define BACKOFF_FIRST_MS 250  /* before the third pod of an index; the second is made at once */
#define BACKOFF_MAX_MS   30000

static const struct observed_pod *newest_failed(const struct pass *pass)
{
    const struct observed_pod *newest = NULL;

    for (size_t i = 0; i < pass->in->pod_count; i++) {
        const struct observed_pod *pod = &pass->in->pods[i];
        if (pod->phase == OBSERVED_FAILED &&
            (!newest || pod->finished_wall_ms > newest->finished_wall_ms))
            newest = pod;
    }
    return newest;
}

void restart_policy_apply(struct pass *pass)
{
    const struct observed_pod *last = newest_failed(pass);
    int64_t max = pass->spec->run_policy.restart.max_restarts, remade = 0;

    if (!last || pass->status->has_progress || pass->in->hub.generation.counter > 0 ||
        pass->status->rendezvous.generation > 0)
        return;
    for (size_t i = 0; i < pass->status->attempts.count; i++)
        remade += pass->status->attempts.items[i].value;
    if (remade >= max)
        status_fail(pass, WELLKNOWN_REASON_RESTARTS_EXCEEDED,
                    "%lld pods were remade before training began; the last one, worker %d, ended "
                    "with exit code %d%s%s",
                    (long long)remade, last->index, last->exit_code, last->message[0] ? ": " : "",
                    last->message);
}

int64_t restart_policy_next_start(const struct pass *pass, const struct observed_pod *last)
{
    int64_t delay = BACKOFF_FIRST_MS;

    if (last->phase != OBSERVED_FAILED || last->attempt == 0 ||
        last->finished_wall_ms - last->started_wall_ms > SHORT_LIFE_MS)
        return pass->now;
    for (int i = 1; i < last->attempt && delay < BACKOFF_MAX_MS; i++)
        delay *= 2;
    return last->finished_wall_ms + (delay < BACKOFF_MAX_MS ? delay : BACKOFF_MAX_MS);
}
