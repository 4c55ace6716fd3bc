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
    const struct strategy *asked;
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

/* ---- the knob at work ------------------------------------------------------------------------ */

/* A knob that is set, in the strategy as the user wrote it. */
struct set_knob {
    const char *path; /* as the user spelled it */
    const struct knob_field *field;
    size_t offset;         /* in struct strategy: STRATEGY_KNOB() */
    size_t message_offset; /* of the message that contains it, there */
};

/* ---- the loss scale -------------------------------------------------------------------------- */

/* Trainers read these, passes do not. Returns the reason why they do not matter here, or "". */
static const char *judge_scaling(const struct strategy *s, const struct set_knob *knob,
                                 bool *out_is_scaling)
{
    *out_is_scaling = true;
    switch (knob->offset) {
    case STRATEGY_KNOB(amp_configs.init_loss_scaling):
    case STRATEGY_KNOB(amp_configs.use_dynamic_loss_scaling):
        return "";
    case STRATEGY_KNOB(amp_configs.incr_every_n_steps):
    case STRATEGY_KNOB(amp_configs.decr_every_n_nan_or_inf):
    case STRATEGY_KNOB(amp_configs.incr_ratio):
    case STRATEGY_KNOB(amp_configs.decr_ratio):
        return s->amp_configs.use_dynamic_loss_scaling
                   ? ""
                   : "use_dynamic_loss_scaling is false, so the loss scale never changes";
    default:
        *out_is_scaling = false;
        return "";
    }
}

/* ---- the program without it ------------------------------------------------------------------ */

/* Do axes of more than one rank come in the same order? Both grids have the same degrees. */
static bool is_same_order(const struct topology *a, const struct topology *b)
{
    int i = 0, j = 0;

    for (;;) {
        while (i < TOPOLOGY_AXES && a->degree[a->order[i]] == 1)
            i++;
        while (j < TOPOLOGY_AXES && b->degree[b->order[j]] == 1)
            j++;
        if (i == TOPOLOGY_AXES || j == TOPOLOGY_AXES)
            return i == j;
        if (a->order[i++] != b->order[j++])
            return false;
    }
}

/* The ranks are in the same grid, and shards have the same size. */
static bool is_same_grid(const struct plan *plan, const struct strategy *changed)
{
    struct fleet_errors errors = {0};
    struct topology topology;
    bool is_same = topology_build(changed, plan->world, NULL, "", &topology, &errors) == 0 &&
                   memcmp(topology.degree, plan->topology.degree, sizeof(topology.degree)) == 0 &&
                   is_same_order(&topology, &plan->topology);

    fleet_errors_release(&errors);
    return is_same;
}

/* The degree at `value` has switched a unit on, which is off without it (select.c). */
static bool switches_on(const struct idle *idle, const struct strategy *s, const void *value)
{
    const struct strategy *asked = idle->asked;

    return (value == &s->hybrid_configs.pp_degree && s->pipeline && !asked->pipeline) ||
           (value == &s->hybrid_configs.sharding_degree && s->sharding && !asked->sharding);
}

