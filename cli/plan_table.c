/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Prints a plan as text and tables. Each function prints one view, from the line at the start of a
 * run to all details.
 */
#include "cli/plan_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/plan/gpu_memory.h"
#include "libfleet/plan/plan_cost.h"
#include "libfleet/strategy/topology.h"

#define GROUPS_SHOWN 6 /* how many groups of an axis, and ranks of a group, are printed */

/* Number of trained elements, without the gaps of the layout. */
static int64_t count_parameters(const struct program *program)
{
    int64_t count = 0;

    for (int i = 0; i < program->var_count; i++)
        if (program->vars[i].role == PROGRAM_ROLE_PARAMETER)
            count += program_var_elements(&program->vars[i]);
    return count;
}

static void append_count(struct fleet_strbuf *out, double count)
{
    if (count >= 1e9)
        fleet_strbuf_appendf(out, "%.2f G", count / 1e9);
    else if (count >= 1e6)
        fleet_strbuf_appendf(out, "%.1f M", count / 1e6);
    else if (count >= 1e4)
        fleet_strbuf_appendf(out, "%.1f k", count / 1e3);
    else
        fleet_strbuf_appendf(out, "%.0f", count);
}

static void append_model(struct fleet_strbuf *out, const struct training_model *model)
{
    fleet_strbuf_append(out, training_model_text(model->name));
    if (model->name != TRAINING_MODEL_GPT && model->name != TRAINING_MODEL_LLAMA)
        return;
    fleet_strbuf_appendf(out, " of %" PRId64 " layers, width %" PRId64 ", %" PRId64 " heads",
                         model->layers, model->width, model->heads);
    if (model->kv_heads && model->kv_heads != model->heads)
        fleet_strbuf_appendf(out, " (%" PRId64 " of keys and values)", model->kv_heads);
    fleet_strbuf_appendf(out, ", context %" PRId64, model->context);
}

static void append_what(const struct fleetjob *job, const struct plan *plan,
                        struct fleet_strbuf *out)
{
    append_model(out, &job->spec.training.model);
    fleet_strbuf_append(out, ", ");
    append_count(out, (double)count_parameters(&plan->program));
    fleet_strbuf_append(out, " parameters");
}

static void append_how(const struct fleetjob *job, const struct plan *plan,
                       struct fleet_strbuf *out)
{
    const struct training_config *training = &job->spec.training;

    fleet_strbuf_appendf(out, "%" PRId64 " steps of %" PRId64, training->steps,
                         training->global_batch_size);
    if (plan->program.tokens_per_sample > 1)
        fleet_strbuf_appendf(out, " × %" PRId64 " tokens", plan->program.tokens_per_sample);
    else
        fleet_strbuf_append(out, " samples");
    fleet_strbuf_appendf(out, ", %s at %g, %s", training_optimizer_text(training->optimizer.name),
                         training->optimizer.learning_rate,
                         training_schedule_text(training->schedule.name));
}

void plan_table_headline(const struct fleetjob *job, const struct plan *plan,
                         struct fleet_strbuf *out)
{
    append_what(job, plan, out);
    fleet_strbuf_appendf(out, "\n%d ranks, ", plan->world);
    append_how(job, plan, out);
    fleet_strbuf_append_char(out, '\n');
}

void plan_table_summary(const struct fleetjob *job, const struct plan *plan,
                        struct fleet_strbuf *out)
{
    append_what(job, plan, out);
    fleet_strbuf_append(out, "; ");
    append_how(job, plan, out);
}

static void append_names(struct fleet_strbuf *out, const char *what,
                         const struct select_names *names, const char *none)
{
    fleet_strbuf_appendf(out, "  %-18s ", what);
    for (size_t i = 0; i < names->count; i++)
        fleet_strbuf_appendf(out, "%s%s", i ? ", " : "", names->items[i]);
    fleet_strbuf_appendf(out, "%s\n", names->count ? "" : none);
}

static void append_notes(struct fleet_strbuf *out, const char *what,
                         const struct select_notes *notes)
{
    for (size_t i = 0; i < notes->count; i++)
        fleet_strbuf_appendf(out, "  %-18s %s: %s\n", i ? "" : what, notes->items[i].knob,
                             notes->items[i].because);
}

