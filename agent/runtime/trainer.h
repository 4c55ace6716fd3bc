/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_TRAINER_H
#define AGENT_RUNTIME_TRAINER_H

/*
 * One rank of a job. main.c opens it, elastic.c joins it to a generation, and train.c runs its
 * steps. `err` may not be NULL anywhere here.
 *
 * An update is the unit of commitment: the k batches of gradient_merge, else one batch. Updates
 * count from 1. Update u consists of the steps (u-1)·k + 1 … min(u·k, steps). The last one may be
 * incomplete: its losses are computed, but it does not change the weights.
 *
 * What must hold between calls:
 *  (1) `committed` updates are in the state, all of them and nothing else.
 *  (2) voted == committed + 1 means: state.slots[0] holds the complete reduced gradient of update
 *      `voted`, or what this rank holds of it by its placement. The check section has run over it,
 *      and other ranks may have this rank's vote for it. If each rank has a gradient of its own
 *      (localsgd, dgc), slots[0] holds the own gradient, and `gradient` and net.messages hold the
 *      other data that the commit needs.
 *  (3) The state is the flat spaces, the ledger, and the counts here. Only update_commit() and the
 *      receipt of a whole state (catch_up.c) change it.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/backend/cpu/backend_level.h"
#include "agent/runtime/backend/registry.h"
#include "agent/runtime/comm/comm.h"
#include "agent/runtime/control.h"
#include "agent/runtime/data/prefetch.h"
#include "agent/runtime/executor/executor.h"
#include "agent/runtime/join/placement.h"
#include "agent/runtime/ledger.h"
#include "agent/runtime/report.h"
#include "agent/runtime/save/save.h"
#include "agent/runtime/state.h"
#include "agent/runtime/step/diagnose.h"
#include "agent/runtime/step/exchange.h"
#include "agent/runtime/step/leaf_range.h"
#include "agent/runtime/step/running.h"
#include "agent/runtime/step/sample_log.h"
#include "agent/runtime/step/share.h"
#include "agent/runtime/step/stage.h"
#include "agent/runtime/strategy_files.h"
#include "libfleet/plan/plan.h"
#include "libfleet/strategy/cells.h"
#include "libfleet/strategy/strategy_spec.h"
#include "libfleet/training/training.h"

struct evaluation;
struct fleet_error;

#define TRAINER_NO_STATE (-1) /* `committed` of a rank that has nothing yet */

/* The job. trainer_open() sets it; later only the plan's number of ranks changes. */
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
    struct ledger_rules rules; /* the rules for a gradient that is not finite, and loss spikes */
    int64_t row;               /* floats of a leaf's result: its loss, its statistics */
    bool has_buddies;          /* runPolicy.elastic.replicas */
    bool encrypts;             /* runPolicy.dataEncryption */
    int threads;               /* compute threads, 0 = what the CPU quota allows */
    const char *uid;           /* of the environment; "" if unknown */
    char *name;                /* for logs and messages */
    struct strategy_files files;
    cJSON *origin;                     /* the job's record in checkpoints: origin.h */
    uint8_t digest[FLEET_SHA256_SIZE]; /* of program and data: must be equal on all ranks */
};

/* Files and folders that the job reads. */
enum trainer_input {
    TRAINER_INPUT_DATA,
    TRAINER_INPUT_VOCABULARY,
    TRAINER_INPUT_MERGES,
    TRAINER_INPUT_WEIGHTS,
    TRAINER_INPUTS,
};

struct trainer_data {
    struct dataset *dataset;
    char *copies[TRAINER_INPUTS]; /* of files in a store; NULL: it is in none */
    int locks[TRAINER_INPUTS];    /* while it is open the copy stays; -1: there is none */
    struct sampler sampler;
    struct prefetch *prefetch;     /* reads the dataset ahead, in the sampler's order */
    struct evaluation *evaluation; /* of held-out data; NULL = the job has none */
};

/* The back ends that run the program and hold the state's memory. */
struct trainer_device {
    const struct backend_kind *kind;
    struct backend *memory_backend; /* kept when the level changes */
    struct backend *backend;        /* at the generation's level; NULL before the first one */
    struct executor *executor;      /* on `backend` */
};

/* The generation that this rank has joined. */
struct trainer_generation {
    struct fleet_generation id;
    struct fleet_lineage lineage;
    int rank, world;
    struct cell_place place; /* of `rank` in the plan's grid */
    int replicas;
    int state_world; /* ranks of the generation that our state is of, 0 = we have none */
    enum fleet_isa level;
    struct leaf_range range;      /* of a complete update */
    struct leaf_range last_range; /* of an incomplete last update; no leaves if there is none */
    int failed_rank;              /* first peer that was lost, -1 = none known */
    bool is_joining;              /* agrees on the state, and may read a checkpoint */
    bool first_step_pending;      /* the generation has not committed an update yet */
};

