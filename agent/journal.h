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
    double assigned_ms;   /* when the trainers got the newest generation; 0 = none yet */
};

/* An order of the hub. */
void journal_order(struct journal *journal, const struct member_action *action, double now_ms);

/* A message of a trainer of this pod. */
void journal_message(struct journal *journal, int local_rank, const struct link_message *message,
                     double now_ms);

#endif
