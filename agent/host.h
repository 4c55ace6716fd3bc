/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_HOST_H
#define AGENT_HOST_H

/*
 * The functions of struct supervisor_host on real processes, descriptors and the connection to the
 * hub. It decides nothing.
 *
 *   link ─▶ supervisor_message           supervisor ─▶ functions ─▶ trainer_process, member_client
 *   end  ─▶ supervisor_exited            member_client ─▶ deliver ─▶ supervisor_order
 */

#include "agent/generation_channel.h"
#include "agent/journal.h"
#include "agent/loop.h"
#include "agent/own_files.h"
#include "agent/progress_channel.h"
#include "agent/settings.h"
#include "agent/supervisor.h"
#include "agent/trainer_process.h"
#include "libfleet/rendezvous/message.h"

struct fleet_error;
struct fleet_line_writer;
struct host;
struct member_client;

#define HOST_FLUSH_TIMEOUT_MS 1000.0 /* at its end, the agent waits so long for a reader */

struct host_child {
    struct host *host;
    int local_rank;
    struct trainer_process process;
    struct loop_watch *link_watch, *stream_watches[2];
    int listener;                     /* built-in: stays open over restarts; -1 = own trainer */
    struct progress_channel progress; /* own trainer: closed while it does not run */
    struct generation_channel generations; /* the same */
    struct loop_watch *progress_watch;
    bool is_leader_gone; /* own trainer, asked to end: others of its process group still run */
    int wait_status;     /* of its first process, once that has ended */
};

struct
    host { /* the owner sets settings, out, loop, files and supervisor; the rest begins as zero */
    struct settings settings;
    struct fleet_line_writer *out[2]; /* our stdout and stderr, of PID 1: it never waits for them */
    struct loop *loop;
    struct own_files files; /* of own trainers */
    struct supervisor *supervisor;
    struct host_child children[MESSAGE_PROCESSES_MAX];
    int ports[MESSAGE_PROCESSES_MAX]; /* where trainers listen */
    struct member_client *client;     /* NULL until the supervisor wants one */
    enum fleet_isa level;             /* of `client` */
    struct journal journal;
    double looked_ms;     /* when host_tick() was last called */
    int64_t memory_kills; /* by the kernel, reported to the supervisor (memory_events.h) */
};

/*
 * Before the supervisor is made: sockets for the trainers of settings.processes, no trainer runs
 * yet. -EINVAL: FLEET_ADDRESS is no address of this machine; -errno if it cannot be listened on. To
 * be closed either way.
 */
int host_open(struct host *host, struct fleet_error *err);

/* The functions for the supervisor, which borrows `host`. */
struct supervisor_host host_functions(struct host *host);

/* SIGCHLD: report trainers that have ended to the supervisor; reap all other children that PID 1
 * has inherited. */
void host_reap(struct host *host);

/* When to call host_tick() at the latest, which looks whether process groups have ended; INFINITY =
 * no need. */
double host_deadline(const struct host *host);
void host_tick(struct host *host);

/* Stop looking at trainers, close their sockets and the connection to the hub. Sends no signal. */
void host_close(struct host *host);

#endif
