/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/status_compare.h"

#include <string.h>

#include "libfleet/api/wellknown.h"
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

/* Conditions that say how far the first pods have come. */
static void remove_start(cJSON *status)
{
    cJSON *conditions = cJSON_GetObjectItemCaseSensitive(status, "conditions"), *next;

    for (cJSON *c = conditions ? conditions->child : NULL; c; c = next) {
        const char *type = "", *is = "";

        next = c->next;
        (void)fleet_json_opt_string(c, "type", &type, NULL);
        (void)fleet_json_opt_string(c, "status", &is, NULL);
        if (strcmp(type, WELLKNOWN_CONDITION_SCHEDULED) == 0 ||
            (strcmp(type, WELLKNOWN_CONDITION_RUNNING) == 0 && strcmp(is, "False") == 0))
            cJSON_Delete(cJSON_DetachItemViaPointer(conditions, c));
    }
}

static bool are_equal_but_counts(const struct fleetjob_status *a, const struct fleetjob_status *b,
                                 bool without_start)
{
    FLEET_AUTO_JSON cJSON *x = fleetjob_status_encode(a), *y = fleetjob_status_encode(b);

    remove_counts(x);
    remove_counts(y);
    if (without_start) {
        remove_start(x);
        remove_start(y);
    }
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
    bool is_equal = fleetjob_status_equal(&before, &after);
    bool has_begun = before.has_progress != after.has_progress;

    before.has_progress = after.has_progress = false;
    if (is_equal)
        pass->out->write = ACTION_WRITE_NOTHING;
    else if (!has_begun && fleetjob_status_equal(&before, &after))
        pass->out->write = ACTION_WRITE_PROGRESS;
    else if (has_begun || !before.has_workers || !only_looks(pass->out))
        pass->out->write = ACTION_WRITE_NOW;
    else if (are_equal_but_counts(&before, &after, false))
        pass->out->write = ACTION_WRITE_COUNTS;
    else
        pass->out->write =
            are_equal_but_counts(&before, &after, true) ? ACTION_WRITE_START : ACTION_WRITE_NOW;
}
