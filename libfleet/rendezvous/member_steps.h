/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_RENDEZVOUS_MEMBER_STEPS_H
#define LIBFLEET_RENDEZVOUS_MEMBER_STEPS_H

/*
 * The last committed steps of a member, kept until the hub has said that it knows them, so that
 * each is reported although members and hubs come and go.
 *
 *  (1) Steps ascend; one that does not is a repetition and is dropped.
 *  (2) Never more than MEMBER_STEPS_MAX are kept, and MEMBER_EVALUATIONS_MAX evaluations; the
 *      oldest go first.
 */

#include "libfleet/rendezvous/message.h"

#define MEMBER_STEPS_MAX       4096
#define MEMBER_EVALUATIONS_MAX 64

/* A loss on held-out data. */
struct member_evaluation {
    int64_t step;
    double loss;
};

struct member_steps {
    struct message_step *ring; /* [MEMBER_STEPS_MAX], NULL while empty */
    size_t first, count;
    int64_t last;  /* newest step seen, 0 = none */
    int64_t acked; /* the hub knows all up to here */
    int64_t sent;  /* sent on this connection up to here */
    /* The same for evaluations, which come after their steps. */
    struct member_evaluation evaluations[MEMBER_EVALUATIONS_MAX];
    size_t evaluation_count;
    int64_t evaluation_last, evaluation_acked, evaluation_sent;
};

/* Free the ring; it is empty afterwards. */
void member_steps_release(struct member_steps *steps);

/* Keep a copy of a step that was committed, unless it is a repetition (1). */
void member_steps_add(struct member_steps *steps, const struct message_step *step);

/* The hub knows all up to `step`: they are not kept any longer. */
void member_steps_ack(struct member_steps *steps, int64_t step);
/* Forget that anything was sent since the last ack. */
void member_steps_rewind(struct member_steps *steps);
/* The next steps to send, at most MESSAGE_STEPS_MAX and without a hole, into `out`; returns how
 * many. Marks them sent. */
size_t member_steps_take(struct member_steps *steps, struct message_step out[MESSAGE_STEPS_MAX]);
/* The oldest step that the hub may not know, 0 = none. */
int64_t member_steps_oldest(const struct member_steps *steps);
bool member_steps_has_unsent(const struct member_steps *steps);

/* Keep an evaluation, unless it is a repetition (1). */
void member_steps_add_evaluation(struct member_steps *steps, int64_t step, double loss);
/* The hub knows all evaluations up to `step`. */
void member_steps_ack_evaluation(struct member_steps *steps, int64_t step);
/* The next evaluation to send, and mark it sent; NULL: none. */
const struct member_evaluation *member_steps_take_evaluation(struct member_steps *steps);

#endif
