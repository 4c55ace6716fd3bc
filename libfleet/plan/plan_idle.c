/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/plan/plan_idle.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/plan/plan.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/print.h"
#include "libfleet/program/program_build.h"
#include "libfleet/strategy/cells.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/training/loss_scaling.h"

#define PATH_SIZE 256
#define BUILT_MAX \
    50000 /* operators that are built to compare, of all knobs of a job: half a second */

struct idle {
    const struct pass_context *context;
    struct plan *plan;
    struct fleet_strbuf text; /* of the program, printed when it is first needed */
    int built;                /* operators so far */
};

/* ---- what is explained already --------------------------------------------------------------- */

/* `name` is the knob at `path` or a message around it. */
static bool covers(const char *name, const char *path)
{
    size_t length = strlen(name);

    return strncmp(name, path, length) == 0 && (path[length] == '\0' || path[length] == '.');
}

static bool is_noted(const struct select_notes *notes, const char *path)
{
    for (size_t i = 0; i < notes->count; i++)
        if (covers(notes->items[i].knob, path))
            return true;
    return false;
}

static bool is_explained(const struct plan *plan, const char *path)
{
    const struct select_result *selection = &plan->selection;

    for (size_t i = 0; i < selection->applied.count; i++)
        if (strcmp(selection->applied.items[i], path) == 0)
            return true;
    return is_noted(&selection->dropped, path) || is_noted(&selection->without_effect, path) ||
           is_noted(&selection->notes, path) || is_noted(&plan->cannot_run, path);
}

/* ---- the loss scale -------------------------------------------------------------------------- */

/* Trainers read these, passes do not. Returns the reason why they do not matter here, or "". */
static const char *judge_scaling(const struct strategy *s, const char *path, bool *out_is_scaling)
{
    static const char *const dynamic[] = {"amp_configs.incr_every_n_steps",
                                          "amp_configs.decr_every_n_nan_or_inf",
                                          "amp_configs.incr_ratio", "amp_configs.decr_ratio"};

    *out_is_scaling = strcmp(path, "amp_configs.init_loss_scaling") == 0 ||
                      strcmp(path, "amp_configs.use_dynamic_loss_scaling") == 0;
    for (size_t i = 0; i < sizeof(dynamic) / sizeof(dynamic[0]); i++)
        if (strcmp(path, dynamic[i]) == 0) {
            *out_is_scaling = true;
            if (!s->amp_configs.use_dynamic_loss_scaling)
                return "use_dynamic_loss_scaling is false, so the loss scale never changes";
        }
    return "";
}

/* ---- the program without it ------------------------------------------------------------------ */

/* The field at `path`, which leads through messages only, and the struct that it lies in. */
static const struct knob_field *find(struct strategy *s, const char *path, void **out_message)
{
    const struct knob_message *message = knobs_root();
    const struct knob_field *field = NULL;
    char copy[PATH_SIZE], *state = NULL;

    *out_message = s;
    (void)snprintf(copy, sizeof(copy), "%s", path);
    for (char *name = strtok_r(copy, ".", &state); name; name = strtok_r(NULL, ".", &state)) {
        if (field) {
            *out_message = knob_value(field, *out_message);
            message = field->message();
        }
        field = knobs_find(message, name, NULL);
    }
    return field;
}

/* The ranks are in the same grid, and shards have the same size. */
static bool is_same_grid(const struct plan *plan, const struct strategy *changed)
{
    struct fleet_errors errors = {0};
    struct topology topology;
    bool is_same = topology_build(changed, plan->world, "", &topology, &errors) == 0 &&
                   memcmp(topology.degree, plan->topology.degree, sizeof(topology.degree)) == 0 &&
                   memcmp(topology.order, plan->topology.order, sizeof(topology.order)) == 0;

    fleet_errors_release(&errors);
    return is_same;
}

/* A program that cannot be built without the knob is another one. */
static bool is_same_without(struct idle *idle, const char *path)
{
    STRATEGY_AUTO struct strategy changed;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct pass_context context = *idle->context;
    struct fleet_errors errors = {0};
    struct program program;
    void *message;
    const struct knob_field *field;

    strategy_copy(&changed, context.strategy);
    field = find(&changed, path, &message);
    knob_reset(field, message);
    if ((plan_shards(idle->plan) > 1 || cells_count(&idle->plan->topology) > 1) &&
        !is_same_grid(idle->plan, &changed))
        return false;
    context.strategy = &changed;
    context.idle = NULL;
    context.notes = NULL;
    if (program_build(&context, "", &program, &errors) < 0) {
        fleet_errors_release(&errors);
        return false;
    }
    print_program(&program, &text);
    program_release(&program);
    if (idle->text.length == 0)
        print_program(&idle->plan->program, &idle->text);
    return strcmp(text.text, idle->text.text) == 0;
}

