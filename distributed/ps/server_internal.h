/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_SERVER_INTERNAL_H
#define DISTRIBUTED_PS_SERVER_INTERNAL_H

/*
 * A server: one thread, one loop. server.c begins and ends, connection.c reads and writes frames,
 * serve.c carries out requests, step.c has what waits for all workers: steps and barriers.
 *
 * Steps of sync mode
 *
 *     step s begins ── workers push: kept in worker.kept ── each PS_END ── all have ended: every
 *     PS_END is answered ── the first frame of step s + 1: the sums are applied, step s + 1 begins
 *
 *  (1) A worker that has the answer to PS_END from all servers knows that all servers have all
 *      gradients of step s. So no server applies step s before every server can.
 *  (2) A frame of step s + 1 that comes before all have ended step s waits: its connection is
 *      parked, and is read no further.
 *  (3) What a worker pushes after its PS_END of a step, or for an older step, is a repetition and
 *      has no effect.
 *  (4) A snapshot is written directly after a step was applied, when nothing is kept.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "distributed/ps/file.h"
#include "distributed/ps/frame.h"
#include "distributed/ps/proof.h"
#include "libfleet/base/strbuf.h"

#define PS_RETIRED 8

enum ps_connection_state {
    PS_UNPROVEN,
    PS_PROVEN
};

struct ps_connection {
    int fd;
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

/* Gradients of a step that are not applied yet, in the order in which they came. */
struct ps_kept {
    struct ps_header header;
    uint8_t *payload;
    struct ps_kept *next;
};

struct ps_worker {
    struct ps_connection *connection; /* NULL: not connected */
    uint64_t process, retired[PS_RETIRED];
    uint64_t sequence; /* of its last push that was carried out */
    bool has_stopped;
    bool has_ended;                          /* the step that is under way */
    uint64_t end_sequence, barrier_sequence; /* waits for the answer; 0: it does not */
    int barrier;                             /* with this number of barriers before */
    double deadline;                         /* of both, monotonic ms */
    struct ps_kept *kept, **kept_end;
};

struct fleet_server {
    int index, servers, workers;
    struct fleet_server_options options;
    char *snapshot_folder;
    uint8_t key[32];
    uint64_t process;
    int listener;
    int mode; /* of all workers; -1: none has come yet */
    struct ps_connection **connections;
    int connection_count, connections_max;
    struct ps_worker *worker; /* [workers] */
    struct ps_table *tables[FLEET_PS_TABLES_MAX];
    int64_t step, updates, last_snapshot; /* of step or updates */
    int barriers;                         /* that are over */
    double quiet_since;                   /* monotonic ms: no worker since; 0: there is one */
};

/* ---- connection.c ---- */

/* Accept what waits at the listener. */
void ps_connection_accept(struct fleet_server *server);

/* Read and serve frames; marks the connection broken at its end. */
void ps_connection_read(struct fleet_server *server, struct ps_connection *c);

void ps_connection_write(struct ps_connection *c);

/* Serve the frame for which it was parked, and what came behind it. */
void ps_connection_resume(struct fleet_server *server, struct ps_connection *c);

/* The answer to the frame `sequence`. It is written as soon as possible. */
void ps_answer(struct ps_connection *c, uint64_t sequence, const void *data, size_t bytes);
void ps_answer_error(struct ps_connection *c, uint64_t sequence, const struct fleet_error *err);

/* Room for the result of a frame in the output: the answer is complete then. */
void *ps_answer_room(struct ps_connection *c, uint64_t sequence, size_t bytes);

void ps_connection_free(struct ps_connection *c);

/* ---- serve.c ---- */

/* Carry out the frame of `c`. False: it must wait (2). */
bool ps_serve(struct fleet_server *server, struct ps_connection *c);

/* Write a snapshot if it is time. */
void ps_snapshot(struct fleet_server *server);

/* The server as a file; `worker` has room for all workers. */
struct ps_file ps_server_file(struct fleet_server *server, struct ps_file_worker *worker);

/* ---- step.c ---- */

/* Make `step` the step under way, if all have ended the one before. False: they have not. */
bool ps_step_advance(struct fleet_server *server, int64_t step);

/* Steps were lost: `step` is under way now. What was kept is dropped, waiting ends are answered. */
void ps_step_adopt(struct fleet_server *server, int64_t step);

/* Keep gradients until the step is complete; takes the payload. */
int ps_step_keep(struct ps_worker *worker, const struct ps_header *header, uint8_t *payload,
                 struct fleet_error *err);
void ps_step_drop(struct ps_worker *worker);

void ps_step_end(struct fleet_server *server, struct ps_worker *worker,
                 const struct ps_header *header, double deadline);
void ps_barrier_enter(struct fleet_server *server, struct ps_worker *worker,
                      const struct ps_header *header, double deadline);

/* Answer those whose time is over. Returns the next deadline, 0 if there is none. */
double ps_step_timeouts(struct fleet_server *server, double now);

#endif
