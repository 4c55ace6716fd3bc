/* SPDX-License-Identifier: Apache-2.0 */

/* Keys of MindSpore's context whose values are words, as enums. */
#include <string.h>

#include "libfleet/autoparallel/context.h"
#include "libfleet/base/json.h"

const char *const context_mode_words[CONTEXT_MODES + 1] = {
    [CONTEXT_STAND_ALONE] = "stand_alone",
    [CONTEXT_DATA_PARALLEL] = "data_parallel",
    [CONTEXT_HYBRID_PARALLEL] = "hybrid_parallel",
    [CONTEXT_SEMI_AUTO_PARALLEL] = "semi_auto_parallel",
    [CONTEXT_AUTO_PARALLEL] = "auto_parallel",
};
const char *const context_fusion_words[CONTEXT_FUSION_NONE + 1] = {
    [CONTEXT_FUSION_AUTO] = "auto",
    [CONTEXT_FUSION_SIZE] = "size",
    [CONTEXT_FUSION_INDEX] = "index",
};

/* The place of the word at `path` in `words`, else the number of words. `absent`: no value. */
static int word_at(const cJSON *context, const char *path, const char *const *words, int absent)
{
    const char *word = cJSON_GetStringValue(fleet_json_at(context, path));
    int i = 0;

    while (word && words[i] && strcmp(words[i], word) != 0)
        i++;
    return word ? i : absent;
}

enum context_mode context_mode(const cJSON *context)
{
    return (enum context_mode)word_at(context, "parallel_mode", context_mode_words,
                                      CONTEXT_STAND_ALONE);
}

const char *context_mode_text(enum context_mode mode)
{
    return context_mode_words[mode];
}

bool context_is_full(const cJSON *context)
{
    return context_mode(context) == CONTEXT_AUTO_PARALLEL &&
           cJSON_IsString(fleet_json_at(context, "search"));
}

const char *context_search(const cJSON *context)
{
    const char *word = cJSON_GetStringValue(fleet_json_at(context, "search_mode"));

    if (context_is_full(context))
        return "full";
    if (!word)
        word = cJSON_GetStringValue(fleet_json_at(context, "auto_parallel_search_mode"));
    return word ? word : "recursive_programming";
}

enum context_fusion context_fusion(const cJSON *context)
{
    return (enum context_fusion)word_at(context, "comm_fusion.allreduce.mode", context_fusion_words,
                                        CONTEXT_FUSION_NONE);
}