struct trainer_net {
    int listener, port;              /* accepts data connections */
    enum comm_neighbours neighbours; /* how ranks of one machine reach each other */
    struct comm *comm;               /* NULL between generations */
    struct comm *cell;  /* of the ranks of our cell, by replicas; like `comm` otherwise */
    struct comm *alone; /* `cell` where it has one rank, else NULL */
    struct exchange_groups groups;
    uint32_t *messages; /* of dgc, of all ranks */
    size_t messages_bytes;
};

/* What slot 0 holds: known before the vote; the commit may come in the next generation. */
struct trainer_gradient {
    double averaged; /* leaves of the sum that becomes the average */
    bool is_local;   /* the ranks' slots differ: there is no gradient of the whole job */
    struct run_messages messages;
};

/* The progress of the job: the committed updates, and the update at work. */
struct trainer_progress {
    int64_t committed;                /* updates, or TRAINER_NO_STATE */
    int64_t voted;                    /* see (2) */
    bool voted_finite;                /* the gradient of update `voted` has no inf or nan */
    int64_t not_finite;               /* elements of it that are inf or nan, where it is counted */
    double norm;                      /* of the gradient in slot 0; 0 if it has none */
    int replicas;                     /* that computed the update at work; kept until its commit */
    struct trainer_gradient gradient; /* of update `voted` */
    int64_t averaged;        /* update after which all ranks held the same parameters (average.h) */
    bool is_copy;            /* our parameters were received, and not averaged since */
    int contributors;        /* ranks whose parameters the next average includes, 0 = all */
    int64_t viewed;          /* update whose mean of parameters is in slot 0, 0 = none */
    struct ledger *ledger;   /* of the committed updates */
    struct running running;  /* statistics of micro-batches */
    float *leaves;           /* [micro_batches · merge][row] of the update at work, host memory of
                                the back end */
    float *committed_leaves; /* the same for the newest committed update, complete */
    void *vote_workspace;
    enum ledger_verdict verdict; /* on the newest committed update */
    double *batch_losses;        /* [merge] of the newest committed update */
};

struct trainer_health {
    char diagnosis[DIAGNOSE_TEXT_SIZE]; /* why voted_finite is false, "" = no diagnosis made */
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
    struct trainer_stage stage; /* uses memory of `state` */
    struct trainer_progress progress;
    struct trainer_health health;
    struct trainer_report report;
    struct trainer_save save;
    struct sample_log samples;
    bool store_refused;      /* a store does not accept us: another try would not help */
    struct control *control; /* to the agent */
};

/*
 * Read the job file, open the data, lay out the program, listen. Finds every error of the job: a
 * failure here is permanent, and a restart cannot help, unless it is -EAGAIN (a store that cannot
 * be reached) or -ENOMEM.
 */
int trainer_open(struct trainer *trainer, const char *job_file, struct fleet_error *err);
void trainer_close(struct trainer *trainer);

/* The local path of a file of the job, borrowed; NULL: the job has none. */
const char *trainer_input(const struct trainer *trainer, enum trainer_input input);

/* Wrap the error `rc` of a place in a store, which `field` names, and note whether the store has
 * refused us. Returns `rc`. */
int trainer_judge_store(struct trainer *trainer, int rc, const char *field, const char *url,
                        struct fleet_error *err);

/* Set the fields of the job that follow from the plan. -EINVAL: the data do not fit the model, or
 * the number of batches per update differs from that of the trainer's state. -ENOMEM. */
int trainer_follow_plan(struct trainer *trainer, struct fleet_error *err);

/* The number of steps in `updates` committed updates. */
int64_t trainer_steps(const struct trainer *trainer, int64_t updates);

/* The number of batches of `update`; and whether there are all k: an incomplete update does not
 * change the weights. */
int64_t trainer_batches(const struct trainer *trainer, int64_t update);
bool trainer_is_complete(const struct trainer *trainer, int64_t update);

/* Report to the agent that a phase of joining or leaving a generation is complete. */
void trainer_announce(struct trainer *trainer, enum fleet_phase phase);

/* Send the agent a text to show: a warning, or a note. */
void trainer_warn(struct trainer *trainer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void trainer_note(struct trainer *trainer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The deadline of a collective that begins now, in monotonic ms: much later than the longest step
 * ends. */
double trainer_deadline_ms(const struct trainer *trainer);

#endif
