/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CONTROL_H
#define AGENT_RUNTIME_CONTROL_H

/*
 * The trainer's side of the link to its agent: a thread that reads orders while the main thread
 * computes, and turns "abort" into an immediate stop of whatever runs.
 *
 * The main thread works in generations:
 *
 *     control_next(control, &assign)     wait for a generation newer than all before
 *     control_set_comm(control, comm)    from here an abort of it kills comm, too
 *     …train; every long call looks at control_stop() or waits on control_stop_fd()…
 *
 * Invariants
 *  (1) control_next() returns ever greater generations, always the newest one that was ordered.
 *  (2) The stop flag belongs to the generation control_next() returned last: set by an abort of it,
 *      by a newer assign, by the end of the link. It is never cleared within a generation. One that
 *      was aborted before it began is returned with the flag set: it ends at once, and says so.
 *  (3) Messages are sent whole, from any thread. If the link is gone, control_send() does
 *      nothing and the next control_next() reports it.
 */

#include <stdatomic.h>
#include <stdbool.h>

#include "agent/link.h"
#include "agent/runtime/comm/comm.h"

struct control;
struct fleet_error;

/* Start the reading thread. `link` is taken over and left closed. -EAGAIN: the system gives no
 * thread. */
int control_start(struct link *link, struct control **out, struct fleet_error *err);

/* End the thread, close the link. NULL is fine. */
void control_free(struct control *control);

enum control_order {
    CONTROL_ASSIGN, /* *out holds the new generation; release it with link_message_release() */
    CONTROL_LEAVE,  /* save and go: the pod is being stopped */
    CONTROL_DONE,   /* the job is over; all ranks have finished */
    CONTROL_GONE,   /* the agent hung up or broke the protocol */
};

/* Wait for something to do. LEAVE and DONE come before an ASSIGN that is waiting, too. */
enum control_order control_next(struct control *control, struct link_message *out);

/* True once the agent has asked to leave; looked at between steps. */
bool control_leaving(struct control *control);

/* True once the agent has asked for a checkpoint since the last call. */
bool control_take_checkpoint(struct control *control);

/* The stop flag and a descriptor that is readable while it is set (invariant 2). */
const atomic_bool *control_stop(const struct control *control);
int control_stop_fd(const struct control *control);

/* The communicator to abort with this generation; NULL before it is freed. */
void control_set_comm(struct control *control, struct comm *comm);

/* Send a message to the agent, from any thread (3). */
void control_send(struct control *control, const struct link_message *message);

#endif
