/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The frame of the selection, and its Full policy, which is two tables: pairs that contradict each
 * other, and the order in which units contain each other. select_paddle.c has Paddle's policy;
 * select_explain.c explains the result.
 */
#include "libfleet/strategy/select.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/map.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/check.h"
#include "libfleet/strategy/topology.h"
#include "libfleet/strategy/units.h"

/* ---- Full ---------------------------------------------------------------------------------- */

static const char two_optimizers[] = "two optimizers for one parameter";
static const char two_intervals[] = "two rules for one interval";
static const char no_exchange[] = "there is no gradient exchange left to compress";
static const char whole_replica[] = "local steps need a whole replica per rank";
static const char sparse_exchange[] =
    "the exchange is sparse; residuals need whole local gradients";

static const struct {
    enum unit a, b;
    const char *reason;
} contradictions[] = {
    {UNIT_LARS, UNIT_LAMB, two_optimizers},
    {UNIT_LARS, UNIT_DGC, two_optimizers},
    {UNIT_LAMB, UNIT_DGC, two_optimizers},
    {UNIT_LOCALSGD, UNIT_ADAPTIVE_LOCALSGD, two_intervals},
    {UNIT_LOCALSGD, UNIT_DGC, no_exchange},
    {UNIT_LOCALSGD, UNIT_FP16_ALLREDUCE, no_exchange},
    {UNIT_ADAPTIVE_LOCALSGD, UNIT_DGC, no_exchange},
    {UNIT_ADAPTIVE_LOCALSGD, UNIT_FP16_ALLREDUCE, no_exchange},
    {UNIT_LOCALSGD, UNIT_SHARDING, whole_replica},
    {UNIT_ADAPTIVE_LOCALSGD, UNIT_SHARDING, whole_replica},
    {UNIT_DGC, UNIT_FP16_ALLREDUCE, sparse_exchange},
    {UNIT_DGC, UNIT_SHARDING, sparse_exchange},
};

/* Outermost first. Tensor parallelism is not a unit of Paddle 2.0; it follows the second one. */
static const enum unit containment[] = {
    UNIT_PIPELINE,
    UNIT_SHARDING,
    UNIT_FP16_ALLREDUCE,
    UNIT_LOCALSGD,
    UNIT_ADAPTIVE_LOCALSGD,
    UNIT_GRADIENT_MERGE,
    UNIT_AMP,
    UNIT_RECOMPUTE,
    UNIT_LARS,
    UNIT_LAMB,
    UNIT_DGC,
};

struct selection {
    const struct select_options *options;
    const char *path;
    struct strategy strategy; /* becomes `final` */
    struct fleet_errors *errors;
};

__attribute__((format(printf, 3, 4))) static void refuse(struct selection *x, const char *field,
                                                         const char *format, ...)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    FLEET_AUTO_STRBUF struct fleet_strbuf message = {0};
    va_list args;

    va_start(args, format);
    fleet_strbuf_appendv(&message, format, args);
    va_end(args);
    fleet_strbuf_appendf(&path, "%s%s%s", x->path, *x->path ? "." : "", field);
    fleet_errors_add(x->errors, path.text, "%s", fleet_strbuf_text(&message));
}

/* "sgd or momentum": Paddle's classes, spelled as in spec.training.optimizer.name. */
static void append_lower(struct fleet_strbuf *out, const char *text)
{
    for (; *text; text++)
        fleet_strbuf_append_char(out, (char)tolower((unsigned char)*text));
}

static void refuse_optimizer(struct selection *x, enum unit unit)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf wanted = {0}, given = {0};

    append_lower(&wanted, unit_optimizer(unit));
    append_lower(&given, x->options->optimizer);
    refuse(x, unit_name(unit), SELECT_NEEDS_OPTIMIZER "%s (it is %s)", wanted.text,
           fleet_strbuf_text(&given));
}

static void refuse_contradictions(struct selection *x)
{
    const struct strategy *s = &x->strategy;

    for (size_t i = 0; i < FLEET_COUNT(contradictions); i++) {
        enum unit a = contradictions[i].a, b = contradictions[i].b;

        if (unit_is_on(s, a) && unit_is_on(s, b))
            refuse(x, unit_name(b), "%s and %s contradict each other: %s", unit_name(a),
                   unit_name(b), contradictions[i].reason);
    }
    for (int i = 0; i < UNITS; i++)
        if (unit_is_on(s, (enum unit)i) &&
            !unit_fits_optimizer((enum unit)i, x->options->optimizer))
            refuse_optimizer(x, (enum unit)i);
}

