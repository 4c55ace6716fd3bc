/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PLAN_PLAN_H
#define LIBFLEET_PLAN_PLAN_H

/*
 * Computes from spec.strategy, spec.training and the world size what a job runs on each rank, and
 * what that costs:
 *
 *   strategy_select -> model -> passes before autodiff -> autodiff -> passes after it -> layout
 *                   -> verify (after each) -> memory plan -> parts -> bytes, traffic -> digest
 *
 * Numbers come from the program's memory plan, except where a knob in effect has no pass yet: then
 * from closed formulas (plan_cost.h), and the plan says which. Such a job is refused, unless the
 * caller only wants an explanation.
 *
 * Controller, command line and trainer call plan_build() and get the same plan; ranks compare the
 * digest before their first step. If only the tokenizer's file has the size of the vocabulary,
 * programs that have the file read it before (vocabulary.h). The controller does not have it;
 * its plan has no program, and a note says so.
 */

#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/base/digest.h"
#include "libfleet/plan/memory_plan.h"
#include "libfleet/plan/ownership.h"
#include "libfleet/plan/plan_parts.h"
#include "libfleet/plan/transfer.h"
#include "libfleet/program/program.h"
#include "libfleet/program/stages.h"
#include "libfleet/strategy/pipeline_schedule.h"
#include "libfleet/strategy/select.h"
#include "libfleet/strategy/topology.h"

struct fleet_errors;
struct plan_stage_program;
struct strategy_options;
struct training_config;

/* What memory of a rank is for; the sizes of the rank that needs the most. */
enum plan_bytes {
    PLAN_BYTES_PARAMETERS,
    PLAN_BYTES_GRADIENTS,   /* all live slots of the summation tree */
    PLAN_BYTES_OPTIMIZER,   /* optimizer states */
    PLAN_BYTES_BUFFERS,     /* running statistics, and what micro-batches leave for them */
    PLAN_BYTES_INPUTS,      /* the micro-batch at work, and those read ahead */
    PLAN_BYTES_ACTIVATIONS, /* the arena */
    PLAN_BYTES_SCRATCH,     /* working memory of kernels and threads, results the host reads */
    PLAN_BYTES_EXCHANGE,    /* buffers of the collectives and of their connections */
    PLAN_BYTES_HOST,        /* host memory: offloaded checkpoints and optimizer states */
    PLAN_BYTES_COUNT,
};

/* The fewest ranks that the strategy's degrees allow. The program is the same for every number of
 * ranks. Topology, bytes and traffic are those of the fewest ranks. */
#define PLAN_ANY_WORLD 0

struct plan_request {
    const struct training_config
        *training; /* NULL, with only_explain: nothing is known of the model */
    const struct training_config
        *written; /* what the user wrote, for the numbers that errors suggest; NULL: training */
    const struct strategy *strategy; /* NULL: nothing set */
    const char *strategy_path;       /* in front of errors' paths; NULL: "spec.strategy" */
    const char *world_path; /* the field that says how many ranks there are; NULL: spec.training */
    const struct fleet_errors *unread; /* values that could not be read (select.h); NULL: none */
    enum strategy_policy policy;
    const struct strategy_options *options; /* NULL: the defaults */
    int world;           /* ranks; PLAN_ANY_WORLD: not known yet, the program alone is wanted */
    int ranks_of_worker; /* for errors: the number of workers was given; 0: that of ranks was */
    int rank;            /* the program of this rank's cell is wanted (cells.h); below `world` */
    bool is_undivided;   /* the program of a rank that has all of the model: to use its weights */
    int threads;         /* compute threads of a rank; 0: not known, counted as one */
    int machine_ranks;   /* of one machine; they follow each other. 0: not known, counted as one */
    bool encrypts;       /* runPolicy.dataEncryption */
    bool shares_gpus; /* ranks exchange through GPU memory that they share: FLEET_CUDA_COMM=ipc */
    bool has_buddies; /* runPolicy.elastic.replicas: a second holder for what one would hold */
    /* For a trainer: its number of ranks changes, so settings that need several ranks stay on, and
     * the state is the same for any number. */
    bool keeps_settings;
    bool own_trainer;  /* the user's own program runs: no pass is needed, training is NULL */
    bool only_explain; /* knobs without a pass go to cannot_run instead of being refused */
    bool is_draft;     /* for a search: no digest, and no notes about idle knobs */
    /* Only a draft: a plan of the same training and settings, which differs in the division over
     * ranks alone. Its program is borrowed, not built again, if no pass divides it, or if passes
     * divide both in the same way: replicas and shards may be others. NULL: none. */
    const struct plan *like;
};

/* What a job asks for, with buddies. Without training, only_explain: nothing is known of the model.
 * The fields that are not arguments may be set afterwards. Everything is borrowed. */
struct plan_request plan_request_of(const struct training_config *training,
                                    const struct strategy *strategy, enum strategy_policy policy,
                                    const struct strategy_options *options, int world);

#define PLAN_TRANSFERS_MAX 32

struct plan_traffic {
    struct plan_transfer items[PLAN_TRANSFERS_MAX];
    size_t count;
};

#define PLAN_CELL_TRANSFERS_MAX 16

/* What the ranks that share tensors or sequences send each other in one micro-batch of the whole
 * model. */
