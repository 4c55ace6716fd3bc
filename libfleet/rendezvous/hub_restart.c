/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What follows from a failure: a rule ends the job, a restart counts, or a restart does not count;
 * and, for own trainers, when the next generation may begin.
 *
 * The agent of a built-in trainer starts it again with a back-off of its own, and survivors keep
 * their state. Each generation starts own trainers: without a back-off, one that fails at once
 * would restart some twenty times a second. So the first restart comes at once, the next after 1 s,
 * 2 s, 4 s … at most 5 minutes. It begins again when the job has made progress (a step beyond the
 * highest that was reported before) or when the generation has run for ten minutes.
 */
#include <math.h>
#include <stdio.h>

#include "libfleet/base/cause.h"
#include "libfleet/base/random.h"
#include "libfleet/rendezvous/hub_internal.h"

#define BACKOFF_FIRST_MS 1000.0
#define BACKOFF_MAX_MS   300000.0
#define BACKOFF_RUN_MS   600000.0 /* a generation that ran so long was healthy */
#define BACKOFF_JITTER \
    0.1 /* at most this much less, so that jobs that fail together do not restart together */
#define BACKOFF_DOUBLINGS 16

bool hub_restart_counts(const struct hub *hub, const struct hub_incident *incident)
{
    return incident->is_failure && failure_rules_action(&hub->policy.rules, incident->exit_code,
                                                        incident->cause) != FAILURE_IGNORE;
}

bool hub_restart_is_ignored(const struct hub *hub, const struct hub_incident *incident)
{
    return incident->is_failure && !hub_restart_counts(hub, incident);
}

static double backoff_ms(struct hub *hub, int failures)
{
    struct fleet_random_key key;
    double delay_ms;

    if (failures < 2)
        return 0;
    key = fleet_random_key((uint64_t)hub->counter, hub->job_uid, 0);
    delay_ms = BACKOFF_FIRST_MS * exp2(fmin(failures - 2, BACKOFF_DOUBLINGS));
    return fmin(delay_ms, BACKOFF_MAX_MS) *
           (1 - BACKOFF_JITTER * fleet_random_uniform(key, (uint64_t)failures));
}

static void back_off(struct hub *hub)
{
    if (!hub->policy.own_trainer)
        return;
    if (hub->progress_step > hub->failed_step || hub->now_ms - hub->begun_ms >= BACKOFF_RUN_MS)
        hub->failures = 0;
    hub->failed_step = hub->progress_step;
    hub->failed_ms = hub->now_ms;
    hub->restart_ms = hub->now_ms + backoff_ms(hub, ++hub->failures);
}

bool hub_restart_ends_by_rule(struct hub *hub, const struct hub_cause *cause,
                              struct hub_output *out)
{
    const struct failure_rule *rule =
        failure_rules_find(&hub->policy.rules, cause->exit_code, cause->cause);
    struct hub_cause end = *cause;
    char message[MESSAGE_REASON_MAX + 1];

    if (!cause->is_failure || !rule || rule->action != FAILURE_FAIL || hub_finish_is_over(hub))
        return false;
    hub_output_text(message, "worker %d ended with exit code %d (%s), which rule %s calls final",
                    cause->peer ? cause->peer->index : -1, cause->exit_code, cause->cause,
                    rule->name ? rule->name : "without a name");
    end.cause = fleet_cause_word(FLEET_CAUSE_FAILURE_POLICY);
    end.message = message;
    hub_finish_fail(hub, &end, out);
    return true;
}

/*
 * A shell, and our agent, exit with 127 or 126 if a command does not exist or may not be executed.
 * A restart does not help, unless a rule says so.
 */
bool hub_restart_is_hopeless(const struct hub *hub, const struct hub_cause *cause)
{
    return hub->policy.own_trainer && (cause->exit_code == 126 || cause->exit_code == 127) &&
           !failure_rules_find(&hub->policy.rules, cause->exit_code, cause->cause);
}

static bool is_used_up(const struct hub *hub)
{
    return hub_restart_counts(hub, &hub->incident) && hub->restarts >= hub->policy.restarts_max;
}

/* A survivor comes to a new hub and has only lost a peer. That peer may still say that it left, so
 * the job does not end before the next generation could be made. */
bool hub_restart_judge(struct hub *hub, struct hub_output *out)
{
    struct hub_cause end = {.cause = hub->incident.cause,
                            .exit_code = hub->incident.exit_code,
                            .signal = hub->incident.signal};
    bool must_end = hub->must_judge && hub->incident.is_open && is_used_up(hub);

    hub->must_judge = false;
    if (must_end)
        hub_finish_fail(hub, &end, out);
    return !must_end;
}

bool hub_restart_is_allowed(struct hub *hub, const struct hub_cause *cause, bool is_first,
                            struct hub_output *out)
{
    struct hub_cause end = *cause;

    if (is_used_up(hub) && !cause->is_explained && !hub->newest_text) {
        hub->must_judge = true;
    } else if (is_used_up(hub)) {
        end.lines = end.lines ? end.lines : end.message; /* of the last failure that was seen */
        end.message = NULL;
        hub_finish_fail(hub, &end, out);
        return false;
    }
    if (is_first) {
        hub->steps_since_restart = 0;
        back_off(hub);
    }
    return true;
}
