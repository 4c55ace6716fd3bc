/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Jobs with every knob of the strategy at once, each with a value that is not its default, drawn by
 * a seed. Such a job is refused: each knob that an error names is taken out, until the rest runs.
 * Each knob of the rest acts (without it the job runs something else, or not at all), or the plan
 * names it. test_no_silence has the knobs alone. FIRST and SEEDS in the environment choose the
 * seeds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/every_knob.h"
#include "tests/support/knob_outcome.h"

#define KNOBS_MAX   1024
#define VALUES_MAX  12
#define SEEDS       2
#define KNOBS_LEAST 150 /* that run together at least; about ninety are refused with their path */

/* ---- knobs and their values ------------------------------------------------------------------ */

static struct {
    char path[128];
    cJSON *values[VALUES_MAX]; /* strategies with this knob alone */
    int count;
} knobs[KNOBS_MAX];
static int knob_count;

static void collect(void *context, const struct every_knob *knob)
{
    (void)context;
    if (!knob->is_alone)
        return;
    if (knob_count == 0 || strcmp(knobs[knob_count - 1].path, knob->path) != 0) {
        fleet_assert(knob_count < KNOBS_MAX);
        (void)snprintf(knobs[knob_count++].path, sizeof(knobs[0].path), "%s", knob->path);
    }
    fleet_assert(knobs[knob_count - 1].count < VALUES_MAX);
    knobs[knob_count - 1].values[knobs[knob_count - 1].count++] =
        cJSON_Duplicate(knob->strategy, true);
}

static int collect_all(void **state)
{
    (void)state;
    every_knob_visit(collect, NULL);
    return 0;
}

static int forget_all(void **state)
{
    (void)state;
    for (int i = 0; i < knob_count; i++)
        for (int v = 0; v < knobs[i].count; v++)
            cJSON_Delete(knobs[i].values[v]);
    return 0;
}

/* An object, or the first object of a list; NULL: a value. */
static cJSON *object_of(cJSON *item)
{
    if (cJSON_IsArray(item))
        item = item->child;
    return cJSON_IsObject(item) ? item : NULL;
}

static void merge(cJSON *into, const cJSON *from)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, from)
    {
        cJSON *there = cJSON_GetObjectItemCaseSensitive(into, item->string);

        if (there && object_of(there) && object_of((cJSON *)item))
            merge(object_of(there), object_of((cJSON *)item));
        else if (!there)
            (void)cJSON_AddItemToObject(into, item->string, cJSON_Duplicate(item, true));
    }
}

/* Is there a value at `path`? It may be followed by more, such as "[0]". If `removes`, it goes, and
 * each message that is empty without it. */
static bool find(cJSON *strategy, const char *path, bool removes)
{
    size_t length = strcspn(path, ".[");
    char name[64];
    cJSON *item, *object;
    bool found;

    (void)snprintf(name, sizeof(name), "%.*s", (int)length, path);
    item = cJSON_GetObjectItemCaseSensitive(strategy, name);
    object = object_of(item);
    path += length;
    path += strncmp(path, "[0].", 4) == 0 ? 4 : *path == '.';
    if (!item)
        return false;
    found = !object || *path == '\0' || find(object, path, removes);
    if (removes && found && (!object || *path == '\0' || cJSON_GetArraySize(object) == 0))
        cJSON_DeleteItemFromObjectCaseSensitive(strategy, name);
    return found;
}

/* ---- a job ----------------------------------------------------------------------------------- */

#define STRATEGY "spec.strategy."

/* Take out the knobs whose names are in a message about one that the job does not set. */
static bool remove_named(cJSON *strategy, const char *message)
{
    bool has_removed = false;

    for (int i = 0; i < knob_count; i++) {
        const char *last = strrchr(knobs[i].path, '.');

        if (strstr(message, last ? last + 1 : knobs[i].path))
            has_removed |= find(strategy, knobs[i].path, true);
    }
    return has_removed;
}

/* Take out what the errors name. */
static bool remove_refused(cJSON *strategy, const struct outcome *o)
{
    bool has_removed = false;

    for (size_t i = 0; i < o->errors.count && i < FLEET_ERRORS_MAX; i++) {
        const char *path = o->errors.items[i].path;

        if (strncmp(path, STRATEGY, strlen(STRATEGY)) == 0)
            has_removed |= find(strategy, path + strlen(STRATEGY), true) ||
                           remove_named(strategy, o->errors.items[i].message);
    }
    return has_removed;
}