/* The controller plans on its event loop: models of a thousand layers are not built many times. */
static void compare(struct idle *idle, const char *path)
{
    struct select_result *selection = &idle->plan->selection;
    const char *last = strrchr(path, '.');
    bool is_degree = idle->plan->is_cut && last && strcmp(last, ".pp_degree") == 0;

    idle->built += idle->plan->program.op_count;
    if (idle->built > BUILT_MAX)
        select_note(&selection->notes, path,
                    "the model has too many operators to find out whether it changes the program");
    else if (is_same_without(idle, path))
        select_note(is_degree ? &selection->notes : &selection->without_effect, path,
                    "the program of this job is the same without it");
}

/* Of a pipeline's micro-batches: their order, which is in no program, and their number and size,
 * which the job has written twice then. */
static bool judge_schedule(struct idle *idle, const char *path)
{
    static const char *const twice[] = {"pipeline_configs.micro_batch",
                                        "pipeline_configs.micro_batch_size",
                                        "pipeline_configs.accumulate_steps"};

    if (!idle->plan->is_cut)
        return false;
    for (size_t i = 0; i < sizeof(twice) / sizeof(twice[0]); i++)
        if (strcmp(path, twice[i]) == 0) {
            select_note(&idle->plan->selection.notes, path,
                        "is what globalBatchSize and microBatchSize say, too");
            return true;
        }
    return strcmp(path, "pipeline_configs.schedule_mode") == 0;
}

/* The same of when ranks exchange what. */
static const char *judge_exchange(const struct idle *idle, const char *path, bool *out_is_exchange)
{
    const struct strategy *s = idle->context->strategy;
    static const char *const read[] = {
        "localsgd_configs.k_steps",
        "localsgd_configs.begin_step",
        "adaptive_localsgd_configs.init_k_steps",
        "adaptive_localsgd_configs.begin_step",
        "dgc_configs.rampup_begin_step",
        "dgc_configs.rampup_step",
        "dgc_configs.sparsity",
        "tensor_parallel_configs.tensor_init_seed", /* the start of the parameters */
    };

    *out_is_exchange = false;
    for (size_t i = 0; i < sizeof(read) / sizeof(read[0]); i++)
        *out_is_exchange |= strcmp(path, read[i]) == 0;
    if (*out_is_exchange && strncmp(path, "dgc", 3) == 0 &&
        select_has_note(&idle->plan->selection.without_effect, "dgc"))
        return "dgc has nothing to do";
    if (strcmp(path, "localsgd_configs.begin_step") == 0 && s->localsgd_configs.k_steps == 1)
        return "k_steps is 1, so parameters are averaged after every update anyway";
    if (strcmp(path, "dgc_configs.rampup_step") == 0 && s->dgc_configs.sparsity.count <= 1)
        return "sparsity has one value, so there is no ramp";
    return "";
}

static void judge(struct idle *idle, const char *path)
{
    struct select_notes *notes = &idle->plan->selection.without_effect;
    bool is_scaling, is_exchange = false;
    const char *why = judge_scaling(idle->context->strategy, path, &is_scaling);

    if (!is_scaling)
        why = judge_exchange(idle, path, &is_exchange);

    if (is_explained(idle->plan, path) || judge_schedule(idle, path))
        return;
    if (*why)
        select_note(notes, path, "%s", why);
    else if (!is_scaling && !is_exchange)
        compare(idle, path);
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* Each field that is set to another value than its default; messages nest at most five deep. */
static void walk(struct idle *idle, const char *parent, const struct knob_message *message,
                 const void *value, const void *fallback)
{
    for (size_t i = 0; i < message->count; i++) {
        const struct knob_field *field = &message->fields[i];
        const void *mine = knob_value(field, value), *usual = knob_value(field, fallback);
        uint8_t has = *knob_has(field, value);
        char path[PATH_SIZE];

        if (!has)
            continue;
        (void)snprintf(path, sizeof(path), "%s%s%s", parent, *parent ? "." : "",
                       has & KNOB_BY_NAME ? field->name : field->alias);
        if (field->kind == KNOB_MESSAGE)
            walk(idle, path, field->message(), mine, usual);
        else if (!knob_equal(field, mine, usual))
            judge(idle, path);
    }
}

void plan_idle_list(const struct strategy *asked, const struct pass_context *context,
                    struct plan *plan)
{
    STRATEGY_AUTO struct strategy usual = {0};
    struct idle idle = {.context = context, .plan = plan};

    if (select_is_auto(asked))
        return; /* what it chose is in `applied` */
    strategy_init(&usual);
    walk(&idle, "", knobs_root(), asked, &usual);
    fleet_strbuf_release(&idle.text);
}
