/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_LEDGER_H
#define AGENT_RUNTIME_LEDGER_H

/*
 * State of the committed updates besides the flat spaces: the number of applied updates, the loss
 * scale, the losses that a new loss is compared with. Every rank has the same ledger: judge and
 * commit use only values that all ranks share.
 *
 * It is plain bytes of ledger_bytes(), so that it can be sent to a newcomer as it is, and JSON in a
 * checkpoint's manifest.
 *
 *     verdict = ledger_judge(…)     what becomes of a voted update's gradient
 *     ledger_commit(…, verdict)     the update is part of the state
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "libfleet/training/averaging.h"
#include "libfleet/training/loss_scaling.h"

struct fleet_error;
struct strategy;
struct strategy_options;
struct training_health;

/* The rules, borrowed. */
struct ledger_rules {
    const struct strategy *strategy; /* the effective one */
    const struct strategy_options *options;
    const struct training_health *health;
};

struct ledger {
    int64_t updates; /* optimizer updates applied: the powers of beta */
    int64_t skipped; /* updates that did not change the weights */
    struct loss_scaling scaling;
    int64_t has_jumped;    /* 1: the newest update was judged LEDGER_ROLLBACK */
    int64_t owes_rollback; /* 1: and the state has not gone back yet */
    int64_t owes_average;  /* 1: parameters are to be averaged behind the newest update */
    struct averaging averaging;
    int64_t window;     /* capacity of `losses`; 0 = the loss is not watched */
    int64_t loss_count; /* finite losses seen; the last `window` of them are kept */
    double losses[];    /* [window]: loss number i at i % window */
};

enum ledger_verdict {
    LEDGER_APPLY,
    LEDGER_ZERO,     /* inf or nan under amp, overflowAction zeroGrad: apply a zero gradient */
    LEDGER_OVERFLOW, /* the same with overflowAction skip: no update */
    LEDGER_SPIKE,    /* the loss jumped: no update */
    LEDGER_ROLLBACK, /* the loss jumped: no update, and back to the last checkpoint */
    LEDGER_FATAL,    /* inf or nan, and nothing says what to do about it */
};

/* Before the first step. Heap; free() it. */
struct ledger *ledger_new(const struct ledger_rules *rules);
size_t ledger_bytes(const struct ledger *ledger);

/*
 * What becomes of a complete update. `is_finite`: its gradient has no inf or nan. losses[count]
 * are those of its batches. A loss jumps when it lies more than `factor` standard deviations
 * above the mean of the last `window` losses, once there are so many; one that is not finite, too.
 */
enum ledger_verdict ledger_judge(const struct ledger *ledger, const struct ledger_rules *rules,
                                 bool is_finite, const double *losses, int64_t count);

/* The update is committed as judged. An incomplete one adds only its losses. */
void ledger_commit(struct ledger *ledger, const struct ledger_rules *rules, bool is_complete,
                   enum ledger_verdict verdict, bool is_finite, const double *losses,
                   int64_t count);

/* With localsgd or adaptive_localsgd, behind the commit of a complete update: whether an average is
 * owed. True if the interval could not be computed. */
bool ledger_average(struct ledger *ledger, const struct ledger_rules *rules,
                    const struct averaging_step *step);

/* For the manifest: {"lossScaling":{…},"averaging":{…},"skipped":0,"losses":[…]}. Owned by the
 * caller. */
cJSON *ledger_encode(const struct ledger *ledger);

/* Only the loss scale of it, which stays as it is where the key is absent. -EINVAL as below. */
int ledger_read_scaling(const cJSON *json, struct loss_scaling *out, struct fleet_error *err);

/* Take up what a manifest says, `updates` beside it; absent keys (NULL json, too) leave what is
 * there. -EINVAL for what no ledger says. */
int ledger_decode(struct ledger *ledger, const cJSON *json, int64_t updates,
                  struct fleet_error *err);

#endif