/* amp: operator lists that contradict each other, and two 16-bit types at once. */
static void refuse_amp_contradictions(struct selection *x)
{
    const struct strategy_amp_config *amp = &x->strategy.amp_configs;
    const struct strategy_strings *white = &amp->custom_white_list,
                                  *black = &amp->custom_black_list;
    struct fleet_map names = {0};

    if (!x->strategy.amp)
        return;
    if (amp->use_pure_fp16 && amp->use_pure_bf16)
        refuse(x, "amp_configs.use_pure_bf16",
               "use_pure_fp16 and use_pure_bf16 contradict each other: two types for one value");
    for (size_t i = 0; i < white->count; i++)
        (void)fleet_map_insert(&names, white->items[i], white->items[i]);
    for (size_t i = 0; i < black->count; i++)
        if (fleet_map_get(&names, black->items[i]))
            refuse(x, "amp_configs.custom_black_list", "\"%.60s\" is in custom_white_list too",
                   black->items[i]);
    fleet_map_release(&names);
}

/* From 2.1 on, sharding merges gradients itself: their mean over so many batches. That is
 * gradient_merge under another name. */
static void merge_inside_sharding(struct selection *x)
{
    struct strategy *s = &x->strategy;
    struct strategy_gradient_merge_config *merge = &s->gradient_merge_configs;
    int steps = s->sharding_configs.gradient_merge_acc_step;
    bool is_other = x->options->policy == STRATEGY_FULL &&
                    ((merge->has_k_steps && merge->k_steps != steps) || !merge->avg);

    if (!s->sharding || steps <= 1)
        return;
    if (is_other)
        refuse(x, "sharding_configs.gradient_merge_acc_step",
               "is %d, and gradient_merge_configs has k_steps %d and avg %s: %s; leave one of them "
               "out",
               steps, merge->k_steps, merge->avg ? "true" : "false", two_intervals);
    unit_set(s, UNIT_GRADIENT_MERGE, true);
    merge->k_steps = steps;
    merge->avg = true;
    merge->has_k_steps = merge->has_avg = s->has_gradient_merge_configs = KNOB_BY_NAME;
}

int select_merge_steps(const struct strategy *s)
{
    bool is_divided = s->sharding || s->hybrid_configs.sharding_degree > 1;

    if (is_divided && s->sharding_configs.gradient_merge_acc_step > 1)
        return s->sharding_configs.gradient_merge_acc_step;
    return s->gradient_merge ? s->gradient_merge_configs.k_steps : 1;
}

/* hybrid_configs switches on by degrees what the static graph switches on by flags. */
static void switch_on_by_degrees(struct strategy *s)
{
    if (s->hybrid_configs.pp_degree > 1)
        unit_set(s, UNIT_PIPELINE, true);
    if (s->hybrid_configs.sharding_degree > 1)
        unit_set(s, UNIT_SHARDING, true);
}

static void select_full(struct selection *x)
{
    if (select_is_auto(&x->strategy)) {
        struct select_result discarded = {0};

        select_paddle(&x->strategy, x->options, &discarded);
        select_result_release(&discarded);
        return;
    }
    switch_on_by_degrees(&x->strategy);
    refuse_contradictions(x);
    refuse_amp_contradictions(x);
}

static void list_if_busy(enum unit unit, struct select_result *out)
{
    if (!select_has_note(&out->without_effect, unit_name(unit)))
        select_apply(out, unit);
}

/* The units that are on and have an effect, in order of containment. */
static void list_applied(struct select_result *out)
{
    for (size_t i = 0; i < FLEET_COUNT(containment); i++) {
        if (containment[i] == UNIT_FP16_ALLREDUCE && out->final.tensor_parallel)
            list_if_busy(UNIT_TENSOR_PARALLEL, out);
        if (unit_is_on(&out->final, containment[i]))
            list_if_busy(containment[i], out);
    }
}

/* Paddle 2.0 has no tensor parallelism. In later versions it follows the units that divide the
 * ranks. */
static void insert_tensor_parallel(struct select_result *out)
{
    struct select_names *applied = &out->applied;
    const char *name = unit_name(UNIT_TENSOR_PARALLEL);
    size_t place = 0;

    while (place < applied->count && (applied->items[place] == unit_name(UNIT_PIPELINE) ||
                                      applied->items[place] == unit_name(UNIT_SHARDING)))
        place++;
    select_apply(out, UNIT_TENSOR_PARALLEL);
    for (size_t i = applied->count - 1; i > place; i--)
        applied->items[i] = applied->items[i - 1];
    applied->items[place] = name;
}

