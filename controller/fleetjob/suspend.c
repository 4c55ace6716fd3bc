/* SPDX-License-Identifier: Apache-2.0 */

/*
 * runPolicy.suspend: the members are ordered to leave (they save a checkpoint if the job has
 * checkpoints), and the pods are deleted. After a resume, activeDeadlineSeconds counts from zero.
 */
#include "controller/fleetjob/policy.h"
#include "controller/fleetjob/status.h"
#include "controller/fleetjob/status_restarts.h"
#include "libfleet/api/wellknown.h"

#define WORDS "runPolicy.suspend is set: all workers are stopped"

bool suspend_apply(struct pass *pass)
{
    if (!pass->spec->run_policy.suspend) {
        if (status_clear(pass, WELLKNOWN_CONDITION_SUSPENDED, WELLKNOWN_REASON_RESUMED,
                         "the job goes on"))
            pass_event(pass, false, WELLKNOWN_EVENT_RESUMED, "The job goes on");
        return false;
    }
    for (size_t i = 0; i < pass->in->pod_count; i++)
        if (pass_is_living(&pass->in->pods[i]))
            pass_delete(pass, &pass->in->pods[i], "Suspended");
    servers_delete(pass, "Suspended", true);
    pass->out->hub =
        (struct action_hub){.is_wanted = pass->living > 0, .is_over = true, .reason = "Suspended"};
    pass->status->started_wall_ms = 0;
    status_close_restart(pass);
    pass->status->rendezvous.trained = 0; /* members that leave are not a failure */
    if (pass->living > 0 || servers_are_living(pass)) {
        (void)status_set(pass, WELLKNOWN_CONDITION_SUSPENDED, false, WELLKNOWN_REASON_SUSPENDING,
                         "runPolicy.suspend is set: the workers save and leave");
        return true;
    }
    (void)status_clear(pass, WELLKNOWN_CONDITION_RUNNING, WELLKNOWN_REASON_SUSPENDED, WORDS);
    (void)status_clear(pass, WELLKNOWN_CONDITION_RESTARTING, WELLKNOWN_REASON_SUSPENDED, WORDS);
    (void)status_clear(pass, WELLKNOWN_CONDITION_STALLED, WELLKNOWN_REASON_SUSPENDED, WORDS);
    (void)status_clear(pass, WELLKNOWN_CONDITION_BLOCKED, WELLKNOWN_REASON_SUSPENDED, WORDS);
    if (status_set(pass, WELLKNOWN_CONDITION_SUSPENDED, true, WELLKNOWN_REASON_SUSPENDED, WORDS))
        pass_event(pass, false, WELLKNOWN_EVENT_SUSPENDED, "All workers are stopped");
    return true;
}
