/* SPDX-License-Identifier: Apache-2.0 */

/*
 * No key of spec.autoParallel in silence. Each of the 24 keys, and each key below them, with a
 * value other than its default, in each parallel mode, on one worker and two, on every model:
 *
 *   (a) the job runs something else than without the key, or
 *   (b) it is refused, and the error names the key, or
 *   (c) the plan or a warning names it, with a reason.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/autoparallel/context.h"
#include "libfleet/autoparallel/context_strategy.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "tests/support/knob_outcome.h"

#define SWITCH "\"enable_parallel_optimizer\":true"
#define STAGES "\"pipeline_stages\":2"
#define SHARD  "\"parallel_optimizer_config\":"

static const struct row {
    const char *key;    /* that must act, be refused or be named */
    const char *with;   /* members of the context */
    const char *beside; /* members of the context in both jobs: with the key, without it */
} rows[] = {
    {"device_num", "\"device_num\":3", NULL},
    {"global_rank", "\"global_rank\":1", NULL},
    {"gradients_mean", "\"gradients_mean\":false", NULL}, /* its default; the jobs here have true */
    {"gradient_fp32_sync", "\"gradient_fp32_sync\":false", NULL},
    {"loss_repeated_mean", "\"loss_repeated_mean\":false", NULL},
    {"search_mode", "\"search_mode\":\"sharding_propagation\"", NULL},
    {"auto_parallel_search_mode", "\"auto_parallel_search_mode\":\"sharding_propagation\"", NULL},
    {"parameter_broadcast", "\"parameter_broadcast\":true", NULL},
    {"strategy_ckpt_load_file", "\"strategy_ckpt_load_file\":\"/nowhere/in\"", NULL},
    {"strategy_ckpt_save_file", "\"strategy_ckpt_save_file\":\"/nowhere/out\"", NULL},
    {"strategy_ckpt_config", "\"strategy_ckpt_config\":{\"load_file\":\"/nowhere/in\"}", NULL},
    {"strategy_ckpt_config", "\"strategy_ckpt_config\":{\"save_file\":\"/nowhere/out\"}", NULL},
    {"strategy_ckpt_config", "\"strategy_ckpt_config\":{\"only_trainable_params\":false}", NULL},
    {"group_ckpt_save_file", "\"group_ckpt_save_file\":\"/nowhere/out\"", NULL},
    {"full_batch", "\"full_batch\":true", NULL},
    {"dataset_strategy", "\"dataset_strategy\":\"full_batch\"", NULL},
    {"dataset_strategy", "\"dataset_strategy\":[[1,2],[1,2]]", NULL},
    {"enable_parallel_optimizer", SWITCH, NULL},
    {"parallel_optimizer_config", SHARD "{\"optimizer_weight_shard_size\":2}", NULL},
    {"parallel_optimizer_config.optimizer_weight_shard_size",
     SHARD "{\"optimizer_weight_shard_size\":1}", SWITCH},
    {"parallel_optimizer_config.optimizer_weight_shard_size",
     SHARD "{\"optimizer_weight_shard_size\":3}", SWITCH},
    {"parallel_optimizer_config.parallel_optimizer_threshold",
     SHARD "{\"parallel_optimizer_threshold\":1}", SWITCH},
    {"parallel_optimizer_config.gradient_accumulation_shard",
     SHARD "{\"gradient_accumulation_shard\":true}", SWITCH},
    {"parallel_optimizer_config.optimizer_level", SHARD "{\"optimizer_level\":\"level2\"}", SWITCH},
    {"parallel_optimizer_config.optimizer_level", SHARD "{\"optimizer_level\":\"level3\"}", SWITCH},
    {"enable_alltoall", "\"enable_alltoall\":true", NULL},
    {"force_fp32_communication", "\"force_fp32_communication\":true", NULL},
    {"all_reduce_fusion_config", "\"all_reduce_fusion_config\":[1,3]", NULL},
    {"comm_fusion.openstate", "\"comm_fusion\":{\"openstate\":false}", NULL},
    {"comm_fusion.allreduce", "\"comm_fusion\":{\"allreduce\":{\"mode\":\"auto\",\"config\":null}}",
     NULL},
    {"comm_fusion.allreduce", "\"comm_fusion\":{\"allreduce\":{\"mode\":\"size\",\"config\":1}}",
     NULL},
    {"comm_fusion.allreduce", "\"comm_fusion\":{\"allreduce\":{\"mode\":\"index\",\"config\":[0]}}",
     NULL},
    {"comm_fusion.allgather", "\"comm_fusion\":{\"allgather\":{\"mode\":\"size\",\"config\":1}}",
     NULL},
    {"comm_fusion.reducescatter",
     "\"comm_fusion\":{\"reducescatter\":{\"mode\":\"size\",\"config\":1}}", NULL},
    {"pipeline_stages", STAGES, NULL},
    {"pipeline_result_broadcast", "\"pipeline_result_broadcast\":true", NULL},
    {"pipeline_result_broadcast", "\"pipeline_result_broadcast\":true", STAGES},
    {"pipeline_config",
     "\"pipeline_config\":{\"pipeline_interleave\":true,\"pipeline_scheduler\":\"gpipe\"}", NULL},
    {"pipeline_config",
     "\"pipeline_config\":{\"pipeline_interleave\":true,\"pipeline_scheduler\":\"gpipe\"}", STAGES},
    {"pipeline_config.pipeline_interleave",
     "\"pipeline_config\":{\"pipeline_interleave\":true,\"pipeline_scheduler\":\"1f1b\"}", STAGES},
};