static void append_degrees(struct fleet_strbuf *out, const struct topology *topology)
{
    bool any = false;

    fleet_strbuf_appendf(out, "  %-18s ", "parallel");
    for (int axis = TOPOLOGY_AXES - 1; axis >= 0; axis--)
        if (topology->degree[axis] > 1) {
            fleet_strbuf_appendf(out, "%s%s %d", any ? ", " : "",
                                 topology_axis_name((enum topology_axis)axis),
                                 topology->degree[axis]);
            any = true;
        }
    fleet_strbuf_append(out, any ? "\n" : "no\n");
}

static void append_snapshot(struct fleet_strbuf *out, const struct plan *plan)
{
    if (plan->snapshot_bytes == 0)
        return;
    fleet_strbuf_appendf(out, "  %-18s at most ", "checkpoint copy");
    fleet_strbuf_append_size(out, (double)plan->snapshot_bytes);
    fleet_strbuf_append(out, " more, while a rank writes one\n");
}

static void append_memory(struct fleet_strbuf *out, const struct plan *plan)
{
    bool any = false;

    fleet_strbuf_appendf(out, "  %-18s ", "bytes of a rank");
    fleet_strbuf_append_size(out, (double)plan_bytes_total(plan));
    fleet_strbuf_append(out, " (");
    for (int kind = 0; kind < PLAN_BYTES_COUNT; kind++)
        if (plan->bytes[kind] > 0) {
            fleet_strbuf_appendf(out, "%s%s ", any ? ", " : "",
                                 plan_bytes_name((enum plan_bytes)kind));
            fleet_strbuf_append_size(out, (double)plan->bytes[kind]);
            any = true;
        }
    fleet_strbuf_append(out, ")\n");
    append_snapshot(out, plan);
    fleet_strbuf_appendf(out, "  %-18s ", "sent by a rank");
    fleet_strbuf_append_size(out, plan->sent_bytes);
    fleet_strbuf_append(out, " an update\n");
}

static void append_selection(const struct plan *plan, struct fleet_strbuf *out)
{
    append_names(out, plan->own_trainer ? "asked for" : "applied", &plan->selection.applied,
                 plan->own_trainer ? "nothing" : "nothing but data parallelism");
    append_notes(out, "dropped", &plan->selection.dropped);
    append_notes(out, "without effect", &plan->selection.without_effect);
    append_notes(out, "note", &plan->selection.notes);
    append_notes(out, "warning", &plan->selection.warnings);
    append_names(out, "depends on workers", &plan->selection.depends_on_workers,
                 plan->own_trainer ? "not known: the trainer is your own program"
                                   : "no: the same weights on any number of workers");
    append_degrees(out, &plan->topology);
}

void plan_table_print(const struct plan *plan, struct fleet_strbuf *out)
{
    append_selection(plan, out);
    append_memory(out, plan);
}

/* ---- the slide ------------------------------------------------------------------------------- */

/* "{0 1 2 3} {4 5 6 7} …" of the groups of `axis` */
static void append_groups_of(struct fleet_strbuf *out, const struct topology *topology,
                             enum topology_axis axis)
{
    int *ranks = calloc((size_t)topology->degree[axis], sizeof(*ranks)), shown = 0;

    fleet_assert(ranks);
    for (int rank = 0; rank < topology->world && shown <= GROUPS_SHOWN; rank++) {
        int at[TOPOLOGY_AXES];

        topology_coordinates(topology, rank, at);
        if (at[axis] != 0)
            continue;
        (void)topology_group(topology, axis, rank, ranks);
        if (shown++ == GROUPS_SHOWN) {
            fleet_strbuf_append(out, " …");
            break;
        }
        fleet_strbuf_append(out, shown > 1 ? " {" : "{");
        for (int i = 0; i < topology->degree[axis] && i <= GROUPS_SHOWN; i++)
            if (i == GROUPS_SHOWN && topology->degree[axis] > GROUPS_SHOWN + 1)
                fleet_strbuf_appendf(out, " … %d", ranks[topology->degree[axis] - 1]);
            else
                fleet_strbuf_appendf(out, i ? " %d" : "%d", ranks[i]);
        fleet_strbuf_append_char(out, '}');
    }
    fleet_strbuf_append_char(out, '\n');
    free(ranks);
}