/* A program that cannot be built without the knob is another one. */
static bool is_same_without(struct idle *idle, const struct set_knob *knob)
{
    STRATEGY_AUTO struct strategy changed;
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct pass_context context = *idle->context;
    struct fleet_errors errors = {0};
    struct program program;
    char *message = (char *)&changed + knob->message_offset;

    strategy_copy(&changed, context.strategy);
    if (switches_on(idle, &changed, knob_value(knob->field, message)))
        return false;
    knob_reset(knob->field, message);
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
static void compare(struct idle *idle, const struct set_knob *knob)
{
    struct select_result *selection = &idle->plan->selection;
    bool is_degree = idle->plan->is_cut && /* the hub of an elastic job needs it */
                     (knob->offset == STRATEGY_KNOB(hybrid_configs.pp_degree) ||
                      knob->offset == STRATEGY_KNOB(hybrid_configs.sharding_degree) ||
                      knob->offset == STRATEGY_KNOB(sharding_configs.pp_degree));

    idle->built += idle->plan->program.op_count;
    if (idle->built > BUILT_MAX)
        select_note(&selection->notes, knob->path,
                    "the model has too many operators to find out whether it changes the program");
    else if (is_same_without(idle, knob))
        select_note(is_degree ? &selection->notes : &selection->without_effect, knob->path,
                    "the program of this job is the same without it");
}

/* Of a pipeline's micro-batches: their order, which is in no program, and their number and size,
 * which the job has written twice then. */
static bool judge_schedule(struct idle *idle, const struct set_knob *knob)
{
    if (!idle->plan->is_cut)
        return false;
    switch (knob->offset) {
    case STRATEGY_KNOB(pipeline_configs.micro_batch):
    case STRATEGY_KNOB(pipeline_configs.micro_batch_size):
        select_note(&idle->plan->selection.notes, knob->path,
                    "is what globalBatchSize and microBatchSize say, too");
        return true;
    case STRATEGY_KNOB(pipeline_configs.schedule_mode):
        return true;
    default:
        return false;
    }
}

/* dgc was chosen, and its pass has nothing to do. */
static bool is_dgc_idle(const struct idle *idle)
{
    return select_has_note(&idle->plan->selection.without_effect, "dgc");
}

/* The same of when ranks exchange what. */
static const char *judge_exchange(const struct idle *idle, const struct set_knob *knob,
                                  bool *out_is_exchange)
{
    const struct strategy *s = idle->context->strategy;

    *out_is_exchange = true;
    switch (knob->offset) {
    case STRATEGY_KNOB(localsgd_configs.begin_step):
        return s->localsgd_configs.k_steps == 1
                   ? "k_steps is 1, so parameters are averaged after every update anyway"
                   : "";
    case STRATEGY_KNOB(localsgd_configs.k_steps):
    case STRATEGY_KNOB(adaptive_localsgd_configs.init_k_steps):
    case STRATEGY_KNOB(adaptive_localsgd_configs.begin_step):
    case STRATEGY_KNOB(tensor_parallel_configs.tensor_init_seed): /* the start of the parameters */
    case STRATEGY_KNOB(tensor_parallel_configs.sequence_parallel):
        return "";
    case STRATEGY_KNOB(dgc_configs.rampup_step):
        return is_dgc_idle(idle)                    ? "dgc has nothing to do"
               : s->dgc_configs.sparsity.count <= 1 ? "sparsity has one value, so there is no ramp"
                                                    : "";
    case STRATEGY_KNOB(dgc_configs.rampup_begin_step):
    case STRATEGY_KNOB(dgc_configs.sparsity):
        return is_dgc_idle(idle) ? "dgc has nothing to do" : "";
    default:
        *out_is_exchange = false;
        return "";
    }
}

static void judge(struct idle *idle, const struct set_knob *knob)
{
    bool is_scaling, is_exchange = false;
    const char *why = judge_scaling(idle->context->strategy, knob, &is_scaling);

    if (!is_scaling)
        why = judge_exchange(idle, knob, &is_exchange);
    if (is_explained(idle->plan, knob->path) || judge_schedule(idle, knob))
        return;
    if (*why)
        select_note(&idle->plan->selection.without_effect, knob->path, "%s", why);
    else if (!is_scaling && !is_exchange)
        compare(idle, knob);
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* The knobs of one message that are set. */
struct level {
    const char *path; /* of the message, "" = the root */
    const struct knob_message *message;
    const void *value, *fallback; /* as set; with its defaults */
    size_t offset;                /* of the message in struct strategy */
};

/* Each field that is set to another value than its default; messages nest at most five deep. */
static void walk(struct idle *idle, const struct level *level)
{
    for (size_t i = 0; i < level->message->count; i++) {
        const struct knob_field *field = &level->message->fields[i];
        const void *mine = knob_value(field, level->value);
        const void *usual = knob_value(field, level->fallback);
        uint8_t has = *knob_has(field, level->value);
        char path[PATH_SIZE];
        struct set_knob knob = {.path = path,
                                .field = field,
                                .offset = level->offset + field->offset,
                                .message_offset = level->offset};

        if (!has)
            continue;
        (void)snprintf(path, sizeof(path), "%s%s%s", level->path, *level->path ? "." : "",
                       has & KNOB_BY_NAME ? field->name : field->alias);
        if (field->kind == KNOB_MESSAGE)
            walk(idle, &(struct level){path, field->message(), mine, usual, knob.offset});
        else if (!knob_equal(field, mine, usual))
            judge(idle, &knob);
    }
}

void plan_idle_list(const struct strategy *asked, const struct pass_context *context,
                    struct plan *plan)
{
    STRATEGY_AUTO struct strategy usual = {0};
    struct idle idle = {.asked = asked, .context = context, .plan = plan};

    if (select_is_auto(asked))
        return; /* what it chose is in `applied` */
    strategy_init(&usual);
    walk(&idle, &(struct level){"", knobs_root(), asked, &usual, 0});
    fleet_strbuf_release(&idle.text);
}
