/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_CALIBRATE_CALIBRATE_H
#define AGENT_RUNTIME_CALIBRATE_CALIBRATE_H

/*
 * Measures what the ranks of a job compute on this machine and what the links between them carry,
 * in a few seconds: the rates of `fleetjob plan --search` (libfleet/autoparallel/search/links.h).
 *
 *   operators  The job's own model, with fewer layers if all are too many, runs operator by
 *              operator with several micro-batches and tensor degrees, in as many processes as
 *              there are ranks. From the medians each class gets the seconds of its
 *              start and its rate, and matrix products the rate of their weights: start +
 *              work / rate + weights / rate, none negative, fitted by least squares with the
 *              weight 1 / seconds. Where a process has one thread, its processor time counts.
 *   links      All ranks run collectives at once, in groups of each number of ranks that divides
 *              theirs, through shared memory and through TCP over the loopback, each call on
 *              other memory and behind a little computing, as in a step. If ranks take turns, a
 *              call costs the processor time that it adds to the computing: also that of the
 *              caches which other ranks have emptied. Else it is the least mean of several rounds
 *              of calls. Three sizes give the seconds of a call, of a further round, and of bytes.
 *
 * Only the CPU is measured. The times between machines are those of TCP on this one.
 */

#include <stdint.h>

#include "libfleet/autoparallel/search/links.h"
#include "libfleet/strategy/select.h"

struct fleet_error;
struct strategy_options;
struct training_config;

#define CALIBRATE_RANKS_MAX 64

struct calibrate_request {
    const struct training_config *training; /* decoded and related; its vocabulary is known */
    const struct strategy *strategy;        /* the job's; its degrees are ignored */
    enum strategy_policy policy;
    const struct strategy_options *options;
    int ranks;      /* that a job has on this machine, 1 … CALIBRATE_RANKS_MAX */
    int processors; /* that they share, at least 1 */
    int threads;    /* compute threads of a rank, at least 1 */
    double memory;  /* bytes of a rank */
};

struct calibrate_result {
    struct links links;
    double seconds;              /* that it took */
    int64_t layers;              /* of the model that ran; 0: it has no layers */
    double fit;                  /* the mean error of predicted operator seconds, 0.1 is 10 % */
    double share[LINKS_CLASSES]; /* of the seconds of an update on one rank, by class */
};

/*
 * Starts processes and waits for them; the caller has no threads. -EINVAL: the strategy or the
 * model is refused, or one layer needs more than a rank's memory. -ENOMEM. Errors of
 * comm_tcp_new().
 */
int calibrate(const struct calibrate_request *request, struct calibrate_result *out,
              struct fleet_error *err);

#endif