static void append_groups(struct fleet_strbuf *out, const struct topology *topology)
{
    const char *title = "groups";

    for (int axis = 0; axis < TOPOLOGY_AXES; axis++)
        if (topology->degree[axis] > 1) {
            const char *name = topology_axis_name((enum topology_axis)axis);
            fleet_strbuf_appendf(out, "  %-18s %-10s %d × %-4d ", title, name,
                                 topology->world / topology->degree[axis], topology->degree[axis]);
            append_groups_of(out, topology, (enum topology_axis)axis);
            title = "";
        }
}

static void append_stages(struct fleet_strbuf *out, const struct plan *plan)
{
    const char *title = "stages";

    for (int i = 0; i < plan->parts.division.stages && plan->parts.division.stages > 1; i++) {
        const struct plan_stage *stage = &plan->parts.stages[i];

        fleet_strbuf_appendf(out, "  %-18s %-10d layers %" PRId64 " to %" PRId64 ", ", title, i,
                             stage->first_layer, stage->end_layer - 1);
        append_count(out, (double)stage->elements);
        fleet_strbuf_append(out, " parameters of a rank\n");
        title = "";
    }
}

static void append_accumulation(struct fleet_strbuf *out, const struct plan *plan)
{
    int replicas = plan_replicas(plan), merge = plan->program.merge_steps;

    fleet_strbuf_appendf(out, "  %-18s %" PRId64 " of %d batch%s an update, over %d replica%s; ",
                         "micro-batches", plan->leaves, merge, merge > 1 ? "es" : "", replicas,
                         replicas > 1 ? "s" : "");
    fleet_strbuf_appendf(out, "%d live sum%s of gradients\n", plan->slots,
                         plan->slots > 1 ? "s" : "");
}

static void append_amount(struct fleet_strbuf *out, double bytes)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    if (isfinite(bytes))
        fleet_strbuf_append_size(&text, bytes);
    else
        fleet_strbuf_append_char(&text, '?');
    fleet_strbuf_appendf(out, "%10s", fleet_strbuf_text(&text));
}

static void append_bytes(struct fleet_strbuf *out, const char *title, const size_t *bytes,
                         const bool *by_formula)
{
    double total = 0;

    for (int kind = 0; kind < PLAN_BYTES_COUNT; kind++) {
        if (bytes[kind] == 0)
            continue;
        fleet_strbuf_appendf(out, "  %-18s %-12s", title, plan_bytes_name((enum plan_bytes)kind));
        append_amount(out, (double)bytes[kind]);
        fleet_strbuf_appendf(out, "   by the %s\n", by_formula[kind] ? "formula" : "program");
        total += (double)bytes[kind];
        title = "";
    }
    fleet_strbuf_appendf(out, "  %-18s %-12s", title, "total");
    append_amount(out, total);
    fleet_strbuf_append_char(out, '\n');
}

static void append_traffic(struct fleet_strbuf *out, const struct plan_traffic *traffic)
{
    const char *title = "sent by a rank";

    for (size_t i = 0; i < traffic->count; i++) {
        const struct plan_transfer *t = &traffic->items[i];

        fleet_strbuf_appendf(out, "  %-18s %-12s", title, transfer_kind_text(t));
        append_amount(out, t->bytes);
        fleet_strbuf_appendf(out, "   %s, over %s (%d ranks), %s; by the %s\n",
                             transfer_what_text(t), transfer_over_text(t), t->ranks,
                             transfer_when_text(t), t->from_program ? "program" : "formula");
        title = "";
    }
    if (traffic->count == 0)
        fleet_strbuf_appendf(out, "  %-18s nothing\n", title);
}

void plan_table_gpu(const struct plan *plan, struct fleet_strbuf *out)
{
    static const bool by_formula[PLAN_BYTES_COUNT];
    struct gpu_memory memory;

    gpu_memory_plan(plan, &memory);
    append_bytes(out, "of its GPU", memory.bytes, by_formula);
    fleet_strbuf_appendf(out, "  %-18s ", "beside a GPU");
    fleet_strbuf_append_size(out, (double)memory.host);
    fleet_strbuf_append(out, " of the host\n");
}

