/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_TRAINER_H
#define AGENT_RUNTIME_TRAINER_H

/*
 * One rank of a job: what main.c opens, elastic.c joins to a generation and train.c steps. `err`
 * may not be NULL anywhere here.
 *
 * An update group is the unit of commitment: the k batches of gradient_merge, else one batch.
 * Groups count from 1; group g holds steps (g-1)·k + 1 … min(g·k, steps). The last one may be
 * unfinished: its losses are computed, but it makes no update (spec/training.md 1).
 *
 * What must hold between calls (design.md 10):
 *  (1) `committed` groups are in the state, all of them and nothing else.
 *  (2) voted == committed + 1 means: state.slots[0] holds the complete reduced gradient of group
 *      `voted`, the check section has run over it, and this rank's vote for it may have been seen.
 *  (3) The state is changed by update_commit() and by receiving a whole one (elastic.c), only. It
 *      is the flat spaces, the ledger, and the counts here.
 */

#include <stdbool.h>
#include <stdint.h>

#include "agent/runtime/charts.h"
#include "agent/runtime/checkpoint/snapshot.h"
#include "agent/runtime/comm.h"
#include "agent/runtime/control.h"
#include "agent/runtime/data/prefetch.h"
#include "agent/runtime/diagnose.h"
#include "agent/runtime/executor/executor.h"
#include "agent/runtime/ledger.h"
#include "agent/runtime/running.h"
#include "agent/runtime/share.h"
#include "agent/runtime/state.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/program/plan.h"
#include "libfleet/program/training.h"
#include "libfleet/strategy/strategy_options.h"

struct evaluation;
struct fleet_error;

#define TRAINER_NO_STATE (-1) /* `committed` of a rank that has nothing yet */

/* Where the time of a group went, on this rank; what is left over is bookkeeping. */
struct step_times {
    double data_s, forward_s, backward_s, exchange_s, optimizer_s, total_s;
};

struct trainer {
    /* The job; fixed once trainer_open() has succeeded. */
    struct training_config config;
    struct strategy strategy;
    enum strategy_policy policy;
    struct strategy_options options;
    struct plan plan;
    int inputs, targets;     /* input variables: token ids or images; next tokens or labels */
    int64_t bucket_elements; /* of the largest exchange */
    struct dataset *dataset;
    struct sampler sampler;
    struct evaluation *evaluation;     /* of held-out data; NULL = none is wanted */
    struct prefetch *prefetch;         /* reads the dataset ahead, in the sampler's order */
    int64_t micro_batches;             /* of one batch */
    int64_t merge;                     /* batches of a full group */
    int64_t groups;                    /* of the whole job, an unfinished last one included */
    int64_t updates;                   /* of the whole job */
    struct ledger_rules rules;         /* what becomes of a gradient */
    struct running running;            /* statistics that micro-batches leave */
    int64_t row;                       /* floats that a leaf leaves: its loss, its statistics */
    int threads;                       /* compute threads, 0 = what the CPU quota allows */
    int listener, port;                /* data connections are accepted here */
    struct backend *memory_backend;    /* whose memory the state is; kept whatever the level */
    const char *job_uid;               /* of the environment; "" if it is not told */
    char *job_name;                    /* for people */
    cJSON *origin;                     /* what checkpoints say of the job: origin.h */
    uint8_t digest[FLEET_SHA256_SIZE]; /* of program and data: ranks must agree on it */

    struct control *control;

    /* The generation. */
    struct link_generation generation;
    struct manifest_lineage_entry lineage[LINK_LINEAGE_MAX];
    int lineage_count;
    int rank, world;
    enum backend_level level;
    struct backend *backend;   /* at `level`; NULL before the first generation */
    struct executor *executor; /* on `backend` */
    struct comm *comm;         /* NULL between generations */
    struct share share;        /* of a full group */
    struct share last_share;   /* of an unfinished last group; no leaves if there is none */
    void *workspace;           /* of comm_tree_reduce() */
    size_t workspace_bytes;
    int failed_rank;         /* the peer that was lost first, -1 = none known */
    bool first_step_pending; /* the generation has not committed a group yet */

