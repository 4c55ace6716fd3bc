/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_JOURNAL_H
#define AGENT_JOURNAL_H

/*
 * The agent's lines in `kubectl logs`: the generation and the rank of this pod, the time until it
 * trained again, what was saved, why it left. Each fact is one line. Rank 0's trainer prints the
 * steps.
 *
 * From the first generation on each line has pod, rank (the lowest of this pod) and generation.
 *
 * The journal is called with each order of the hub and each message of a trainer. It decides
 * nothing and keeps only times.
 */

#include "agent/link.h"
#include "libfleet/rendezvous/member.h"

struct journal {
    const char *pod_name; /* borrowed; NULL = unknown */
    double assigned_ms;   /* when the newest generation was given to the trainers; 0 = none yet */
};

/* The hub wants something. */
void journal_order(struct journal *journal, const struct member_action *action, double now_ms);

/* A trainer of this pod said something. */
void journal_message(struct journal *journal, int local_rank, const struct link_message *message,
                     double now_ms);

#endif
