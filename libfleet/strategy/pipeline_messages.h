/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_PIPELINE_MESSAGES_H
#define LIBFLEET_STRATEGY_PIPELINE_MESSAGES_H

/*
 * The actions of a pipeline stage, in their order. An action either runs a pass or exchanges
 * messages with the stage's neighbours. The messages of one action are posted together. The action
 * ends when all of them are complete.
 *
 * One chunk: the stage receives the inputs of a pass right before the pass, and sends the results
 * right after it. If a forward pass and a backward pass follow each other, in either order, one
 * action sends and receives: two neighbours that both send first would wait for each other. If two
 * passes of the same kind follow each other, the stage first sends, then receives.
 *
 * Several chunks: the stages form a ring, in which these rules would deadlock. After the warm-up
 * passes the stage runs one forward and one backward pass in turn. After each such pair one action
 * sends both results and receives the inputs of the next pair (Narayanan and others, 2104.04473).
 *
 * A test runs the actions of all stages, for every shape up to eight stages. Its sends block until
 * the receiver takes the message.
 */

#include "libfleet/strategy/pipeline_schedule.h"

struct pipeline_message {
    bool is_receive;
    struct pipeline_step step; /* the pass that made the data; receive: that will read the data */
};

#define PIPELINE_MESSAGES_MAX 4

struct pipeline_action {
    int message_count; /* 0: the action runs the pass `step` */
    struct pipeline_message messages[PIPELINE_MESSAGES_MAX];
    struct pipeline_step step; /* only if message_count is 0 */
};

/* The actions of `stage`, in order: a heap array in *out, which the caller frees. Returns its
 * length. Out of memory aborts, here and in pipeline_copies(). */
size_t pipeline_actions(const struct pipeline_shape *shape, int stage,
                        struct pipeline_action **out);

/*
 * Each micro-batch in flight needs its own copy of the activation memory. copies[m], for m in
 * [0, M), gets the number of the copy that micro-batch m uses from its first action to its last:
 * the lowest number that is free. Returns the number of copies.
 */
int pipeline_copies(const struct pipeline_shape *shape, int stage, int *copies);

/* The virtual stage, chunk · P + stage, that sends the message to `stage` or receives it. */
int pipeline_neighbour(const struct pipeline_shape *shape, int stage,
                       const struct pipeline_message *message);

#endif
