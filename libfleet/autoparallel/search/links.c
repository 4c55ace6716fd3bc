/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/search/links.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/limits.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/program/program.h"

#define COMPUTE(member) offsetof(struct links_compute, member)
#define LINK(member)    offsetof(struct links_link, member)
#define LINKS(member)   offsetof(struct links, member)
#define GROUP(member)   offsetof(struct links_group, member)

#define RATE(field, at, text)                                                               \
    {                                                                                       \
        .name = (field), .kind = FLEET_FIELD_NUMBER, .flags = FLEET_REQUIRED | FLEET_ABOVE, \
        .offset = (at), .min = 0, .description = (text)                                     \
    }

/* Left out: the rate of all other operators. */
#define MORE(field, class_, text)                                                 \
    {                                                                             \
        .name = (field), .kind = FLEET_FIELD_NUMBER, .flags = FLEET_ABOVE,        \
        .offset = COMPUTE(more[(class_)-LINKS_ACTIVATION]), .description = (text) \
    }

/* Left out: 0. */
#define SECONDS(field, required, at, text)                                            \
    {                                                                                 \
        .name = (field), .kind = FLEET_FIELD_NUMBER, .flags = (required) | FLEET_MIN, \
        .offset = (at), .description = (text)                                         \
    }
#define START(field, class_)                  \
    SECONDS(field, 0, COMPUTE(start[class_]), \
            "Seconds of each such operator, beside those of its work.")

static const struct fleet_field compute_fields[] = {
    RATE("matrixFlops", COMPUTE(flops[LINKS_MATRIX]), "Operations a second of matrix products."),
    RATE("attentionFlops", COMPUTE(flops[LINKS_ATTENTION]), "Operations a second of attention."),
    RATE("convolutionFlops", COMPUTE(flops[LINKS_CONVOLUTION]),
         "Operations a second of convolutions."),
    RATE("bytesPerSecond", COMPUTE(bytes), "Bytes a second of all other operators."),
    MORE("activationBytes", LINKS_ACTIVATION, "Bytes a second of gelu, relu, silu, swiglu."),
    MORE("normBytes", LINKS_NORM, "Bytes a second of norms."),
    MORE("lossBytes", LINKS_LOSS, "Bytes a second of softmax and cross entropy."),
    MORE("optimizerBytes", LINKS_OPTIMIZER, "Bytes a second of optimizers and checks."),
    {.name = "weightBytes",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_ABOVE,
     .offset = COMPUTE(weight_bytes),
     .description = "Bytes a second of the weights that matrix products read and of the gradients "
                    "of weights that they write. Left out: matrixFlops covers them."},
    START("matrixSeconds", LINKS_MATRIX),
    START("attentionSeconds", LINKS_ATTENTION),
    START("convolutionSeconds", LINKS_CONVOLUTION),
    START("otherSeconds", LINKS_OTHER),
    START("activationSeconds", LINKS_ACTIVATION),
    START("normSeconds", LINKS_NORM),
    START("lossSeconds", LINKS_LOSS),
    START("optimizerSeconds", LINKS_OPTIMIZER),
    {0},
};

static const struct fleet_object compute_type = {
    .name = "compute",
    .description = "What one device computes.",
    .fields = compute_fields,
    .size = sizeof(struct links_compute),
};

static const struct fleet_field group_fields[] = {
    {.name = "ranks",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED | FLEET_MIN | FLEET_MAX,
     .offset = GROUP(ranks),
     .min = 2,
     .max = FLEET_WORLD_MAX,
     .description = "Ranks of the group."},
    SECONDS("sumSeconds", FLEET_REQUIRED, GROUP(sum_seconds),
            "Seconds of an all-reduce without data."),
    RATE("sumBytesPerSecond", GROUP(sum_bytes), "Bytes a second that one rank sends in it."),
    SECONDS("sumRoundSeconds", 0, GROUP(sum_round_seconds),
            "Seconds of each of its rounds after the first: a large sum has two a chunk. Left out: "
            "0."),
    SECONDS("gatherSeconds", FLEET_REQUIRED, GROUP(gather_seconds),
            "Seconds of an all-gather without data."),
    RATE("gatherBytesPerSecond", GROUP(gather_bytes), "Bytes a second that one rank sends in it."),
    {0},
};

static const struct fleet_object group_type = {
    .name = "group",
    .description = "Collectives over one number of ranks.",
    .fields = group_fields,
    .size = sizeof(struct links_group),
};

static const struct fleet_field link_fields[] = {
    SECONDS("latencySeconds", FLEET_REQUIRED, LINK(latency),
            "Seconds that an operation over two ranks takes without data."),
    RATE("bytesPerSecond", LINK(bytes), "Bytes a second that one rank sends."),
    {.name = "groups",
     .kind = FLEET_FIELD_LIST,
     .flags = FLEET_INLINE,
     .offset = LINK(groups),
     .item = FLEET_FIELD_OBJECT,
     .object = &group_type,
     .count_max = LINKS_GROUPS_MAX,
     .description = "Collectives by number of ranks, in ascending order. Left out: they follow "
                    "from the latency and the bytes of two ranks."},
    {0},
};