void plan_table_whole(const struct plan *plan, struct fleet_strbuf *out)
{
    append_selection(plan, out);
    append_groups(out, &plan->topology);
    if (plan->has_program) {
        append_stages(out, plan);
        append_accumulation(out, plan);
        append_bytes(out, "bytes of a rank", plan->bytes, plan->by_formula);
        append_snapshot(out, plan);
    } else {
        fleet_strbuf_appendf(out, "  %-18s not known without a model (spec.training)\n",
                             "bytes of a rank");
    }
    if (plan->own_trainer)
        fleet_strbuf_appendf(out,
                             "  %-18s what follows holds if it applies the strategy as the "
                             "built-in trainer would\n",
                             "own trainer");
    append_traffic(out, &plan->traffic);
    if (!plan->own_trainer)
        append_notes(out, "refused", &plan->cannot_run);
}

/* ---- one rank -------------------------------------------------------------------------------- */

static double number_at(const cJSON *json, const char *path)
{
    double value = 0;

    (void)fleet_json_opt_number(json, path, &value, NULL);
    return value;
}

static void append_rank_parts(struct fleet_strbuf *out, const cJSON *json)
{
    const char *schedule = NULL;

    (void)fleet_json_opt_string(json, "stage.schedule", &schedule, NULL);
    fleet_strbuf_appendf(out, "  %-18s %.0f of %.0f", "stage", number_at(json, "stage.index"),
                         number_at(json, "stage.of"));
    if (fleet_json_at(json, "stage.endLayer"))
        fleet_strbuf_appendf(out, ", layers %.0f to %.0f", number_at(json, "stage.firstLayer"),
                             number_at(json, "stage.endLayer") - 1);
    fleet_strbuf_append_char(out, '\n');
    if (schedule)
        fleet_strbuf_appendf(out, "  %-18s %s\n", "schedule", schedule);
    fleet_strbuf_appendf(out, "  %-18s %.0f of %.0f", "shard", number_at(json, "shard.index"),
                         number_at(json, "shard.of"));
    if (fleet_json_at(json, "shard.elements")) {
        fleet_strbuf_appendf(out, ", %.0f tensors of ", number_at(json, "shard.tensors"));
        append_count(out, number_at(json, "shard.elements"));
        fleet_strbuf_append(out, " parameters");
    }
    fleet_strbuf_appendf(out, "\n  %-18s %.0f from number %.0f on; %.0f partial sum%s\n",
                         "micro-batches", number_at(json, "microBatches.count"),
                         number_at(json, "microBatches.first"),
                         number_at(json, "microBatches.partialSums"),
                         number_at(json, "microBatches.partialSums") == 1 ? "" : "s");
}

void plan_table_rank(const struct plan *plan, int rank, struct fleet_strbuf *out)
{
    FLEET_AUTO_JSON cJSON *json = plan_encode_rank(plan, rank);
    struct plan_traffic traffic;
    size_t bytes[PLAN_BYTES_COUNT];
    bool by_formula[PLAN_BYTES_COUNT];
    int at[TOPOLOGY_AXES];
    const char *between = "";

    topology_coordinates(&plan->topology, rank, at);
    fleet_strbuf_appendf(out, "rank %d\n  %-18s ", rank, "coordinates");
    for (int axis = TOPOLOGY_AXES - 1; axis >= 0; axis--)
        if (plan->topology.degree[axis] > 1) {
            fleet_strbuf_appendf(out, "%s%s %d", between,
                                 topology_axis_name((enum topology_axis)axis), at[axis]);
            between = ", ";
        }
    fleet_strbuf_append(out, *between ? "\n" : "the only rank\n");
    append_rank_parts(out, json);
    plan_cost_traffic(plan, at[TOPOLOGY_PIPELINE], plan_replica_of(plan, rank), &traffic);
    if (plan->has_program) {
        plan_cost_bytes(plan, at[TOPOLOGY_PIPELINE], at[TOPOLOGY_SHARDING], bytes, by_formula);
        append_bytes(out, "bytes", bytes, by_formula);
    }
    append_traffic(out, &traffic);
}
