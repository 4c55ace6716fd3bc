/* SPDX-License-Identifier: Apache-2.0 */

/*
 * runPolicy.failurePolicy: the only place where exit codes and reasons are mapped to actions.
 *
 * A failure is a pod that ended badly, or a trainer that did inside a living one (told by the hub).
 * Rules are asked in order; the first that matches decides. Fail ends the job with the first failure
 * it matches; Ignore starts again without counting; Restart, and no rule at all, starts again and
 * counts.
 */
#include <string.h>

#include "controller/fleetjob/pass.h"
#include "libfleet/api/wellknown.h"

static bool lists_code(const struct training_int_list *codes, int exit_code)
{
    for (size_t i = 0; i < codes->count; i++)
        if (codes->items[i] == exit_code)
            return true;
    return codes->count == 0;
}

static bool lists_reason(const struct training_string_list *reasons, const char *reason)
{
    for (size_t i = 0; i < reasons->count; i++)
        if (strcmp(reasons->items[i], reason) == 0)
            return true;
    return reasons->count == 0;
}

static const struct fleetjob_failure_rule *rule_for(const struct pass *pass, int exit_code,
                                                    const char *reason)
{
    const struct fleetjob_failure_policy *policy = &pass->spec->run_policy.failure_policy;

    for (size_t i = 0; i < policy->rules.count; i++) {
        const struct fleetjob_failure_rule *rule = &policy->rules.items[i];
        if (lists_code(&rule->exit_codes, exit_code) && lists_reason(&rule->reasons, reason))
            return rule;
    }
    return NULL;
}

static void fail_by_rule(struct pass *pass, const struct fleetjob_failure_rule *rule, int member,
                         int exit_code, const char *reason)
{
    if (rule && rule->action == FLEETJOB_ACTION_FAIL)
        status_fail(pass, WELLKNOWN_REASON_FAILURE_POLICY,
                    "worker %d ended with exit code %d (%s), which rule %s calls final", member,
                    exit_code, reason[0] ? reason : "no reason given",
                    rule->name ? rule->name : "without a name");
}

static void apply_rules(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;

    for (size_t i = 0; i < hub->failure_count; i++) {
        const struct hub_view_failure *failure = &hub->failures[i];
        fail_by_rule(pass, rule_for(pass, failure->exit_code, failure->cause), failure->member,
                     failure->exit_code, failure->cause);
    }
    for (size_t i = 0; i < pass->in->pod_count; i++) {
        const struct observed_pod *pod = &pass->in->pods[i];
        if (pod->phase == OBSERVED_FAILED)
            fail_by_rule(pass, rule_for(pass, pod->exit_code, pod->reason), pod->index,
                         pod->exit_code, pod->reason);
    }
}

int failure_policy_ignored(const struct pass *pass)
{
    const struct fleetjob_restarts *restarts = &pass->status->restarts;
    int ignored = 0;

    for (size_t i = 0; i < restarts->history.count; i++) {
        const struct fleetjob_restart *restart = &restarts->history.items[i];
        const struct fleetjob_failure_rule *rule =
            rule_for(pass, (int)restart->exit_code, restart->cause);
        ignored += rule && rule->action == FLEETJOB_ACTION_IGNORE;
    }
    return ignored;
}

void failure_policy_apply(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    bool used_up = hub->restarts >= pass->spec->run_policy.restart.max_restarts;

    apply_rules(pass);
    if (hub->end.cause[0]) /* not: it was told to end */
        status_fail(pass,
                    used_up && strstr(hub->end.message, "used up")
                        ? WELLKNOWN_REASON_RESTARTS_EXCEEDED
                        : hub->end.cause,
                    "%s", hub->end.message);
}