static void leave_what_runs(cJSON *strategy, struct knob_job job)
{
    for (;;) {
        FLEET_AUTO_JSON cJSON *json = NULL;
        struct outcome o;
        bool runs, has_removed;

        job.strategy = strategy;
        json = knob_job_make(&job);
        outcome_of(json, job.workers, &o);
        runs = o.errors.count == 0;
        has_removed = remove_refused(strategy, &o);
        if (!runs && !has_removed) {
            FLEET_AUTO_FREE char *text = cJSON_PrintUnformatted(strategy);

            (void)puts(text);
            fail_msg("no knob is to blame in %s on %d worker(s), %s: %s: %s", knob_model(job.model),
                     job.workers, job.is_paddle ? "Paddle" : "Full", o.errors.items[0].path,
                     o.errors.items[0].message);
        }
        outcome_release(&o);
        if (runs)
            return;
    }
}

/* `runs` begins with the units that the plan applies, a line each. */
static bool is_applied(const struct outcome *o, const char *path)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf line = {0}, all = {0};

    fleet_strbuf_appendf(&line, "\n%s\n", path);
    fleet_strbuf_appendf(&all, "\n%s", fleet_strbuf_text(&o->runs));
    return strstr(all.text, line.text) != NULL;
}

static int count_silent(const cJSON *strategy, struct knob_job job, const struct outcome *with)
{
    int silent = 0, left = 0;

    for (int i = 0; i < knob_count; i++) {
        FLEET_AUTO_JSON cJSON *less = cJSON_Duplicate(strategy, true), *json = NULL;
        struct every_knob knob = {.path = knobs[i].path, .strategy = strategy};
        struct outcome without;

        if (!find(less, knobs[i].path, true) || ++left < 0 || outcome_is_told(with, &knob) ||
            is_applied(with, knobs[i].path))
            continue;
        job.strategy = less;
        json = knob_job_make(&job);
        outcome_of(json, job.workers, &without);
        if (without.errors.count == 0 && !outcome_differs(with, &without)) {
            print_message("%s is silent in %s on %d worker(s)\n", knobs[i].path,
                          knob_model(job.model), job.workers);
            silent++;
        }
        outcome_release(&without);
    }
    assert_true(left > KNOBS_LEAST);
    return silent;
}

static int try_job(uint64_t seed, struct knob_job job)
{
    FLEET_AUTO_JSON cJSON *strategy = cJSON_CreateObject(), *json = NULL;
    struct outcome with;
    int silent;

    for (int i = 0; i < knob_count; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        merge(strategy, knobs[i].values[(seed >> 33) % (uint64_t)knobs[i].count]);
    }
    leave_what_runs(strategy, job);
    job.strategy = strategy;
    json = knob_job_make(&job);
    outcome_of(json, job.workers, &with);
    silent = count_silent(strategy, job, &with);
    outcome_release(&with);
    return silent;
}

static unsigned long number_of(const char *name, unsigned long fallback)
{
    const char *text = getenv(name);

    return text ? strtoul(text, NULL, 10) : fallback;
}

static void test_all_knobs__none_is_silent(void **state)
{
    static const char *const optimizers[] = {"momentum", "adamw", "sgd", "adam"};
    unsigned long first = number_of("FIRST", 1), count = number_of("SEEDS", SEEDS);
    int silent = 0;

    (void)state;
    for (unsigned long seed = first; seed < first + count; seed++)
        for (unsigned int model = 0; model < KNOB_MODELS; model++)
            for (int is_paddle = 0; is_paddle < 2; is_paddle++)
                silent += try_job(seed * 1000 + model,
                                  (struct knob_job){.model = (int)model,
                                                    .workers = 2 + (int)((seed / 2 + model) % 3),
                                                    .optimizer = optimizers[(seed + model) % 4],
                                                    .is_paddle = is_paddle != 0});
    assert_int_equal(silent, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_knobs__none_is_silent),
    };

    return cmocka_run_group_tests_name("all_knobs", tests, collect_all, forget_all);
}
