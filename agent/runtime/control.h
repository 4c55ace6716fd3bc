/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CONTROL_H
#define AGENT_RUNTIME_CONTROL_H

/*
 * The trainer's side of the link to its agent: a thread that reads orders while the main thread
 * computes, and turns "abort" into an immediate stop of all that runs.
 *
 * The main thread works in generations:
 *
 *     control_next(control, &assign)     wait for a generation newer than all before
 *     control_set_comm(control, comm)    from here on an abort of the generation ends comm, too
 *     …train; every long call looks at control_stop() or waits on control_stop_fd()…
 *
 * Invariants
 *  (1) control_next() returns the newest generation that was ordered. Each one is greater than all
 *      before.
 *  (2) The stop flag belongs to the generation that control_next() returned last. It is set by an
 *      abort of that generation, by a newer assign, and by the end of the link. It is never cleared
 *      within a generation. A generation that was aborted before it began is returned with the flag
 *      set: the trainer leaves it at once and reports that.
 *  (3) A message is sent as a whole, from any thread. If the link is gone, control_send() does
 *      nothing, and the next control_next() reports it.
 */

#include <stdatomic.h>
#include <stdbool.h>

#include "agent/link.h"
#include "agent/runtime/comm/comm.h"

struct control;
struct fleet_error;

/* Start the reading thread. *link moves to the new object; the caller's copy is left closed.
 * -EAGAIN: the system cannot create the thread; -EMFILE: the process has no free file. */
int control_start(struct link *link, struct control **out, struct fleet_error *err);

/* End the thread, close the link. NULL is fine. */
void control_free(struct control *control);

enum control_order {
    CONTROL_ASSIGN, /* *out holds the new generation; release it with link_message_release() */
    CONTROL_LEAVE,  /* save and exit: the pod is being stopped */
    CONTROL_DONE,   /* the job is over; all ranks have finished */
    CONTROL_GONE,   /* the agent hung up or broke the protocol */
};

/* Wait for the next order. LEAVE and DONE come first, even if an ASSIGN arrived earlier. */
enum control_order control_next(struct control *control, struct link_message *out);

/* True once the agent has ordered the trainer to leave. The trainer checks it between steps. */
bool control_leaving(struct control *control);

/* True if the agent has asked for a checkpoint since the last call. */
bool control_take_checkpoint(struct control *control);

/* The stop flag and a descriptor that is readable while it is set (invariant 2). */
const atomic_bool *control_stop(const struct control *control);
int control_stop_fd(const struct control *control);

/* The communicator that an abort of this generation ends. Set NULL before you free it. */
void control_set_comm(struct control *control, struct comm *comm);

/* Send a message to the agent, from any thread (3). */
void control_send(struct control *control, const struct link_message *message);

#endif
