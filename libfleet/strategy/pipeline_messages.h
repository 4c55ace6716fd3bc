/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_PIPELINE_MESSAGES_H
#define LIBFLEET_STRATEGY_PIPELINE_MESSAGES_H

/*
 * What a stage of a pipeline does, one action after the other: it runs a pass, or it exchanges
 * messages with its neighbours. All messages of one action are posted together, and the action ends
 * when all of them have arrived.
 *
 * One chunk: a stage receives what a pass reads right before the pass, and sends what it has made
 * right behind it. Where a forward pass meets a backward pass, sending and receiving are one
 * action: two neighbours that both send first would wait for each other. Between two passes of one
 * kind it sends first, then it receives.
 *
 * Several chunks: the stages are a ring, which these rules would block. After the passes that fill
 * the pipeline, one forward and one backward pass run behind each other, and one action sends both
 * results and receives what the next two passes read (Narayanan and others, 2104.04473).
 *
 * A test runs the actions of all stages with messages that wait for their receiver, for every shape
 * up to eight stages.
 */

#include "libfleet/strategy/pipeline_schedule.h"

/* A send is named by the pass that has made it, a receive by the pass that will read it. */
struct pipeline_message {
    bool is_receive;
    struct pipeline_step step;
};

#define PIPELINE_MESSAGES_MAX 4

struct pipeline_action {
    int message_count; /* 0: a pass runs */
    struct pipeline_message messages[PIPELINE_MESSAGES_MAX];
    struct pipeline_step step;
};

/* Those of `stage`: a heap list in *out, which the caller frees. Returns its length. */
size_t pipeline_actions(const struct pipeline_shape *shape, int stage,
                        struct pipeline_action **out);

/*
 * The copy of the memory for activations that each micro-batch uses, from its first action to its
 * last one: copies[0 … M), the lowest number that is free. Returns the number of copies.
 */
int pipeline_copies(const struct pipeline_shape *shape, int stage, int *copies);

/* The virtual stage that a message comes from or goes to. */
int pipeline_neighbour(const struct pipeline_shape *shape, int stage,
                       const struct pipeline_message *message);

#endif