    /* Progress. */
    struct state state;
    int64_t committed;       /* groups, or TRAINER_NO_STATE */
    int64_t voted;           /* see (2) */
    struct ledger *ledger;   /* of the committed groups */
    bool voted_finite;       /* the gradient that was voted for has no inf or nan */
    float *leaves;           /* [micro_batches · merge][row] of the group at work */
    float *committed_leaves; /* the same of the newest committed group, complete */
    void *vote_workspace;
    enum ledger_verdict verdict; /* on the newest committed group */
    double *batch_losses;        /* [merge] of the newest committed group */
    struct step_times times;     /* of the group at work, then of the newest committed one */
    struct executor_times executor_before; /* when the group at work was begun */
    double step_started_ms;                /* when the group at work was begun */
    double step_longest_ms;                /* of this process so far, by a group */
    double step_mean_s;       /* mean time of a batch, for what is left; 0 = not known */
    struct charts charts;     /* of all ranks; rank 0 writes them */
    struct fleet_strbuf line; /* of the log */
    double last_loss;         /* of the newest step that was reported */
    int64_t evaluation_step;  /* newest evaluation of this process, 0 = none */
    double evaluation_loss;
    int64_t evaluated;               /* newest group whose evaluation has been reported */
    bool is_shared;                  /* reported that another run writes into our folder */
    struct link_generation saved_in; /* in which the newest save began */
    int64_t saved;                   /* groups in the newest checkpoint begun or read here */
    struct snapshot *snapshot;       /* writes checkpoints beside the training; NULL without */
    int64_t began_at;  /* step of another run's checkpoint that this one went on from; 0 = none */
    int save_failures; /* saves that failed since the last complete one; first rank */
    double retry_save_at_ms;         /* while save_failures > 0 */
    char save_error[LINK_TEXT_SIZE]; /* of the last one */
    int64_t newest_step;             /* of the newest complete checkpoint known here; 0 = none */
    char newest_folder[CHECKPOINT_FOLDER_MAX];

    /* Health: why voted_finite is false, "" = not looked into. */
    char diagnosis[DIAGNOSE_TEXT_SIZE];
};

/*
 * Read the job file, open the data, lay out the program, listen. Everything that can be wrong with
 * the job is found here: a failure is permanent, a restart cannot help.
 */
int trainer_open(struct trainer *trainer, const char *job_file, struct fleet_error *err);
void trainer_close(struct trainer *trainer);

/* Steps that `groups` committed groups hold. */
int64_t trainer_steps(const struct trainer *trainer, int64_t groups);

/* Batches of group `group`, and whether it ends in an update. */
int64_t trainer_batches(const struct trainer *trainer, int64_t group);
bool trainer_has_update(const struct trainer *trainer, int64_t group);

/* Tell the agent that a phase of joining or leaving a generation is complete. */
void trainer_announce(struct trainer *trainer, enum link_phase phase);

