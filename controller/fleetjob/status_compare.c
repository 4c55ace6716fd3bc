/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/status_compare.h"

#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"

/* Fields that change with each starting pod: counts, and messages with counts. */
static void remove_counts(cJSON *status)
{
    cJSON *condition;

    cJSON_DeleteItemFromObjectCaseSensitive(status, "workers");
    cJSON_DeleteItemFromObjectCaseSensitive(status, "reason");
    cJSON_ArrayForEach(condition, cJSON_GetObjectItemCaseSensitive(status, "conditions"))
        cJSON_DeleteItemFromObjectCaseSensitive(condition, "message");
}

static bool are_equal_but_counts(const struct fleetjob_status *a, const struct fleetjob_status *b)
{
    FLEET_AUTO_JSON cJSON *x = fleetjob_status_encode(a), *y = fleetjob_status_encode(b);

    remove_counts(x);
    remove_counts(y);
    return fleet_json_equal(x, y);
}

/* The pass has no event and no action that requires the status to be written first. */
static bool only_looks(const struct actions *out)
{
    return out->event_count == 0 && out->create_count == 0 && out->delete_count == 0 &&
           !out->delete_job;
}

/* Compare without progress and counts, because they change all the time and are written at
 * intervals. */
void status_compare(struct pass *pass)
{
    struct fleetjob_status before = *pass->before, after = *pass->status; /* borrowed */
    bool is_equal = fleetjob_status_equal(&before, &after), is_changed;
    bool has_begun = before.has_progress != after.has_progress;

    before.has_progress = after.has_progress = false;
    is_changed = has_begun || !fleetjob_status_equal(&before, &after);
    pass->out->is_counts_changed = is_changed && !has_begun && before.has_workers &&
                                   only_looks(pass->out) && are_equal_but_counts(&before, &after);
    pass->out->is_status_changed = is_changed && !pass->out->is_counts_changed;
    pass->out->is_progress_changed = !is_changed && !is_equal;
}
