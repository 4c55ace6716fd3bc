/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/program/program_build.h"

#include <stdbool.h>
#include <string.h>

#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/program/autodiff.h"
#include "libfleet/program/models/model.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/program.h"
#include "libfleet/program/verify.h"
#include "libfleet/strategy/knobs.h"

/* A draft is verified once, at its end: a search builds many. */
static int verify_step(const struct pass_context *context, struct program *program,
                       enum verify_stage stage, struct fleet_error *err)
{
    return context->is_draft && stage != VERIFY_COMPLETE ? 0 : verify_program(program, stage, err);
}

/* *out_pass is the pass that failed. */
static int run_passes(struct program *program, enum pass_stage stage,
                      const struct pass_context *context, const char **out_pass,
                      struct fleet_error *err)
{
    enum verify_stage reached = stage == PASS_FORWARD ? VERIFY_FORWARD : VERIFY_BACKWARD;
    int rc;

    for (const struct program_pass *pass = pass_table; pass->name; pass++) {
        if (pass->stage != stage || (pass->wanted && !pass->wanted(context)))
            continue;
        *out_pass = pass->name;
        if ((rc = pass->apply(program, context, err)) < 0)
            return rc;
        if ((rc = verify_step(context, program, reached, err)) < 0)
            return rc;
    }
    *out_pass = NULL;
    return 0;
}

/* Bytes of the knob's path that `text` begins with ("amp_configs.incr_ratio: …"), or 0. */
static size_t knob_length(const char *text)
{
    size_t length = strcspn(text, ": "), dot = strcspn(text, ".");
    const struct knob_field *field;
    char name[64];

    if (text[length] != ':' || dot >= length || dot >= sizeof(name))
        return 0;
    memcpy(name, text, dot);
    name[dot] = '\0';
    field = knobs_find(knobs_root(), name, NULL);
    return field && field->message ? length : 0;
}

/* A pass says which knob asks for what the program does not have. */
static void blame_pass(const char *strategy_path, const char *pass, const char *text,
                       struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    size_t knob = knob_length(text);

    fleet_strbuf_append(&path, strategy_path);
    if (knob == 0) {
        fleet_errors_add(errors, fleet_strbuf_text(&path), "pass %s: %s", pass, text);
        return;
    }
    fleet_strbuf_appendf(&path, "%s%.*s", *strategy_path ? "." : "", (int)knob, text);
    fleet_errors_add(errors, path.text, "%s", text + knob + strlen(": "));
}

static int build_once(const struct pass_context *context, const char *strategy_path,
                      const char **out_pass, struct program *out, struct fleet_errors *errors)
{
    struct fleet_error err;
    int rc = model_build(context->training, &context->cell, out, &err);

    *out_pass = NULL;
    if (rc < 0) {
        fleet_errors_add(errors, "spec.training.model", "%s", err.text);
        return rc;
    }
    if ((rc = verify_step(context, out, VERIFY_FORWARD, &err)) == 0 &&
        (rc = run_passes(out, PASS_FORWARD, context, out_pass, &err)) == 0 &&
        (rc = autodiff_run(out, &err)) == 0 &&
        (rc = verify_step(context, out, VERIFY_BACKWARD, &err)) == 0 &&
        (rc = run_passes(out, PASS_BACKWARD, context, out_pass, &err)) == 0 &&
        (rc = verify_step(context, out, VERIFY_COMPLETE, &err)) == 0)
        return 0;
    program_release(out);
    if (*out_pass)
        blame_pass(strategy_path, *out_pass, err.text, errors);
    else
        fleet_errors_add(errors, "spec.training.model", "%s", err.text);
    return rc;
}

/* What is wrong with the other passes, once the one that failed is switched off. */
static void look_further(const struct pass_context *context, const char *strategy_path,
                         const char *pass, struct fleet_errors *errors)
{
    STRATEGY_AUTO struct strategy without = {0};
    const struct knob_field *field = knobs_find(knobs_root(), pass, NULL);
    struct pass_context changed = *context;
    struct program program;
    bool *is_on;

    if (!field || field->kind != KNOB_BOOL)
        return;
    strategy_copy(&without, context->strategy);
    is_on = knob_value(field, &without);
    if (!*is_on)
        return;
    *is_on = false;
    changed.strategy = &without;
    changed.idle = changed.notes = NULL;
    if (program_build(&changed, strategy_path, &program, errors) == 0)
        program_release(&program);
}

int program_build(const struct pass_context *context, const char *strategy_path,
                  struct program *out, struct fleet_errors *errors)
{
    const char *pass;
    int rc = build_once(context, strategy_path, &pass, out, errors);

    if (rc < 0 && pass)
        look_further(context, strategy_path, pass, errors);
    return rc;
}
