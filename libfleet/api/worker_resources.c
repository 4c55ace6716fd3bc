/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/api/worker_resources.h"

#include <stdlib.h>
#include <string.h>

#include "libfleet/api/fleetjob.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/kube/meta.h"

#define SCALE 1000 /* in thousandths, so that CPUs can be compared */

/* Read a quantity, a number or a text, in thousandths. */
static int parse(const cJSON *item, int64_t *out, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (cJSON_IsNumber(item))
        fleet_json_append_number(&text, item->valuedouble);
    else if (cJSON_IsString(item))
        fleet_strbuf_append(&text, item->valuestring);
    return kube_quantity_parse(fleet_strbuf_text(&text), SCALE, out, err);
}

/* Check each value below `path` ("….limits"); none may exceed its value in `most`, which may be
 * NULL. */
static void check_amounts(const cJSON *amounts, const cJSON *most, const char *path,
                          struct fleet_errors *errors)
{
    const cJSON *item;

    if (amounts && !cJSON_IsNull(amounts) && !cJSON_IsObject(amounts))
        fleet_errors_add(errors, path, "must be an object, as {cpu: 2, memory: 4Gi}");
    for (item = cJSON_IsObject(amounts) ? amounts->child : NULL; item; item = item->next) {
        const cJSON *limit = cJSON_GetObjectItemCaseSensitive(most, item->string);
        FLEET_AUTO_STRBUF struct fleet_strbuf where = {0};
        struct fleet_error err;
        int64_t amount, bound;

        if (cJSON_IsNull(item))
            continue;
        fleet_strbuf_appendf(&where, "%s.%s", path, item->string);
        if (parse(item, &amount, &err) < 0)
            fleet_errors_add(errors, where.text, "%s", err.text);
        else if (limit && parse(limit, &bound, NULL) == 0 && amount > bound) {
            FLEET_AUTO_FREE char *asked = fleet_json_print(item),
                                 *limited = fleet_json_print(limit);
            fleet_errors_add(errors, where.text, "%s is more than the limit, %s", asked, limited);
        }
    }
}

/* "cpu: 2" without "limits:" in front of it. */
static void refuse_unknown(const cJSON *resources, const char *path, struct fleet_errors *errors)
{
    static const char *const known[] = {"limits", "requests", "claims"};

    for (const cJSON *item = resources->child; item; item = item->next) {
        FLEET_AUTO_STRBUF struct fleet_strbuf where = {0};
        bool is_known = false;

        for (size_t i = 0; i < FLEET_COUNT(known); i++)
            is_known = is_known || strcmp(item->string, known[i]) == 0;
        fleet_strbuf_appendf(&where, "%s.%s", path, item->string);
        if (!is_known)
            fleet_errors_add_unknown(errors, where.text,
                                     "unknown field of resources, which has limits, requests, "
                                     "claims: write limits: {%s: …}",
                                     item->string);
    }
}

/* Those of the template's first container, if there is a template. */
static const cJSON *resources_of(const struct fleetjob_worker *worker)
{
    return worker->template_ ? fleet_json_at(worker->template_, "spec.containers[0].resources")
                             : worker->resources;
}

void worker_resources_check(const struct fleetjob *job, struct fleet_errors *errors)
{
    const struct fleetjob_worker *worker = &job->spec.worker;
    const char *path = worker->template_ ? "spec.worker.template.spec.containers[0].resources"
                                         : "spec.worker.resources";
    const cJSON *resources = resources_of(worker);
    const cJSON *limits = cJSON_GetObjectItemCaseSensitive(resources, "limits");
    FLEET_AUTO_STRBUF struct fleet_strbuf where = {0}, other = {0};

    if (!cJSON_IsObject(resources))
        return;
    if (!worker->template_)
        refuse_unknown(resources, path, errors);
    fleet_strbuf_appendf(&where, "%s.limits", path);
    check_amounts(limits, NULL, where.text, errors);
    fleet_strbuf_appendf(&other, "%s.requests", path);
    check_amounts(cJSON_GetObjectItemCaseSensitive(resources, "requests"), limits, other.text,
                  errors);
}

bool worker_resources_is_gpu(const char *resource)
{
    static const char end[] = "/gpu";
    size_t length = strlen(resource);

    return length >= sizeof(end) && strcmp(resource + length - (sizeof(end) - 1), end) == 0;
}

/* A quantity of devices is a whole number, as text or as a number. */
static int64_t whole_number(const cJSON *quantity)
{
    int64_t value = 0;
    char *end;

    if (cJSON_IsNumber(quantity))
        return fleet_json_item_int(quantity, &value) < 0 ? 0 : value;
    if (!cJSON_IsString(quantity))
        return 0;
    value = strtol(quantity->valuestring, &end, 10);
    return *end ? 0 : value;
}

int64_t worker_resources_gpus(const struct fleetjob_worker *worker, const char *resource)
{
    static const char *const lists[] = {"limits", "requests"};
    const cJSON *resources = resources_of(worker);
    int64_t count = 0;

    for (size_t i = 0; i < FLEET_COUNT(lists) && count == 0; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(resources, lists[i]);

        for (item = item ? item->child : NULL; item; item = item->next)
            if (item->string && (resource ? strcmp(item->string, resource) == 0
                                          : worker_resources_is_gpu(item->string)))
                count += whole_number(item);
    }
    return count;
}
