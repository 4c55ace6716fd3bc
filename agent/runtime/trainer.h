/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_TRAINER_H
#define AGENT_RUNTIME_TRAINER_H

/*
 * One rank of a job: what main.c opens, elastic.c joins to a generation and train.c steps. `err`
 * may not be NULL anywhere here.
 *
 * An update is the unit of commitment: the k batches of gradient_merge, else one batch.
 * Updates count from 1; update u holds steps (u-1)·k + 1 … min(u·k, steps). The last one may be
 * incomplete: its losses are computed, but it does not change the weights.
 *
 * What must hold between calls:
 *  (1) `committed` updates are in the state, all of them and nothing else.
 *  (2) voted == committed + 1 means: state.slots[0] holds the complete reduced gradient of update
 *      `voted`, the check section has run over it, and this rank's vote for it may have been seen.
 *      Where ranks have gradients of their own (localsgd, dgc), it holds that, and `gradient` with
 *      net.messages what else the commit needs.
 *  (3) The state is changed by update_commit() and by receiving a whole one (elastic.c), only. It
 *      is the flat spaces, the ledger, and the counts here.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/backend/cpu/backend_level.h"
#include "agent/runtime/backend/registry.h"
#include "agent/runtime/comm/comm.h"
#include "agent/runtime/control.h"
#include "agent/runtime/data/prefetch.h"
#include "agent/runtime/diagnose.h"
#include "agent/runtime/exchange.h"
#include "agent/runtime/executor/executor.h"
#include "agent/runtime/leaf_range.h"
#include "agent/runtime/ledger.h"
#include "agent/runtime/placement.h"
#include "agent/runtime/report.h"
#include "agent/runtime/running.h"
#include "agent/runtime/save.h"
#include "agent/runtime/share.h"
#include "agent/runtime/state.h"
#include "libfleet/plan/plan.h"
#include "libfleet/strategy/strategy_spec.h"
#include "libfleet/training/training.h"

struct evaluation;
struct fleet_error;

#define TRAINER_NO_STATE (-1) /* `committed` of a rank that has nothing yet */

/* What is trained; fixed once trainer_open() has succeeded, but for the plan's numbers of ranks. */
struct trainer_job {
    struct training_config config;
    struct strategy_spec strategy;
    struct plan plan;
    int inputs, targets;       /* input variables: token ids or images; next tokens or labels */
    int64_t bucket_elements;   /* of the largest exchange */
    int64_t message_words;     /* dgc: of a rank's largest message; 0 = nothing is compressed */
    int64_t micro_batches;     /* of one batch */
    int64_t merge;             /* batches of a complete update */
    int64_t updates;           /* of the whole job, an incomplete last one included */
    int64_t complete_updates;  /* of the whole job */
    struct ledger_rules rules; /* what becomes of a gradient */
    int64_t row;               /* floats that a leaf leaves: its loss, its statistics */
    bool has_buddies;          /* runPolicy.elastic.replicas */
    int threads;               /* compute threads, 0 = what the CPU quota allows */
    const char *uid;           /* of the environment; "" if unknown */
    char *name;                /* for people */
    cJSON *origin;             /* what checkpoints say of the job: origin.h */
    uint8_t digest[FLEET_SHA256_SIZE]; /* of program and data: ranks must agree on it */
};

struct trainer_data {
    struct dataset *dataset;
    struct sampler sampler;
    struct prefetch *prefetch;     /* reads the dataset ahead, in the sampler's order */
    struct evaluation *evaluation; /* of held-out data; NULL = none is wanted */
};

/* What runs the program, and whose memory the state is. */
struct trainer_device {
    const struct backend_kind *kind;
    struct backend *memory_backend; /* kept whatever the level */
    struct backend *backend;        /* at the generation's level; NULL before the first one */
    struct executor *executor;      /* on `backend` */
};

