/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/observe_divisions.h"

#include <string.h>

#include "controller/fleetjob/status.h"
#include "libfleet/api/divisions.h"
#include "libfleet/api/wellknown.h"
#include "libfleet/autoparallel/context.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/strbuf.h"

/* No pod runs the recorded division, and none will: the status was written since. */
static bool is_stopped(const struct observation *o)
{
    const struct fleetjob_status *status = &o->job.status;

    return o->living_count == 0 && status->started_wall_ms == 0 && status->workers.active == 0;
}

void observe_divisions_change(struct observation *out)
{
    const cJSON *search = fleet_json_at(out->job.status.plan, "search");
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct full_choice now;
    struct division running;
    const char *digest;

    if (out->searches || out->errors.count > 0 || !out->plan->search ||
        !divisions_running(search, &running, &digest) || strcmp(digest, out->plan->division) == 0 ||
        is_stopped(out))
        return;
    now = divisions_of(&out->job);
    fleet_strbuf_append(&text, "the strategy changes from ");
    full_describe(&running.choice, &text);
    fleet_strbuf_append(&text, " to ");
    full_describe(&now, &text);
    if (!divisions_may_change(&out->job)) {
        fleet_errors_add(&out->errors, "spec.worker.replicas",
                         "%s, and the steps up to now would be lost: that needs "
                         "spec.training.checkpoint, which is resumed from",
                         text.text);
        return;
    }
    out->redivides = fleet_strbuf_take(&text);
    out->observed.redivides = out->redivides;
    out->job.spec.run_policy.suspend = true;
}

static void report(const struct observation *o, const struct division *division,
                   struct actions *actions)
{
    const struct fleetjob_spec *spec = &o->job.spec;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    int64_t ranks = fleetjob_world_size(&o->job, spec->worker.replicas);

    full_describe(&division->choice, &text);
    fleet_strbuf_append(&text, "; predicted: ");
    fleet_strbuf_appendf(&text, "%.3g ms an update, ", division->seconds * 1e3);
    fleet_strbuf_append_size(&text, division->bytes);
    actions_event(actions, false, WELLKNOWN_EVENT_STRATEGY_CHOSEN, "%s for %lld rank%s: %s a rank",
                  context_search(spec->auto_parallel), (long long)ranks, ranks == 1 ? "" : "s",
                  text.text);
}

cJSON *observe_divisions_plan(const struct observation *o, struct actions *actions)
{
    const cJSON *before = fleet_json_at(o->job.status.plan, "search");
    cJSON *json, *search;
    struct division running, division;
    const char *old = NULL, *digest = NULL;
    bool had = divisions_running(before, &running, &old);

    if (!o->plan->search || !divisions_running(o->plan->search, &division, &digest))
        return NULL;
    json = fleet_json_copy(o->plan->json);
    search = fleet_json_copy(o->plan->search);
    if (o->redivides) /* until they have stopped */
        fleet_json_set(search, "running", fleet_json_copy(fleet_json_at(before, "running")));
    else if (!had || strcmp(old, digest) != 0)
        report(o, &division, actions);
    fleet_json_set(json, "search", search);
    return json;
}
