/* SPDX-License-Identifier: Apache-2.0 */

/*
 * runPolicy.failurePolicy: the only place that maps exit codes and reasons to actions. A failure is
 * a failed pod, or a failed trainer inside a living pod (the hub reports it). The first matching
 * rule decides. Fail ends the job. Ignore restarts without counting. Restart, or no matching rule,
 * restarts and counts.
 *
 * The hub applies the same rules before it counts a restart. This file applies them to pods that
 * end before they are members.
 */
#include <stdlib.h>
#include <string.h>

#include "controller/fleetjob/oom.h"
#include "controller/fleetjob/policy.h"
#include "controller/fleetjob/status.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cause.h"
#include "libfleet/base/cleanup.h"

struct failure_rules failure_policy_rules(const struct fleetjob_spec *spec)
{
    static const enum failure_action actions[] = {[FLEETJOB_ACTION_RESTART] = FAILURE_RESTART,
                                                  [FLEETJOB_ACTION_IGNORE] = FAILURE_IGNORE,
                                                  [FLEETJOB_ACTION_FAIL] = FAILURE_FAIL};
    const struct fleetjob_failure_policy *policy = &spec->run_policy.failure_policy;
    struct failure_rules rules = {
        .items = calloc(policy->rules.count + 1, sizeof(*rules.items)),
        .count = policy->rules.count,
    };

    fleet_assert(rules.items);
    for (size_t i = 0; i < policy->rules.count; i++) {
        const struct fleetjob_failure_rule *rule = &policy->rules.items[i];
        rules.items[i] = (struct failure_rule){.name = rule->name,
                                               .action = actions[rule->action],
                                               .exit_codes = rule->exit_codes.items,
                                               .exit_code_count = rule->exit_codes.count,
                                               .causes = (const char *const *)rule->reasons.items,
                                               .cause_count = rule->reasons.count};
    }
    return rules;
}

enum failure_action failure_policy_action(const struct pass *pass, int exit_code,
                                          const char *reason)
{
    struct failure_rules rules = failure_policy_rules(pass->spec);
    enum failure_action action = failure_rules_action(&rules, exit_code, reason);

    free(rules.items);
    return action;
}

static void fail_by_rule(struct pass *pass, const struct failure_rule *rule, int member,
                         int exit_code, const char *reason)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf memory = {0};

    if (!rule || rule->action != FAILURE_FAIL)
        return;
    if (fleet_cause_find(reason) == FLEET_CAUSE_OOM_KILLED) {
        fleet_strbuf_append(&memory, "; ");
        oom_describe(pass, member, &memory);
    }
    status_fail(pass, WELLKNOWN_REASON_FAILURE_POLICY,
                "worker %d ended with exit code %d (%s), which rule %s calls final%s", member,
                exit_code, reason[0] ? reason : "no reason given",
                rule->name ? rule->name : "without a name", fleet_strbuf_text(&memory));
}

static void apply_rules(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    struct failure_rules rules = failure_policy_rules(pass->spec);

    for (size_t i = 0; i < hub->failure_count; i++) {
        const struct hub_view_failure *failure = &hub->failures[i];
        fail_by_rule(pass, failure_rules_find(&rules, failure->exit_code, failure->cause),
                     failure->member, failure->exit_code, failure->cause);
    }
    for (size_t i = 0; i < pass->in->pod_count; i++) {
        const struct observed_pod *pod = &pass->in->pods[i];
        if (pod->phase == OBSERVED_FAILED)
            fail_by_rule(pass, failure_rules_find(&rules, pod->exit_code, pod->reason), pod->index,
                         pod->exit_code, pod->reason);
    }
    free(rules.items);
}

void failure_policy_apply(struct pass *pass)
{
    const struct hub_view *hub = &pass->in->hub;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    apply_rules(pass);
    if (!hub->end.cause[0])
        return; /* it was ordered to end */
    fleet_strbuf_append(&text, hub->end.message);
    if (oom_is_cause(pass, hub->end.member, hub->end.attempt, hub->end.cause, 0, pass->now)) {
        fleet_strbuf_append(&text, "; OOMKilled: ");
        oom_describe(pass, hub->end.member, &text);
    }
    status_fail(pass, hub->restarts_used_up ? WELLKNOWN_REASON_RESTARTS_EXCEEDED : hub->end.cause,
                "%s", text.text);
}