/* The generation: its members, and since when they train together. */
struct trainer_generation {
    struct fleet_generation id;
    struct fleet_lineage lineage;
    int rank, world;
    int state_world; /* ranks of the generation that our state is of, 0 = we have none */
    enum fleet_isa level;
    struct leaf_range range;      /* of a complete update */
    struct leaf_range last_range; /* of an incomplete last update; no leaves if there is none */
    int failed_rank;              /* the peer that was lost first, -1 = none known */
    bool first_step_pending;      /* the generation has not committed an update yet */
};

struct trainer_net {
    int listener, port; /* data connections are accepted here */
    struct comm *comm;  /* NULL between generations */
    struct exchange_groups groups;
    uint32_t *messages; /* of dgc, of all ranks */
    size_t messages_bytes;
};

/* What slot 0 holds: known before the vote; the commit may come in the next generation. */
struct trainer_gradient {
    double averaged; /* leaves over which it is the sum that is to be averaged */
    bool is_local;   /* the ranks' slots differ: there is no gradient of the whole job */
    struct run_messages messages;
};

/* How far the job is: what becomes part of the state, and what leads to it. */
struct trainer_progress {
    int64_t committed; /* updates, or TRAINER_NO_STATE */
    int64_t voted;     /* see (2) */
    bool voted_finite; /* the gradient that was voted for has no inf or nan */
    int replicas;      /* that have shared the update at work; a commit may come after them */
    struct trainer_gradient gradient; /* that was voted for */
    int64_t averaged;        /* update after which all ranks held the same parameters (average.h) */
    bool is_copy;            /* our parameters were received, and not averaged since */
    int contributors;        /* ranks whose parameters the next average is of, 0 = all */
    int64_t viewed;          /* update whose mean of parameters lies in slot 0, 0 = none */
    struct ledger *ledger;   /* of the committed updates */
    struct running running;  /* statistics that micro-batches leave */
    float *leaves;           /* [micro_batches · merge][row] of the update at work */
    float *committed_leaves; /* the same of the newest committed update, complete */
    void *vote_workspace;
    enum ledger_verdict verdict; /* on the newest committed update */
    double *batch_losses;        /* [merge] of the newest committed update */
};

struct trainer_health {
    char diagnosis[DIAGNOSE_TEXT_SIZE]; /* why voted_finite is false, "" = not looked into */
};

struct trainer {
    struct trainer_job job;
    struct trainer_data data;
    struct trainer_device device;
    struct trainer_generation generation;
    struct trainer_net net;
    struct placement placement; /* of the memory in `state` */
    struct share share;
    struct state state;
    struct trainer_progress progress;
    struct trainer_health health;
    struct trainer_report report;
    struct trainer_save save;
    struct control *control; /* to the agent */
};

/*
 * Read the job file, open the data, lay out the program, listen. Everything that can be wrong with
 * the job is found here: a failure is permanent, a restart cannot help.
 */
int trainer_open(struct trainer *trainer, const char *job_file, struct fleet_error *err);
void trainer_close(struct trainer *trainer);

/* Derive from the plan what the job knows of it. -EINVAL: data that do not fit the model; another
 * number of batches an update than that of the state that the trainer has. */
int trainer_follow_plan(struct trainer *trainer, struct fleet_error *err);

/* Steps that `updates` committed updates hold. */
int64_t trainer_steps(const struct trainer *trainer, int64_t updates);

/* Batches of `update`, and whether they are all k: an incomplete one does not change the weights.
 * */
int64_t trainer_batches(const struct trainer *trainer, int64_t update);
bool trainer_is_complete(const struct trainer *trainer, int64_t update);

/* Tell the agent that a phase of joining or leaving a generation is complete. */
void trainer_announce(struct trainer *trainer, enum fleet_phase phase);

/* Tell the agent something worth showing: what is odd, or a fact. */
void trainer_warn(struct trainer *trainer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void trainer_note(struct trainer *trainer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* When a collective that begins now gives up, monotonic ms: far beyond the longest step. */
double trainer_deadline_ms(const struct trainer *trainer);

#endif