/* ---- forced values ------------------------------------------------------------------------- */

static void force_bool(bool *value, uint8_t *has, bool forced)
{
    if (*value == forced)
        return;
    *value = forced;
    *has = KNOB_BY_NAME;
}

static void force_int(int32_t *value, uint8_t *has, int32_t forced)
{
    if (*value == forced)
        return;
    *value = forced;
    *has = KNOB_BY_NAME;
}

/*
 * The effective strategy contains the values that Paddle sets implicitly, if they change anything.
 * It shows the thread for sync_nccl_allreduce only if the user has set that knob, because it is on
 * by default.
 */
static void force_values(struct strategy *s, int world_size)
{
    struct strategy_build_strategy *build = &s->build_strategy;
    struct strategy_execution_strategy *run = &s->execution_strategy;
    int threads = run->num_threads;

    if (s->recompute)
        force_bool(&build->enable_sequential_execution, &build->has_enable_sequential_execution,
                   true);
    force_bool(&build->enable_backward_optimizer_op_deps,
               &build->has_enable_backward_optimizer_op_deps, true);
    if (world_size <= 1 || s->sync_batch_norm)
        force_int(&s->nccl_comm_num, &s->has_nccl_comm_num, 1);
    if (world_size <= 1 || s->sync_batch_norm)
        force_bool(&s->use_hierarchical_allreduce, &s->has_use_hierarchical_allreduce, false);
    if (s->has_sync_nccl_allreduce && s->sync_nccl_allreduce && threads < s->nccl_comm_num + 1)
        threads = s->nccl_comm_num + 1;
    if (s->sync_batch_norm)
        threads = 1;
    force_int(&run->num_threads, &run->has_num_threads, threads);
    if (build->has_enable_sequential_execution || build->has_enable_backward_optimizer_op_deps)
        s->has_build_strategy = KNOB_BY_NAME;
    if (run->has_num_threads)
        s->has_execution_strategy = KNOB_BY_NAME;
}

/* No degree is 0 or less, so the grid can be checked even if other values are wrong. */
static bool has_legal_degrees(const struct strategy *s)
{
    const struct strategy_hybrid_config *h = &s->hybrid_configs;
    const struct strategy_sharding_config *g = &s->sharding_configs;

    return h->mp_degree >= 1 && h->pp_degree >= 1 && h->sharding_degree >= 1 &&
           h->sep_degree >= 1 && (h->dp_degree >= 1 || h->dp_degree == -1) && g->mp_degree >= 1 &&
           g->pp_degree >= 1 && g->dp_degree >= 1 && g->sharding_group_size >= 1 &&
           s->tensor_parallel_configs.tensor_parallel_degree >= 1;
}

/* ---- warnings ------------------------------------------------------------------------------ */

/* Warnings of strategy_check(); their paths begin with `path`. */
static void take_warnings(const struct fleet_errors *found, const char *path,
                          struct select_notes *warnings)
{
    size_t front = *path ? strlen(path) + 1 : 0;

    for (size_t i = 0; i < found->count && i < FLEET_ERRORS_MAX; i++)
        select_note(warnings, found->items[i].path + front, "%s", found->items[i].message);
}

/* lars adds its own decay to Momentum's; so does lamb. */
static void warn_of_double_decay(const struct strategy *s, bool has_decay,
                                 struct select_notes *warnings)
{
    static const char twice[] =
        "the optimizer's own weight decay acts beside it, so weights decay twice: set one of "
        "them to 0";

    if (has_decay && s->lars && s->lars_configs.lars_weight_decay > 0)
        select_note(warnings, "lars_configs.lars_weight_decay", "%s", twice);
    if (has_decay && s->lamb && s->lamb_configs.lamb_weight_decay > 0)
        select_note(warnings, "lamb_configs.lamb_weight_decay", "%s", twice);
}

/* The steps of an incomplete last update do not change the weights. */
static void warn_of_a_rest(const struct strategy *s, int64_t steps, struct select_notes *warnings)
{
    int k = s->gradient_merge_configs.k_steps;

    if (s->gradient_merge && k > 1 && steps > k && steps % k != 0)
        select_note(warnings, "gradient_merge_configs.k_steps",
                    "spec.training.steps is %" PRId64 ", no multiple of %d: the last %d make no "
                    "update",
                    steps, k, (int)(steps % k));
}

/* ---- what could not be read ------------------------------------------------------------------ */

