/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SEARCH_STEP_TIME_H
#define LIBFLEET_AUTOPARALLEL_SEARCH_STEP_TIME_H

/*
 * How long one update of a plan takes, predicted: operators at measured rates, transfers by latency
 * and bandwidth of the link that a group lies on.
 *
 *   slot      seconds of one micro-batch on the stage that needs most: its layers, forward and
 *             backward; what tensor parallelism divides, divided by the model degree; and what it
 *             sends meanwhile
 *   pipeline  (M + P - 1) slots for M micro-batches and P stages, in 1F1B and F-then-B alike
 *   update    what is exchanged once an update, the sums of the micro-batches' gradients, then the
 *             optimizer over the elements that a rank owns. Counted as if nothing overlapped; the
 *             runtime hides a part of it behind the backward pass.
 *   transfer  links_transfer_seconds()
 *
 * If the ranks of a node are more than its processors, they take turns, links_share() ranks to a
 * processor. Then a step takes what all ranks do together, divided by the processors, but at least
 * the time that it would take if each rank had a processor of its own.
 */

#include <stdbool.h>

#include "libfleet/autoparallel/search/links.h"
#include "libfleet/plan/plan.h"

struct fleet_errors;

/* Seconds of a micro-batch's operators, by where they are; [0] whole on every rank of a
 * tensor-parallel group, [1] divided by it. */
struct step_work {
    double seconds[2];
};

/* Of one program at given rates; plans that differ in the division alone share it. */
struct step_profile {
    int64_t layers;
    struct step_work *work;      /* [layers] forward and backward */
    struct step_work front, end; /* what runs before the first and after the last layer */
    double update;               /* seconds of checks and optimizer, for all elements */
    double total;                /* seconds of a micro-batch on one device */
};

/* Release *out. */
void step_profile_build(const struct program *program, const struct links *links,
                        struct step_profile *out);
void step_profile_release(struct step_profile *profile);

enum step_part {
    STEP_COMPUTE,  /* operators of M micro-batches on the slowest stage */
    STEP_MODEL,    /* sent inside micro-batches: tensors, sequences, stages 2 and 3 */
    STEP_STAGES,   /* sent between stages */
    STEP_BUBBLE,   /* stages that wait for the first and last micro-batches */
    STEP_EXCHANGE, /* gradients and parameters, once an update */
    STEP_UPDATE,   /* sums of gradients, and the optimizer */
    STEP_PARTS,
};

struct step_time {
    double seconds[STEP_PARTS];
    double total;
};

/* `profile` is that of the plan's program. */
void step_time_of(const struct plan *plan, const struct step_profile *profile,
                  const struct links *links, struct step_time *out);

/* That of the job that `request` asks for; it has a number of ranks. Planned as a draft, in which a
 * pipeline is a formula. -EINVAL with errors appended: plan_build(), or no size of the model. */
int step_time_predict(const struct plan_request *request, const struct links *links,
                      struct step_time *out, struct fleet_errors *errors);

/* Seconds of the operators of one micro-batch on the slowest of `stages` stages. */
double step_slot_seconds(const struct step_profile *profile, int stages, int model_ranks);

/* Seconds that the ranks which share tensors or sequences send in one micro-batch of the whole
 * model, by their axes (bits of OP_GROUP_CELL), on the links inside of a node and between. */
void step_cell_seconds(const struct plan *plan, const struct links *links,
                       double seconds[OP_GROUP_CELL + 1][2]);

/* Seconds in which a rank adds up the gradients of `runs` micro-batches: it reads two sums and
 * writes one, at the rate of the optimizer's memory. */
double step_adding_seconds(const struct links *links, double elements, double runs);

const char *step_part_name(enum step_part part);

#endif
