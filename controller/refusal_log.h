/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONTROLLER_REFUSAL_LOG_H
#define CONTROLLER_REFUSAL_LOG_H

/*
 * Refused connections in the log. A client that reaches the hub's port can cause any number of
 * refusals, so the first one is logged at once, and those of the next REFUSAL_LOG_MS together in
 * one line: how many for each reason, and the last one in full. Metrics have the exact numbers.
 */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "libfleet/rendezvous/hub_server.h"

#define REFUSAL_LOG_MS 60000

/* Fields are the module's; the last_… are of the last refusal. */
struct refusal_log {
    uv_timer_t timer; /* runs while lines are held back */
    void (*write)(const struct refusal_log *log);
    uint64_t counts[HUB_REFUSALS], total; /* since the last line */
    char last_job[256], last_uid[80], last_peer[64], last_reason[512];
};

/* Lines go to `write`; NULL = the program's log. */
void refusal_log_init(struct refusal_log *log, uv_loop_t *loop,
                      void (*write)(const struct refusal_log *log));
/* Write the lines that are held back. The timer must be closed before the loop is; the memory stays
 * the caller's. */
void refusal_log_close(struct refusal_log *log);

void refusal_log_add(struct refusal_log *log, const struct hub_server_refusal *refusal);

/* "wrong_token=812 bad_request=3": those that occurred, the most frequent first. */
struct fleet_strbuf;
void refusal_log_print_counts(const struct refusal_log *log, struct fleet_strbuf *out);

#endif