static const char *const modes[] = {
    "", "stand_alone", "data_parallel", "hybrid_parallel", "semi_auto_parallel", "auto_parallel"};

struct place {
    int model, workers;
    const char *mode;
};

/* A job with a context of these members; NULL members are left out. */
static void try_job(const struct place *place, const char *beside, const char *with,
                    struct outcome *out)
{
    FLEET_AUTO_JSON cJSON *strategy = cJSON_CreateObject(), *job = NULL;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    cJSON *context;

    if (*place->mode)
        fleet_strbuf_appendf(&text, ",\"parallel_mode\":\"%s\"", place->mode);
    if (!with || !strstr(with, "gradients_mean"))
        fleet_strbuf_append(&text, ",\"gradients_mean\":true");
    if (beside)
        fleet_strbuf_appendf(&text, ",%s", beside);
    if (with)
        fleet_strbuf_appendf(&text, ",%s", with);
    fleet_strbuf_append_char(&text, '}');
    text.text[0] = '{';
    context = cJSON_Parse(text.text);
    fleet_assert(context);
    job = knob_job_make(&(struct knob_job){.model = place->model,
                                           .workers = place->workers,
                                           .optimizer = "adamw",
                                           .strategy = strategy});
    cJSON_AddItemToObject(cJSON_GetObjectItem(job, "spec"), "autoParallel", context);
    outcome_of(job, place->workers, out);
}

/* Is `path` that of the key, of something in it or of a block around it? */
static bool is_about(const char *path, const char *key)
{
    static const char front[] = "spec.autoParallel";
    size_t length, wanted = strlen(key);

    if (strncmp(path, front, strlen(front)) != 0)
        return false;
    path += strlen(front);
    if (!*path)
        return true;
    path++;
    length = strcspn(path, "[");
    return strncmp(path, key, length < wanted ? length : wanted) == 0 &&
           (length >= wanted ? strchr(".[", path[wanted]) != NULL : key[length] == '.');
}

static bool names(const struct fleet_errors *list, const char *key)
{
    for (size_t i = 0; i < list->count && i < FLEET_ERRORS_MAX; i++)
        if (is_about(list->items[i].path, key) || strstr(list->items[i].message, key))
            return true;
    return false;
}

static cJSON *context_of(const struct place *place, const struct row *row)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    cJSON *context;

    fleet_strbuf_appendf(&text, "{\"parallel_mode\":\"%s\",%s%s%s}",
                         *place->mode ? place->mode : "stand_alone", row->with,
                         row->beside ? "," : "", row->beside ? row->beside : "");
    context = cJSON_Parse(text.text);
    fleet_assert(context);
    return context;
}

/* Is the key what makes a setting? */
static bool makes(const cJSON *context, const struct row *row, const char *setting)
{
    const char *key = context_key_of(context, setting);

    return key && *key && strncmp(key, row->key, strlen(key)) == 0;
}

/* Does the plan tell of a setting that the key makes, or refuse it? judge.h then names the key. */
static bool plan_tells(const struct place *place, const struct row *row, const struct outcome *o)
{
    static const char front[] = "spec.strategy.";
    FLEET_AUTO_JSON cJSON *context = context_of(place, row);

    for (size_t i = 0; i < o->errors.count && i < FLEET_ERRORS_MAX; i++)
        if (strncmp(o->errors.items[i].path, front, strlen(front)) == 0 &&
            makes(context, row, o->errors.items[i].path + strlen(front)))
            return true;
    for (const char *line = fleet_strbuf_text(&o->told); *line; line = strchr(line, '\n') + 1) {
        char setting[128];

        (void)snprintf(setting, sizeof(setting), "%.*s", (int)strcspn(line, ":"), line);
        if (makes(context, row, setting))
            return true;
        /* fusion by index is an option of the job, which notes call by its name */
        if (strcmp(setting, "allReduceEnds") == 0 && strstr(row->with, "["))
            return true;
    }
    return false;
}