struct plan_cell_traffic {
    struct plan_cell_transfer {
        struct plan_transfer transfer; /* without the numbers below */
        double calls[STAGES_PLACES], rounds[STAGES_PLACES], bytes[STAGES_PLACES];
    } items[PLAN_CELL_TRANSFERS_MAX];
    size_t count;
};

struct plan {
    bool own_trainer;       /* as requested: cannot_run is about the built-in runtime only */
    bool has_program;       /* false without a model of known size; no bytes then */
    bool borrows_program;   /* the program is that of plan_request.like */
    bool borrows_memory;    /* and so is the memory: no pass divides the program */
    int cell;               /* whose program it is (cells.h) */
    struct program program; /* of every rank of the cell; without the knobs in cannot_run */
    bool is_cut;          /* the cells are stages of a pipeline, each with parameters of its own */
    struct program whole; /* is_cut: of the whole model, with each parameter's first stage */
    struct plan_stage_program *stages; /* is_cut: [stages] of other cells; NULL for a trainer */
    struct ownership ownership;
    struct memory_plan memory;      /* of the rank that holds most */
    struct select_result selection; /* applied, dropped, without_effect, depends_on_workers */
    unsigned int formula_units;     /* the units in cannot_run, a set of UNIT_BIT() */
    struct select_notes cannot_run; /* in effect, but the built-in runtime has no pass for it */
    struct topology topology;       /* degrees */
    struct plan_parts parts;
    struct pipeline_shape schedule; /* of each replica */
    int world, threads;
    int machine_ranks;              /* as requested */
    bool encrypts, shares_gpus;     /* likewise */
    size_t connection_bytes;        /* a part of the exchange */
    bool has_buddies, is_greedy;    /* as requested: how state is divided */
    bool by_operator;               /* likewise: strategyOptions.operatorDivisions */
    bool is_16_bit;                 /* weights and gradients are computed with in 16 bits */
    int64_t micro_batches;          /* of one batch, over all ranks */
    int64_t leaves;                 /* micro-batches of one update: leaves of the summation tree */
    int slots;                      /* gradient buffers live at once, on the rank that needs most */
    size_t bytes[PLAN_BYTES_COUNT]; /* of the rank that needs most, shards taken as equal */
    bool by_formula[PLAN_BYTES_COUNT];
    size_t snapshot_bytes;                 /* more, at most, while a rank writes a checkpoint */
    struct plan_traffic traffic;           /* of the rank that sends most */
    double sent_bytes;                     /* the sum of it */
    struct plan_cell_traffic cell_traffic; /* only of a draft whose stages are formulas */
    double flops;                          /* of one micro-batch, forward and backward */
    /* Of program and configuration, not of the world. Only of the first cell; else "". */
    char digest[FLEET_SHA256_HEX_SIZE];
};

/*
 * Build the plan. Returns 0, or -EINVAL with errors appended (paths below "spec": strategy,
 * training) and nothing in *out to release. Everything in `request` is borrowed for the call.
 */
int plan_build(const struct plan_request *request, struct plan *out, struct fleet_errors *errors);

/*
 * Append what plan_build() would say of knobs that the built-in runtime cannot run, and nothing
 * else, also where something else is wrong with the strategy. Nothing with only_explain.
 * PLAN_ANY_WORLD counts as two ranks at least.
 */
void plan_obstacles(const struct plan_request *request, struct fleet_errors *errors);

/*
 * The grid of the fewest ranks if ranks share a model, for the hub: worlds of the job are multiples
 * of its world. `world` 0: ranks do not share a model, or it is not known how. If the strategy
 * leaves the number of stages or shards open, request->world is the job's fixed number of ranks.
 * Nothing is reported.
 */
struct topology plan_least_grid(const struct plan_request *request);

/*
 * The map of the plan's job on `replicas` ranks with `shards` shards, 1: nothing is divided. Also
 * that of another generation of the job. The plan has a program. Release *out.
 */
void plan_ownership(const struct plan *plan, int replicas, int shards, struct ownership *out);

/* The program that has all parameters: `whole` where stages share them, else the plan's own. */
const struct program *plan_whole(const struct plan *plan);

/* Shards of the plan's own map. */
int plan_shards(const struct plan *plan);

/* Free all of it. Fine on a zeroed plan. */
void plan_release(struct plan *plan);

/* Sum of plan->bytes. */
size_t plan_bytes_total(const struct plan *plan);

/* status.plan: applied, dropped, withoutEffect, dependsOnWorkers, notes, warnings (if there are
 * any), degrees, bytesPerRank, checkpointCopyBytesMax, gradientSlots, sentBytesPerUpdate, digest.
 * Owned by the caller. */
cJSON *plan_encode(const struct plan *plan);

/* The same and all that `fleetjob plan` knows: memory on a GPU (gpu_memory.h), order of the axes,
 * groups of all axes, stages, shards, accumulation, communication, where numbers come from, what
 * cannot run. */
cJSON *plan_encode_whole(const struct plan *plan);

/* What one rank does: coordinates, groups, stage, shard, micro-batches, partial sums, schedule,
 * bytes, communication. */
cJSON *plan_encode_rank(const struct plan *plan, int rank);

/* Ranks that share the batch: data times sharding; and the place of `rank` among them. */
int plan_replicas(const struct plan *plan);
int plan_replica_of(const struct plan *plan, int rank);

/* Name of a kind of memory as in bytesPerRank: "parameters". */
const char *plan_bytes_name(enum plan_bytes kind);

#endif
