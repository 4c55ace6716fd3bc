/* SPDX-License-Identifier: Apache-2.0 */

/* The checkpoints of a job: trainers write them, and begin with the newest that counts. */
#include <stdio.h>

#include "tests/fake/cluster/rules.h"

/* What it holds goes to disk, as in a trainer with the order to leave. */
void cluster_trainer_save(struct cluster *c, struct cluster_agent *a, int process)
{
    struct cluster_job *job = &c->jobs[a->job];
    struct cluster_trainer *t = &a->trainers[process];
    struct link_message m = {.kind = LINK_CHECKPOINT_DONE, .generation = t->held_in};

    if (t->step <= 0 || job->checkpoint_count == CLUSTER_CHECKPOINTS)
        return;
    job->checkpoints[job->checkpoint_count++] =
        (struct cluster_checkpoint){.step = t->step, .generation = t->held_in};
    cluster_trace(c, "agent %s.%d saves step %lld of %lld.%lld", a->pod, process,
                  (long long)t->step, (long long)t->held_in.epoch, (long long)t->held_in.counter);
    m.checkpoint_done.step = t->step;
    (void)snprintf(m.checkpoint_done.path, sizeof(m.checkpoint_done.path), "step-%lld",
                   (long long)t->step);
    cluster_agent_say(a, process, &m);
}

/* The newest checkpoint on the lineage that the members know. */
int64_t cluster_checkpoint_newest(const struct cluster *c, const struct cluster_run *r,
                                  const struct message_assign *assign)
{
    const struct cluster_job *job = &c->jobs[r->job];
    struct fleet_lineage lineage = {.count = assign->lineage_count};
    struct fleet_generation newest = {0};
    int64_t step = 0;

    for (size_t i = 0; i < assign->lineage_count; i++)
        lineage.entries[i] = assign->lineage[i];
    for (int i = 0; i < job->checkpoint_count; i++) {
        const struct cluster_checkpoint *k = &job->checkpoints[i];
        int order = fleet_generation_compare(k->generation, newest);
        if (!fleet_lineage_has(&lineage, k->generation, k->step) || order < 0 ||
            (order == 0 && k->step < step))
            continue;
        newest = k->generation;
        step = k->step;
    }
    return step;
}