/* A file, which tests/integration/test_strategy_files.c reads. */
static bool writes(const struct place *place, const struct row *row)
{
    return strstr(row->with, "/nowhere/out") && (strcmp(place->mode, "semi_auto_parallel") == 0 ||
                                                 strcmp(place->mode, "auto_parallel") == 0);
}

static void look(const struct place *place, const struct row *row, struct fleet_strbuf *silent)
{
    struct outcome with, without;

    try_job(place, row->beside, NULL, &without);
    try_job(place, row->beside, row->with, &with);
    if (!names(&with.errors, row->key) && !names(&with.warnings, row->key) &&
        !outcome_differs(&with, &without) && without.errors.count == 0 &&
        !plan_tells(place, row, &with) && !writes(place, row)) {
        fleet_strbuf_appendf(silent, "%s on %d worker(s), %s: %s\n", knob_model(place->model),
                             place->workers, *place->mode ? place->mode : "no mode", row->with);
        for (size_t i = 0; i < with.errors.count && i < FLEET_ERRORS_MAX; i++)
            fleet_strbuf_appendf(silent, "    refused by %s: %s\n", with.errors.items[i].path,
                                 with.errors.items[i].message);
    }
    outcome_release(&with);
    outcome_release(&without);
}

static void test_context_keys__each_acts_or_is_refused_or_is_named(void **state)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf silent = {0};

    (void)state;
    for (size_t r = 0; r < FLEET_COUNT(rows); r++)
        for (size_t m = 0; m < FLEET_COUNT(modes); m++)
            for (int workers = 1; workers <= 2; workers++)
                for (int model = 0; model < KNOB_MODELS; model++)
                    look(&(struct place){model, workers, modes[m]}, &rows[r], &silent);
    if (silent.length > 0) {
        (void)fputs(silent.text, stderr);
        fail_msg("keys in silence");
    }
}

/* What each mode makes of a key, on two workers and gpt: a acts, r refused, t told. The table of
 * MindSpore's modes has no sign there where `t` comes from the mode alone. */
static char effect_of(const char *mode, const struct row *row)
{
    struct place place = {.model = 0, .workers = 2, .mode = mode};
    struct outcome with, without;
    char effect;

    try_job(&place, row->beside, NULL, &without);
    try_job(&place, row->beside, row->with, &with);
    effect = with.errors.count > 0 ? 'r' : outcome_differs(&with, &without) ? 'a' : 't';
    outcome_release(&with);
    outcome_release(&without);
    return effect;
}

static void expect(const char *key, const char *with, const char *beside, const char *effects)
{
    struct row row = {key, with, beside};
    char found[5] = {0};

    for (size_t i = 0; i < 4; i++)
        found[i] = effect_of(modes[i + 2], &row);
    if (strcmp(found, effects) != 0)
        fail_msg("%s: %s, not %s", with, found, effects);
}

/* data_parallel, hybrid_parallel, semi_auto_parallel, auto_parallel. */
static void test_context_keys__act_in_the_modes_of_the_table(void **state)
{
    (void)state;
    expect("gradients_mean", "\"gradients_mean\":false", NULL, "aaaa");
    expect("enable_parallel_optimizer", SWITCH, NULL, "ataa");
    expect("all_reduce_fusion_config", "\"all_reduce_fusion_config\":[1,3]", NULL, "aaaa");
    expect("comm_fusion", "\"comm_fusion\":{\"openstate\":false}", NULL, "aaaa");
    expect("pipeline_stages", STAGES, NULL, "ttaa");
    expect("pipeline_config",
           "\"pipeline_config\":{\"pipeline_interleave\":true,\"pipeline_scheduler\":\"gpipe\"}",
           STAGES, "ttaa");
    expect("parallel_optimizer_config", SHARD "{\"gradient_accumulation_shard\":true}", SWITCH,
           "ttaa");
    expect("parallel_optimizer_config", SHARD "{\"optimizer_level\":\"level3\"}", SWITCH, "ttaa");
    expect("device_num", "\"device_num\":4", NULL, "rrrr");
    expect("global_rank", "\"global_rank\":2", NULL, "rrrr");
    expect("dataset_strategy", "\"dataset_strategy\":[[1,2],[1,2]]", NULL, "ttrr");
    expect("parameter_broadcast", "\"parameter_broadcast\":true", NULL, "tttt");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context_keys__each_acts_or_is_refused_or_is_named),
        cmocka_unit_test(test_context_keys__act_in_the_modes_of_the_table),
    };
    return cmocka_run_group_tests_name("context_keys", tests, NULL, NULL);
}
