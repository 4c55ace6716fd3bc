/* SPDX-License-Identifier: Apache-2.0 */

/*
 * runPolicy.suspend: the members are ordered to leave (they save a checkpoint if the job has
 * checkpoints), and the pods are deleted. After a resume, activeDeadlineSeconds counts from zero.
 * A job whose strategy changes (observe_divisions.h) is suspended until all workers have stopped.
 */
#include "controller/fleetjob/policy.h"
#include "controller/fleetjob/status.h"
#include "controller/fleetjob/status_restarts.h"
#include "libfleet/api/wellknown.h"

/* Its condition while workers leave, and behind the last of them. */
static void state(struct pass *pass, bool is_done)
{
    const char *redivides = pass->in->redivides;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    const char *reason = !is_done    ? WELLKNOWN_REASON_SUSPENDING
                         : redivides ? WELLKNOWN_REASON_STRATEGY_CHANGES
                                     : WELLKNOWN_REASON_SUSPENDED;

    fleet_strbuf_appendf(&text, "%s: %s", redivides ? redivides : "runPolicy.suspend is set",
                         is_done ? "all workers are stopped" : "the workers save and leave");
    if (is_done) {
        (void)status_clear(pass, WELLKNOWN_CONDITION_RUNNING, reason, text.text);
        (void)status_clear(pass, WELLKNOWN_CONDITION_RESTARTING, reason, text.text);
        (void)status_clear(pass, WELLKNOWN_CONDITION_STALLED, reason, text.text);
        (void)status_clear(pass, WELLKNOWN_CONDITION_BLOCKED, reason, text.text);
    }
    if (status_set(pass, WELLKNOWN_CONDITION_SUSPENDED, is_done, reason, text.text) && is_done)
        pass_event(pass, false, WELLKNOWN_EVENT_SUSPENDED, "All workers are stopped%s%s",
                   redivides ? ": " : "", redivides ? redivides : "");
}

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
    state(pass, pass->living == 0 && !servers_are_living(pass));
    return true;
}
