/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/autoparallel/search/links.h"

#include <math.h>

#include "libfleet/base/limits.h"
#include "libfleet/program/program.h"

#define COMPUTE(member) offsetof(struct links_compute, member)
#define LINK(member)    offsetof(struct links_link, member)
#define LINKS(member)   offsetof(struct links, member)

#define RATE(field, at, text)                                                               \
    {                                                                                       \
        .name = (field), .kind = FLEET_FIELD_NUMBER, .flags = FLEET_REQUIRED | FLEET_ABOVE, \
        .offset = (at), .min = 0, .description = (text)                                     \
    }

static const struct fleet_field compute_fields[] = {
    RATE("matrixFlops", COMPUTE(flops[LINKS_MATRIX]), "Operations a second of matrix products."),
    RATE("attentionFlops", COMPUTE(flops[LINKS_ATTENTION]), "Operations a second of attention."),
    RATE("convolutionFlops", COMPUTE(flops[LINKS_CONVOLUTION]),
         "Operations a second of convolutions."),
    RATE("bytesPerSecond", COMPUTE(bytes), "Bytes a second of all other operators."),
    {0},
};

static const struct fleet_object compute_type = {
    .name = "compute",
    .description = "What one device computes.",
    .fields = compute_fields,
    .size = sizeof(struct links_compute),
};

static const struct fleet_field link_fields[] = {
    {.name = "latencySeconds",
     .kind = FLEET_FIELD_NUMBER,
     .flags = FLEET_REQUIRED | FLEET_MIN,
     .offset = LINK(latency),
     .min = 0,
     .description = "Seconds that an operation over two ranks takes without data."},
    RATE("bytesPerSecond", LINK(bytes), "Bytes a second that one rank sends."),
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

int links_decode(const cJSON *json, struct links *out, struct fleet_errors *errors)
{
    return fleet_object_decode(&links_type, json, "", out, errors);
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
    default:
        return LINKS_OTHER;
    }
}

const char *links_class_name(enum links_class class_)
{
    static const char *const names[] = {"matrix products", "attention", "convolutions",
                                        "other operators"};

    return names[class_];
}

double links_op_seconds(const struct links *links, const struct program *program,
                        const struct program_op *op)
{
    enum links_class class_ = links_class_of(op->kind);
    struct op_cost cost;
    double moved;

    op_cost(program, op, &cost);
    moved = cost.bytes / links->compute.bytes;
    return class_ == LINKS_OTHER ? moved : fmax(moved, cost.flops / links->compute.flops[class_]);
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
