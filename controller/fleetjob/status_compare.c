/* SPDX-License-Identifier: Apache-2.0 */
#include "controller/fleetjob/status_compare.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/api/wellknown.h"
#include "libfleet/base/assert.h"

/* Says how far the first pods have come. */
static bool is_about_start(const struct fleetjob_condition *c)
{
    return strcmp(c->type, WELLKNOWN_CONDITION_SCHEDULED) == 0 ||
           (strcmp(c->type, WELLKNOWN_CONDITION_RUNNING) == 0 && strcmp(c->status, "False") == 0);
}

/* `status` without what changes with each starting pod: counts, and messages with counts. It is
 * borrowed, except for the list of conditions, which the caller frees. */
static struct fleetjob_status without_counts(const struct fleetjob_status *status,
                                             bool without_start)
{
    struct fleetjob_status copy = *status;

    copy.has_workers = false;
    copy.servers.ready = 0;
    copy.reason = NULL;
    copy.conditions.items = calloc(copy.conditions.count + 1, sizeof(*copy.conditions.items));
    fleet_assert(copy.conditions.items);
    copy.conditions.count = 0;
    for (size_t i = 0; i < status->conditions.count; i++) {
        struct fleetjob_condition condition = status->conditions.items[i];
        condition.message = NULL;
        if (!without_start || !is_about_start(&condition))
            copy.conditions.items[copy.conditions.count++] = condition;
    }
    return copy;
}

static bool are_equal_but_counts(const struct fleetjob_status *a, const struct fleetjob_status *b,
                                 bool without_start)
{
    struct fleetjob_status x = without_counts(a, without_start);
    struct fleetjob_status y = without_counts(b, without_start);
    bool is_equal = fleetjob_status_equal(&x, &y);

    free(x.conditions.items);
    free(y.conditions.items);
    return is_equal;
}

/* The pass has no event and no action that requires the status to be written first. */
static bool only_looks(const struct actions *out)
{
    return out->event_count == 0 && out->create_count == 0 && out->server_create_count == 0 &&
           out->delete_count == 0 && !out->delete_job;
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