static const struct fleet_object link_type = {
    .name = "link",
    .description = "A link between ranks.",
    .fields = link_fields,
    .size = sizeof(struct links_link),
};

static const struct fleet_field links_fields[] = {
    {.name = "devicesPerNode",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_REQUIRED | FLEET_MIN | FLEET_MAX,
     .offset = LINKS(devices_per_node),
     .min = 1,
     .max = FLEET_WORLD_MAX,
     .description = "Ranks of one machine."},
    RATE("memoryPerDevice", LINKS(memory), "Bytes of memory of one rank."),
    {.name = "processorsPerNode",
     .kind = FLEET_FIELD_INT,
     .flags = FLEET_MIN | FLEET_MAX,
     .offset = LINKS(processors_per_node),
     .min = 1,
     .max = FLEET_WORLD_MAX,
     .description = "Processors that the ranks of one machine share. If there are more ranks, "
                    "they take turns. Left out: each rank has what it needs."},
    {.name = "compute",
     .kind = FLEET_FIELD_OBJECT,
     .flags = FLEET_REQUIRED,
     .offset = LINKS(compute),
     .object = &compute_type,
     .description = "What one device computes."},
    {.name = "insideNode",
     .kind = FLEET_FIELD_OBJECT,
     .flags = FLEET_REQUIRED,
     .offset = LINKS(inside),
     .object = &link_type,
     .description = "Between ranks of one machine."},
    {.name = "betweenNodes",
     .kind = FLEET_FIELD_OBJECT,
     .flags = FLEET_REQUIRED,
     .offset = LINKS(between),
     .object = &link_type,
     .description = "Between ranks of different machines."},
    {0},
};

const struct fleet_object links_type = {
    .name = "links",
    .description = "What devices and the links between them can do.",
    .fields = links_fields,
    .size = sizeof(struct links),
};

static void check_order(const struct links_link *link, const char *name,
                        struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};

    for (size_t i = 1; i < link->groups.count; i++) {
        const struct links_group *group = &link->groups.items[i];

        if (group->ranks > group[-1].ranks)
            continue;
        fleet_strbuf_appendf(&path, "%s.groups[%zu].ranks", name, i);
        fleet_errors_add(errors, path.text,
                         "is %" PRId64 ", but must be greater than %" PRId64
                         " of the group before it",
                         group->ranks, group[-1].ranks);
        return;
    }
}

int links_decode(const cJSON *json, struct links *out, struct fleet_errors *errors)
{
    if (fleet_object_decode(&links_type, json, "", out, errors) < 0)
        return -EINVAL;
    check_order(&out->inside, "insideNode", errors);
    check_order(&out->between, "betweenNodes", errors);
    return errors->count > 0 ? -EINVAL : 0;
}

/* ---- time ------------------------------------------------------------------------------------ */

enum links_class links_class_of(enum op_kind kind)
{
    switch (kind) {
    case OP_LINEAR:
    case OP_LINEAR_GRAD:
    case OP_MATMUL:
        return LINKS_MATRIX;
    case OP_ATTENTION:
    case OP_ATTENTION_GRAD:
        return LINKS_ATTENTION;
    case OP_CONV2D:
    case OP_CONV2D_GRAD:
        return LINKS_CONVOLUTION;
    case OP_GELU:
    case OP_GELU_GRAD:
    case OP_RELU:
    case OP_RELU_GRAD:
    case OP_SILU:
    case OP_SILU_GRAD:
    case OP_SWIGLU:
    case OP_SWIGLU_GRAD:
        return LINKS_ACTIVATION;
    case OP_LAYER_NORM:
    case OP_LAYER_NORM_GRAD:
    case OP_RMS_NORM:
    case OP_RMS_NORM_GRAD:
    case OP_BATCH_NORM:
    case OP_BATCH_NORM_GRAD:
        return LINKS_NORM;
    case OP_SOFTMAX:
    case OP_SOFTMAX_GRAD:
    case OP_CROSS_ENTROPY:
    case OP_CROSS_ENTROPY_GRAD:
        return LINKS_LOSS;
    case OP_GRAD_NORM:
    case OP_TRUST_SQUARES:
    case OP_CHECK_FINITE:
        return LINKS_OPTIMIZER;
    default:
        return op_definition(kind)->is_optimizer ? LINKS_OPTIMIZER : LINKS_OTHER;
    }
}

const char *links_class_name(enum links_class class_)
{
    static const char *const names[] = {"matrix products", "attention",   "convolutions",
                                        "other operators", "activations", "norms",
                                        "losses",          "optimizers"};

    return names[class_];
}

double links_op_work(const struct program *program, const struct program_op *op)
{
    struct op_cost cost;

    op_cost(program, op, &cost);
    return links_class_of(op->kind) < LINKS_OTHER ? cost.flops : cost.bytes;
}

