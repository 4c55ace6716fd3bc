/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_PASSES_FIXTURE_H
#define TESTS_UNIT_PASSES_FIXTURE_H

/* A job from JSON and its planned program, for the tests of passes. */
#include <errno.h>
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
#include "libfleet/plan/plan.h"
#include "libfleet/program/print.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/training/training.h"
#include "tests/support/planned_job.h"

#define GPT(layers, rest)                                                                        \
    "{\"model\":{\"name\":\"gpt\",\"layers\":" #layers                                           \
    ",\"heads\":4,\"width\":64,\"context\":32},\"data\":{\"path\":\"t\"},\"globalBatchSize\":8," \
    "\"microBatchSize\":2,\"steps\":8," rest "}"
#define ADAMW "\"optimizer\":{\"learningRate\":0.1}"

static inline void job_init(struct job *job, const char *training, const char *strategy)
{
    job_init_for(job, training, strategy, 2);
}

static inline void build(struct job *job, const char *training, const char *strategy)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    job_init(job, training, strategy);
    fleet_errors_print(&job->errors, &text);
    if (job->rc < 0)
        fail_msg("%s: %s", strategy, fleet_strbuf_text(&text));
}

static inline void expect_refused(const char *training, const char *strategy, const char *wanted)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct job job;

    job_init(&job, training, strategy);
    fleet_errors_print(&job.errors, &text);
    if (job.rc == 0 || !strstr(fleet_strbuf_text(&text), wanted))
        fail_msg("%s: %d \"%s\", expected \"%s\"", strategy, job.rc, fleet_strbuf_text(&text),
                 wanted);
    job_release(&job);
}

static inline const struct program_op *update_of(const struct program *p, const char *parameter)
{
    for (int i = 0; i < p->op_count; i++)
        if (p->ops[i].section == PROGRAM_SECTION_UPDATE &&
            strcmp(p->vars[p->ops[i].inputs[0]].name, parameter) == 0)
            return &p->ops[i];
    fail_msg("%s is not updated", parameter);
    return NULL;
}

static inline int count_ops(const struct program *p, enum op_kind kind, bool backward)
{
    int count = 0;

    for (int i = 0; i < p->op_count; i++)
        count += p->ops[i].kind == kind && p->ops[i].backward == backward;
    return count;
}

static inline enum program_type type_of(const struct program *p, const char *name)
{
    int var = program_find_var(p, name);

    if (var == PROGRAM_NONE)
        fail_msg("there is no %s", name);
    return p->vars[var].type;
}

/* ---- exchange -------------------------------------------------------------------------------- */

static inline void expect_idle(const char *training, const char *strategy, const char *knob,
                               const char *because)
{
    const struct select_notes *idle;
    struct job job;
    bool found = false;

    build(&job, training, strategy);
    idle = &job.plan.selection.without_effect;
    for (size_t i = 0; i < idle->count; i++)
        if (strcmp(idle->items[i].knob, knob) == 0) {
            assert_string_equal(idle->items[i].because, because);
            found = true;
        }
    if (!found)
        fail_msg("%s: nothing says that %s has no effect", strategy, knob);
    for (size_t i = 0; i < job.plan.selection.applied.count; i++)
        assert_string_not_equal(job.plan.selection.applied.items[i], knob);
    job_release(&job);
}

/* ---- amp ------------------------------------------------------------------------------------- */

static inline int count_kind(const struct program *p, enum op_kind kind)
{
    int count = 0;

    for (int i = 0; i < p->op_count; i++)
        count += p->ops[i].kind == kind;
    return count;
}

/* Of a text that is right. */
static inline void decode(const char *text, struct training_config *out)
{
    FLEET_AUTO_JSON cJSON *json = cJSON_Parse(text);
    FLEET_AUTO_STRBUF struct fleet_strbuf said = {0};
    struct fleet_errors errors = {0};

    if (training_config_decode(json, "spec.training", out, &errors) < 0) {
        fleet_errors_print(&errors, &said);
        fail_msg("%s: %s", text, fleet_strbuf_text(&said));
    }
}

#endif
