/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/inference/inference_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/base/memory.h"

#define NAMES_TEXT_MAX ((size_t)INFERENCE_NAMES_MAX * 8 * PROGRAM_NAME_MAX)

void inference_names_add(struct inference_names *names, bool is_feed, const char *name)
{
    int *count = is_feed ? &names->feed_count : &names->fetch_count;
    char **list = is_feed ? names->feeds : names->fetches;

    fleet_assert(*count < INFERENCE_NAMES_MAX);
    list[(*count)++] = fleet_dup_text(name);
}

void inference_names_release(struct inference_names *names)
{
    for (int i = 0; i < names->feed_count; i++)
        free(names->feeds[i]);
    for (int i = 0; i < names->fetch_count; i++)
        free(names->fetches[i]);
    *names = (struct inference_names){0};
}

char *inference_names_print(const struct inference_names *names, bool is_feed)
{
    FLEET_AUTO_JSON cJSON *list = fleet_json_new_list();
    int count = is_feed ? names->feed_count : names->fetch_count;

    for (int i = 0; i < count; i++)
        fleet_json_add_string(list, is_feed ? names->feeds[i] : names->fetches[i]);
    return fleet_json_print(list);
}

int inference_names_parse(const char *text, bool is_feed, struct inference_names *names,
                          struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *list = NULL;
    const cJSON *item;
    int rc = fleet_json_parse(text, strlen(text), NAMES_TEXT_MAX, &list, err);

    if (rc < 0)
        return rc;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) > INFERENCE_NAMES_MAX)
        return fleet_error(err, -EINVAL, "needed: a list of at most %d names", INFERENCE_NAMES_MAX);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsString(item))
            return fleet_error(err, -EINVAL, "a name is not a text");
        inference_names_add(names, is_feed, item->valuestring);
    }
    return 0;
}

void inference_sha256_begin(struct fleet_sha256 *sha, const char *program, const char *feeds,
                            const char *fetches)
{
    const char *const texts[] = {program, feeds, fetches};

    for (int i = 0; i < 3; i++) /* with the NUL, so that the texts cannot flow into each other */
        fleet_sha256_update(sha, texts[i], strlen(texts[i]) + 1);
}
