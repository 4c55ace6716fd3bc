/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/given_tuples.h"

#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/limits.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/training/training.h"

static bool read_tuple(const cJSON *json, const char *path, struct operator_splits *out,
                       struct fleet_errors *errors)
{
    const cJSON *item;

    if (!cJSON_IsArray(json) || cJSON_GetArraySize(json) > PROGRAM_DIMS_MAX) {
        fleet_errors_add(errors, path,
                         "must be a list of at most %d numbers, one for each dimension",
                         PROGRAM_DIMS_MAX);
        return false;
    }
    out->dims = 0;
    cJSON_ArrayForEach(item, json)
    {
        int64_t *split = &out->split[out->dims];

        if (fleet_json_item_int(item, split) < 0 || *split < 1 || *split > FLEET_WORLD_MAX) {
            FLEET_AUTO_STRBUF struct fleet_strbuf number = {0};

            fleet_strbuf_appendf(&number, "%s[%d]", path, out->dims);
            fleet_errors_add(errors, number.text, "must be an integer from 1 to %d",
                             FLEET_WORLD_MAX);
            return false;
        }
        out->dims++;
    }
    return true;
}

static bool read_tuples(const cJSON *json, const char *path, struct operator_splits *out, int max,
                        int *out_count, struct fleet_errors *errors)
{
    const cJSON *item;

    *out_count = 0;
    if (!json)
        return true;
    if (!cJSON_IsArray(json) || cJSON_GetArraySize(json) > max) {
        fleet_errors_add(errors, path, "must be a list of at most %d tuples", max);
        return false;
    }
    cJSON_ArrayForEach(item, json)
    {
        FLEET_AUTO_STRBUF struct fleet_strbuf place = {0};

        fleet_strbuf_appendf(&place, "%s[%d]", path, *out_count);
        if (!read_tuple(item, place.text, &out[*out_count], errors))
            return false;
        ++*out_count;
    }
    return true;
}

bool given_tuples_read(const struct training_operator *given, const char *path,
                       struct given_tuples *out, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf in = {0}, of_output = {0};

    fleet_strbuf_appendf(&in, "%s.in", path);
    fleet_strbuf_appendf(&of_output, "%s.out", path);
    if (!read_tuples(given->in, in.text, out->inputs, OP_INPUTS_MAX, &out->input_count, errors) ||
        !read_tuples(given->out, of_output.text, out->outputs, OP_OUTPUTS_MAX, &out->output_count,
                     errors))
        return false;
    if (out->input_count == 0 && out->output_count == 0)
        fleet_errors_add(errors, path, "has no strategy: give in, out or both");
    return out->input_count > 0 || out->output_count > 0;
}

cJSON *given_tuples_make(const struct operator_axes *axes, const struct operator_strategy *strategy)
{
    cJSON *list = fleet_json_new_list();

    for (int i = 0; i < axes->input_count && axes->inputs[i].var != PROGRAM_NONE; i++) {
        cJSON *tuple = fleet_json_new_list();
        struct operator_splits splits;

        operator_strategy_splits(strategy, &axes->inputs[i], &splits);
        for (int d = 0; d < splits.dims; d++)
            fleet_json_add(tuple, fleet_json_new_number((double)splits.split[d]));
        fleet_json_add(list, tuple);
    }
    return list;
}
