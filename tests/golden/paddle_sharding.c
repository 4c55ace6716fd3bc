/* SPDX-License-Identifier: Apache-2.0 */

/*
 * paddle/pipeline_schedules.json: the order of forwards and backwards of every stage.
 * paddle/sharding_owners.json: the rank that owns each parameter. Both exact.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/partition.h"
#include "libfleet/strategy/pipeline_schedule.h"
#include "tests/golden/readers.h"
#include "tests/golden/runner.h"
#include "tests/support/pipeline_text.h"

#define MOST ((double)100000) /* of stages, micro-batches, ranks */

static int number_of(const cJSON *row, const char *key)
{
    if (!(golden_number(row, key) >= 1 && golden_number(row, key) <= MOST))
        golden_fail("%s is %g", key, golden_number(row, key));
    return golden_int(row, key);
}

/* ---- schedules ------------------------------------------------------------------------------- */

static void check_schedule(void *context)
{
    const cJSON *row = context, *orders;
    const char *name = golden_string(row, "schedule");
    struct pipeline_shape shape = {.stages = number_of(row, "stages"),
                                   .micro_batches = number_of(row, "micro_batches"),
                                   .chunks = number_of(row, "chunks"),
                                   .all_forward = strcmp(name, "F-then-B") == 0};

    if (cJSON_GetObjectItemCaseSensitive(row, "error"))
        golden_skip("Paddle has no order for this shape");
    if (!shape.all_forward && strcmp(name, "1F1B") != 0 && strcmp(name, "interleaved") != 0)
        golden_skip("there is no schedule %s", name);
    orders = golden_array(row, "order_by_stage");
    golden_check(cJSON_GetArraySize(orders) == shape.stages);
    for (int stage = 0; stage < shape.stages; stage++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf ours = {0};
        const cJSON *recorded = cJSON_GetArrayItem(orders, stage);

        golden_check(cJSON_IsString(recorded));
        pipeline_text_append(&shape, stage, &ours);
        if (strcmp(ours.text, recorded->valuestring) != 0)
            golden_fail("stage %d: ours %s, recorded %s", stage, ours.text, recorded->valuestring);
    }
}

void golden_paddle_pipeline(const struct golden_file *file)
{
    cJSON *root = golden_json(file->path), *row;

    cJSON_ArrayForEach(row, golden_array(root, "schedules"))
        golden_case(check_schedule, row, "%s, %d stages, %d micro-batches, %d chunks",
                    golden_string(row, "schedule"), golden_int(row, "stages"),
                    golden_int(row, "micro_batches"), golden_int(row, "chunks"));
    cJSON_Delete(root);
}

/* ---- owners ---------------------------------------------------------------------------------- */

static void check_owners(void *context)
{
    const cJSON *row = context, *sizes = golden_array(row, "sizes");
    const cJSON *recorded = golden_array(row, "owner");
    int count = cJSON_GetArraySize(sizes);
    FLEET_AUTO_FREE int64_t *elements = calloc((size_t)count + 1, sizeof(*elements));
    FLEET_AUTO_FREE int *owners = calloc((size_t)count + 1, sizeof(*owners));

    golden_check(elements && owners && cJSON_GetArraySize(recorded) == count);
    for (int i = 0; i < count; i++)
        elements[i] = (int64_t)golden_item(sizes, i);
    partition_ordered(elements, (size_t)count, number_of(row, "ranks"), owners);
    for (int i = 0; i < count; i++)
        if (owners[i] != (int)golden_item(recorded, i))
            golden_fail("parameter %d belongs to rank %d, recorded %g", i, owners[i],
                        golden_item(recorded, i));
}

void golden_paddle_owners(const struct golden_file *file)
{
    cJSON *root = golden_json(file->path), *row;
    int number = 0;

    cJSON_ArrayForEach(row, golden_array(root, "rows"))
        golden_case(check_owners, row, "row %d", number++);
    cJSON_Delete(root);
}
