/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_SERVER_INTERNAL_H
#define DISTRIBUTED_PS_SERVER_INTERNAL_H

/*
 * A server of fleet_ps.h: one thread with one loop. Its files, for them alone:
 *
 *     server.c       start, the loop, end
 *     connection.c   connections: reads and writes frames
 *     serve.c        carries out requests, writes snapshots
 *     step.c         steps and barriers, where the server waits for all workers
 *
 * A step s in sync mode:
 *
 *     each worker pushes ──▶ the server keeps the gradients in worker.kept
 *     each worker sends PS_END ──▶ when all have sent it, the server answers each PS_END
 *     first frame of step s + 1 ──▶ the server applies the sums of step s; step s + 1 begins
 *
 *  (1) If a worker has the answers to PS_END from all servers, then all servers have all gradients
 *      of step s. So no server applies step s before every server can.
 *  (2) If a frame of step s + 1 comes before all workers have ended step s, it waits. Its
 *      connection is parked: the server reads nothing more from it.
 *  (3) A push for an older step, or after the worker's PS_END of the step, is a repetition. It has
 *      no effect.
 *  (4) The server writes a snapshot directly after it has applied a step, when it keeps no
 *      gradients.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "distributed/ps/file.h"
#include "distributed/ps/frame.h"
#include "distributed/ps/proof.h"
#include "distributed/ps/wire.h"
#include "libfleet/base/strbuf.h"

#define PS_RETIRED 8 /* processes that lost their place, remembered for each worker */

enum ps_connection_state {
    PS_UNPROVEN,
    PS_PROVEN
};

struct ps_connection {
    struct ps_wire wire;
    enum ps_connection_state state;
    int worker; /* -1: none yet */
    uint8_t nonce[PS_NONCE_SIZE];
    uint8_t head[PS_NONCE_SIZE + PS_PROOF_SIZE]; /* a proof, or the header of a frame */
    size_t head_used;
    struct ps_header header;
    uint8_t *payload;
    size_t payload_used, payload_room;
    bool is_parked, is_broken;
    struct fleet_strbuf out;
    size_t out_at; /* bytes of `out` that were written */
};

/* A push of the current step, which is not applied yet. The list is in the order of arrival. */
struct ps_kept {
    struct ps_header header;
    uint8_t *payload;
    struct ps_kept *next;
};

struct ps_worker {
    struct ps_connection *connection; /* NULL: not connected */
    uint64_t process;                 /* the process that has this worker's place; 0: none yet */
    uint64_t retired[PS_RETIRED];     /* processes that had it before */
    uint64_t sequence;                /* of the last push that was carried out */
    bool has_stopped;                 /* it sent PS_STOP */
    bool has_ended;                   /* it ended the current step */
    uint64_t end_sequence;            /* of a PS_END without an answer yet; 0: none */
    uint64_t barrier_sequence;        /* of a PS_BARRIER without an answer yet; 0: none */
    int barrier;                      /* number of barriers before that one */
    double deadline;                  /* of both answers, monotonic ms */
    struct ps_kept *kept, **kept_end;
};

struct fleet_server {
    int index, servers, workers;
    struct fleet_server_options options;
    char *snapshot_folder;
    struct ps_key key;
    uint64_t process;
    int listener;
    int mode; /* of all workers; -1: none has come yet */
    struct ps_connection **connections;
    int connection_count, connections_max;
    struct ps_worker *worker; /* [workers] */
    struct ps_table *tables[FLEET_PS_TABLES_MAX];
    int64_t step;          /* the current step, from 0 */
    int64_t updates;       /* pushes that were carried out */
    int64_t last_snapshot; /* step (sync mode) or updates at the last snapshot */
    int barriers;          /* barriers that are over */
    double quiet_since;    /* monotonic ms since when no worker is connected; 0: one is */
};

/* ---- connection.c ---- */

/* Accept the connections that wait at the listener. */
void ps_connection_accept(struct fleet_server *server);

/* Read and serve the frames that came. Marks the connection as broken if it has ended. */
void ps_connection_read(struct fleet_server *server, struct ps_connection *c);

/* Send as much of the output as the socket takes. */
void ps_connection_write(struct ps_connection *c);

/* Serve the frame of a parked connection. If it need not wait any more, read on. */
void ps_connection_resume(struct fleet_server *server, struct ps_connection *c);

/* Append the answer to frame `sequence` to the output. The loop sends it. */
void ps_answer(struct ps_connection *c, uint64_t sequence, const void *data, size_t bytes);
void ps_answer_error(struct ps_connection *c, uint64_t sequence, const struct fleet_error *err);

/* Append an answer whose result has `bytes` bytes. Returns the place of the result, which the
 * caller fills before anything else is appended. */
void *ps_answer_room(struct ps_connection *c, uint64_t sequence, size_t bytes);

void ps_connection_free(struct ps_connection *c);

/* ---- serve.c ---- */

/* Carry out the frame of `c`. False: the frame must wait (2). */
bool ps_serve(struct fleet_server *server, struct ps_connection *c);

/* Write a snapshot if snapshot_every steps or pushes have passed since the last one. */
void ps_snapshot(struct fleet_server *server);

/* The server as a file, which borrows from the server. `worker` has room for all workers. */
struct ps_file ps_server_file(struct fleet_server *server, struct ps_file_worker *worker);

/* ---- step.c ---- */

/* Make `step` the current step: apply the sums of the step before. False: not all workers have
 * ended that step. */
bool ps_step_advance(struct fleet_server *server, int64_t step);

/* Continue with `step` after steps were lost: drop all kept gradients, answer each waiting
 * PS_END. */
void ps_step_adopt(struct fleet_server *server, int64_t step);

/* Keep a push until the step is complete. Takes the payload. -ENOMEM */
int ps_step_keep(struct ps_worker *worker, const struct ps_header *header, uint8_t *payload,
                 struct fleet_error *err);
/* Drop the worker's kept pushes. */
void ps_step_drop(struct ps_worker *worker);

/* The worker ends the step of `header`, or enters a barrier. The server answers when all workers
 * have done so, and at `deadline` with an error that names those that have not. */
void ps_step_end(struct fleet_server *server, struct ps_worker *worker,
                 const struct ps_header *header, double deadline);
void ps_barrier_enter(struct fleet_server *server, struct ps_worker *worker,
                      const struct ps_header *header, double deadline);

/* Answer the workers whose deadline is over. Returns the next deadline, 0 if there is none. */
double ps_step_timeouts(struct fleet_server *server, double now);

#endif