/* Tell the agent something worth showing: what is odd, or a fact. */
void trainer_warn(struct trainer *trainer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void trainer_note(struct trainer *trainer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* When a collective that begins now gives up, monotonic ms: far beyond the longest step. */
double trainer_deadline_ms(const struct trainer *trainer);

/* ---- update.c: what happens to a complete gradient ------------------------------------------- */

/* Run the check section over slots[0]. *out_is_finite: no NaN or infinity in it. -ECANCELED: the
 * generation was aborted meanwhile. */
int update_check(struct trainer *trainer, int64_t group, bool *out_is_finite,
                 struct fleet_error *err);

/*
 * Make the group part of the state, the only place where that happens: judge its gradient, apply
 * the optimizer or leave it out, fold in running statistics, advance the ledger. `leaves` holds the
 * rows of all its leaves. -EDOM: the gradient is not finite and nothing says what to do about it;
 * nothing is committed.
 */
int update_commit(struct trainer *trainer, int64_t group, const float *leaves,
                  struct fleet_error *err);

/* Of the newest committed group: the norm of its gradient before clipping. */
double update_norm(const struct trainer *trainer);

/* The learning rate of the update of `group`. */
double update_rate(const struct trainer *trainer, int64_t group);

/* ---- report.c -------------------------------------------------------------------------------- */

/* A generation is being joined, `holder` has had the newest state: the charts go on from there. All
 * ranks call it; errors as train_run(). */
int report_join(struct trainer *trainer, int holder, struct fleet_error *err);

/* Tell of the steps of the group just committed: the agent, the log, TensorBoard. */
void report_group(struct trainer *trainer, int64_t group);
void report_evaluation(struct trainer *trainer, int64_t step, double loss);

/* ---- train.c --------------------------------------------------------------------------------- */

/*
 * Step until the job is complete (0), a peer is lost or the generation aborted (-ECONNRESET,
 * -ECONNABORTED, -ETIMEDOUT, -ECANCELED: join the next one), the agent asked to leave (-EINTR), or
 * something is wrong for good (any other error).
 */
int train_run(struct trainer *trainer, struct fleet_error *err);

/* ---- evaluate.c ------------------------------------------------------------------------------ */

/*
 * If an evaluation is due after the newest committed group and has not been reported: compute
 * the loss on held-out data, with the micro-batches shared between the ranks. Errors as
 * train_run().
 */
int evaluate_if_due(struct trainer *trainer, struct fleet_error *err);

/* Make what an evaluation needs, if the job has any; and free it. */
void evaluate_open(struct trainer *trainer);
void evaluate_reserve(struct trainer *trainer); /* what this generation's world takes */
void evaluate_close(struct trainer *trainer);

/* What leaf `leaf` of group `group` is run with. */
struct run_scalars train_leaf_scalars(const struct trainer *trainer, int64_t group, int64_t leaf);

/* Put its samples into the program's input variables. Errors as dataset_read(). */
int train_load_leaf(struct trainer *trainer, int64_t group, int64_t leaf, struct fleet_error *err);

/* ---- rollback.c ------------------------------------------------------------------------------ */

/* If the newest committed group owes one: take the state back to the last checkpoint, on all ranks.
 * Errors as train_run(); the state is then gone (TRAINER_NO_STATE). */
int rollback_if_due(struct trainer *trainer, struct fleet_error *err);

/* ---- elastic.c ------------------------------------------------------------------------------- */

/*
 * Join the generation that `assign` describes: connect, agree on the step, bring every rank there.
 * Errors as train_run().
 */
int elastic_join(struct trainer *trainer, const struct link_message *assign,
                 struct fleet_error *err);

/* Leave the generation: close its connections. The state stays. */
void elastic_leave(struct trainer *trainer);

/* ---- save.c ---------------------------------------------------------------------------------- */

/*
 * See whether training.checkpoint.path can be written to, and get ready. -errno naming it if it
 * never will be; a disk that is full may have room later.
 */
int save_open(struct trainer *trainer, struct fleet_error *err);

/*
 * Begin to save a checkpoint if one is due after the group just committed, rank 0 alone or all
 * ranks together as training.checkpoint.format says, and report one that has been written. Rank
 * 0 reports a failed save and tries again after a back-off; until then the older checkpoint
 * stays. The checkpoint of the last group is on disk when this returns: -ENOTRECOVERABLE with
 * the steps that are lost if it could not be written for LINK_SAVE_PATIENCE_ENV. Other errors as
 * train_run(): a peer was lost while the ranks agreed.
 */
int save_if_due(struct trainer *trainer, struct fleet_error *err);

/* The generation broke: a checkpoint that its ranks were writing together is not waited for. */
void save_abandon(struct trainer *trainer);

/* Begin to save now, unless the newest one is of this step. */
void save_now(struct trainer *trainer);

/* Wait for the checkpoint that is being written, and report it. */
void save_finish(struct trainer *trainer);

/* As save_now(), and insist for ten seconds if it fails: the state goes with this process. */
void save_before_leaving(struct trainer *trainer);

/*
 * Fill the state with what the job starts from: a checkpoint as `resume` says, else the initial
 * weights; sets `committed`. *out_is_initial: the seed alone gives this state. Called on rank 0 of
 * a generation in which nobody has a state.
 */
int save_restore(struct trainer *trainer, bool *out_is_initial, struct fleet_error *err);

/* Fill the state from this job's checkpoint of `step`; its counts stay. *out is to be released.
 * Errors as checkpoint_restore(). */
int save_read(struct trainer *trainer, int64_t step, struct manifest *out, struct fleet_error *err);

#endif