static double bytes_if(const struct program *program, int var, enum program_role role)
{
    return var == PROGRAM_NONE || program->vars[var].role != role
               ? 0
               : (double)program_var_bytes(&program->vars[var]);
}

double links_op_weights(const struct program *program, const struct program_op *op)
{
    bool is_matrix = links_class_of(op->kind) == LINKS_MATRIX;
    double bytes = 0;

    for (int i = 0; is_matrix && i < op->input_count; i++)
        bytes += bytes_if(program, op->inputs[i], PROGRAM_ROLE_PARAMETER);
    for (int i = 0; is_matrix && i < op->output_count; i++)
        bytes += bytes_if(program, op->outputs[i], PROGRAM_ROLE_GRADIENT);
    return bytes;
}

double links_op_seconds(const struct links *links, const struct program *program,
                        const struct program_op *op)
{
    const struct links_compute *compute = &links->compute;
    enum links_class class_ = links_class_of(op->kind);
    double rate = compute->bytes, start = compute->start[class_];
    struct op_cost cost;

    op_cost(program, op, &cost);
    if (compute->weight_bytes > 0)
        start += links_op_weights(program, op) / compute->weight_bytes;
    if (class_ < LINKS_OTHER)
        return start + fmax(cost.bytes / rate, cost.flops / compute->flops[class_]);
    if (class_ > LINKS_OTHER && compute->more[class_ - LINKS_ACTIVATION] > 0)
        rate = compute->more[class_ - LINKS_ACTIVATION];
    return start + cost.bytes / rate;
}

const struct links_link *links_between(const struct links *links, const struct topology *topology,
                                       unsigned int axes)
{
    int64_t stride = 1, span = 1; /* of the axis; ranks from the first to the last of a group */

    for (int i = 0; i < TOPOLOGY_AXES; i++) {
        enum topology_axis axis = topology->order[i];

        stride *= topology->degree[axis];
        if (axes & (1U << axis) && topology->degree[axis] > 1)
            span = stride;
    }
    /* A span that does not divide the node leaves a group that lies across two. */
    return links->devices_per_node % span == 0 ? &links->inside : &links->between;
}

double links_share(const struct links *links, int world)
{
    double ranks = fmin((double)links->devices_per_node, world);

    if (links->processors_per_node == 0)
        return 1;
    return fmax(1, ranks / (double)links->processors_per_node);
}

/* ---- transfers ------------------------------------------------------------------------------- */

static bool is_sum(enum op_kind kind)
{
    return kind == OP_ALL_REDUCE || kind == OP_TREE_SUM || kind == OP_REDUCE_SCATTER ||
           kind == OP_REDUCE_TO;
}

static double rounds_of(enum op_kind kind, int ranks)
{
    double levels = ceil(log2(ranks));

    if (kind == OP_SEND)
        return 1;
    return kind == OP_ALL_REDUCE || kind == OP_TREE_SUM ? 2 * levels : levels;
}

/* Of two positive numbers, as far between them as `share` says. */
static double between(double from, double to, double share)
{
    return from + (to - from) * share;
}

/* A group of so many ranks, made of those that were measured. */
static struct links_group group_of(const struct links_link *link, int ranks)
{
    const struct links_group *items = link->groups.items, *low, *high;
    size_t i = 0, last = link->groups.count - 1;
    struct links_group group;
    double share;

    while (i < last && items[i].ranks < ranks)
        i++;
    low = &items[items[i].ranks >= ranks && i > 0 ? i - 1 : i];
    high = &items[i];
    group = *high;
    if (ranks > high->ranks) { /* more rounds */
        group.sum_seconds *= log2(ranks) / log2((double)high->ranks);
        group.sum_round_seconds *= log2(ranks) / log2((double)high->ranks);
        group.gather_seconds *= log2(ranks) / log2((double)high->ranks);
    }
    if (ranks >= high->ranks || low == high)
        return group;
    share = log2(ranks / (double)low->ranks) / log2((double)high->ranks / (double)low->ranks);
    group.sum_seconds = between(low->sum_seconds, high->sum_seconds, share);
    group.sum_round_seconds = between(low->sum_round_seconds, high->sum_round_seconds, share);
    group.sum_bytes = between(low->sum_bytes, high->sum_bytes, share);
    group.gather_seconds = between(low->gather_seconds, high->gather_seconds, share);
    group.gather_bytes = between(low->gather_bytes, high->gather_bytes, share);
    return group;
}

double links_transfer_seconds(const struct links_link *link, const struct plan_transfer *transfer)
{
    double calls = transfer->calls, bytes = transfer->bytes;
    struct links_group group;

    if (transfer->kind == OP_SEND || link->groups.count == 0 || transfer->ranks < 2)
        return calls * link->latency * rounds_of(transfer->kind, transfer->ranks) +
               bytes / link->bytes;
    group = group_of(link, transfer->ranks);
    if (!is_sum(transfer->kind))
        return calls * group.gather_seconds + bytes / group.gather_bytes;
    return calls * group.sum_seconds + fmax(0, transfer->rounds - calls) * group.sum_round_seconds +
           bytes / group.sum_bytes;
}