bool select_knows_grid(const struct fleet_errors *unread, const char *path)
{
    static const char *const fields[] = {
        "hybrid_configs",  "sharding_configs", "tensor_parallel_configs",
        "tensor_parallel", "sharding",         "pipeline"};

    for (size_t i = 0; unread && i < FLEET_COUNT(fields); i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf field = {0};

        fleet_strbuf_appendf(&field, "%s%s%s", path, *path ? "." : "", fields[i]);
        if (fleet_errors_touch(unread, field.text))
            return false;
    }
    return true;
}

/* ---- the frame ----------------------------------------------------------------------------- */

int strategy_select(const struct strategy *s, const struct select_options *options,
                    const char *path, struct select_result *out, struct fleet_errors *errors)
{
    struct selection x = {.options = options, .path = path, .errors = errors};
    struct select_result result = {0};
    struct fleet_errors unusual = {0};
    struct topology topology;
    size_t before = errors->count;
    bool knows_grid = options->world_size > 0 && select_knows_grid(options->unread, path);

    (void)strategy_check(s, options->world_size, options->any_world, path, errors, &unusual);
    take_warnings(&unusual, path, &result.warnings);
    fleet_errors_release(&unusual);
    strategy_copy(&x.strategy, s);
    if (options->policy == STRATEGY_PADDLE)
        select_paddle(&x.strategy, options, &result);
    else
        select_full(&x);
    merge_inside_sharding(&x);
    if (knows_grid && has_legal_degrees(&x.strategy))
        (void)topology_build(&x.strategy, options->world_size, &options->job, path, &topology,
                             errors);
    result.final = x.strategy; /* moved */
    if (errors->count > before || !knows_grid) {
        select_result_release(&result);
        return -EINVAL;
    }
    if (topology.degree[TOPOLOGY_MODEL] > 1) {
        result.final.tensor_parallel = true;
        result.final.has_tensor_parallel = KNOB_BY_NAME;
    }
    select_explain(s, options, &topology, &result);
    if (options->policy == STRATEGY_FULL)
        list_applied(&result);
    else if (topology.degree[TOPOLOGY_MODEL] > 1)
        insert_tensor_parallel(&result);
    force_values(&result.final, options->world_size);
    warn_of_double_decay(&result.final, options->has_decay, &result.warnings);
    warn_of_a_rest(&result.final, options->steps, &result.warnings);
    *out = result;
    return 0;
}

static int at_least_two(int degree)
{
    return degree > 1 ? degree : 2;
}

static bool has_model_degree(const struct strategy *s)
{
    return s->hybrid_configs.mp_degree > 1 || (s->sharding && s->sharding_configs.mp_degree > 1) ||
           (s->tensor_parallel && s->tensor_parallel_configs.tensor_parallel_degree > 1);
}

/* Guess the axes from the units that are on: if there are several workers, each unit that divides
 * ranks gets some. */
static void guess_topology(const struct strategy *s, int world, struct topology *out)
{
    *out = (struct topology){.world = world};
    for (int i = 0; i < TOPOLOGY_AXES; i++) {
        out->degree[i] = 1;
        out->order[i] = (enum topology_axis)i;
    }
    if (s->sharding && world > 1)
        out->degree[TOPOLOGY_SHARDING] = at_least_two(s->sharding_configs.sharding_group_size);
    if (s->pipeline && world > 1)
        out->degree[TOPOLOGY_PIPELINE] = 2;
    if (has_model_degree(s))
        out->degree[TOPOLOGY_MODEL] = 2;
}

void select_roughly(const struct strategy *s, const struct select_options *options,
                    const char *path, struct select_result *out, struct topology *out_topology)
{
    struct fleet_errors ignored = {0}; /* strategy_select() has reported them */
    struct selection x = {.options = options, .path = "", .errors = &ignored};

    *out = (struct select_result){0};
    strategy_copy(&x.strategy, s);
    if (options->policy == STRATEGY_PADDLE)
        select_paddle(&x.strategy, options, out);
    else
        select_full(&x);
    merge_inside_sharding(&x);
    if (!select_knows_grid(options->unread, path) || !has_legal_degrees(&x.strategy) ||
        topology_build(&x.strategy, options->world_size, NULL, "", out_topology, &ignored) < 0)
        guess_topology(&x.strategy, options->world_size, out_topology);
    out->final = x.strategy; /* moved */
    if (options->policy == STRATEGY_FULL)
        list_applied(out);
    if (out_topology->degree[TOPOLOGY_MODEL] > 1 && !out->final.tensor_parallel)
        insert_tensor_parallel(out);
    fleet_errors_release(&ignored);
}
