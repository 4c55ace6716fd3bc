/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_LEDGER_H
#define AGENT_RUNTIME_LEDGER_H

/*
 * The part of the committed state outside the flat spaces: the number of applied updates, the loss
 * scale, and the losses that a new loss is compared with. Every rank has the same ledger, because
 * judge and commit use only values that all ranks share.
 *
 * The ledger is ledger_bytes() plain bytes, so a rank can send it to a newcomer as it is. In a
 * checkpoint's manifest it is JSON.
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
    int64_t owes_average;  /* 1: an average after the newest update is due and not made yet */
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
    LEDGER_FATAL,    /* inf or nan, and no setting allows to go on */
};

/* The ledger before the first step, on the heap; free() it. */
struct ledger *ledger_new(const struct ledger_rules *rules);
size_t ledger_bytes(const struct ledger *ledger);

/*
 * Decide what happens to a complete update. `is_finite`: its gradient has no inf or nan.
 * losses[count] are the losses of its batches. A loss jumps if it is more than `factor` standard
 * deviations above the mean of the last `window` losses, once there are that many. A loss that is
 * not finite also jumps.
 */
enum ledger_verdict ledger_judge(const struct ledger *ledger, const struct ledger_rules *rules,
                                 bool is_finite, const double *losses, int64_t count);

/* Record that the update is committed with this verdict. An incomplete one adds only its losses. */
void ledger_commit(struct ledger *ledger, const struct ledger_rules *rules, bool is_complete,
                   enum ledger_verdict verdict, bool is_finite, const double *losses,
                   int64_t count);

/* With localsgd or adaptive_localsgd, after the commit of a complete update: record whether an
 * average is owed. Returns true if the interval could not be computed. */
bool ledger_average(struct ledger *ledger, const struct ledger_rules *rules,
                    const struct averaging_step *step);

/* For the manifest: {"lossScaling":{…},"averaging":{…},"skipped":0,"losses":[…]}. Owned by the
 * caller. */
cJSON *ledger_encode(const struct ledger *ledger);

/* Read only the loss scale. If the key is absent, *out is unchanged. -EINVAL as below. */
int ledger_read_scaling(const cJSON *json, struct loss_scaling *out, struct fleet_error *err);

/* Read the ledger of a manifest, which keeps `updates` in another place. Absent keys, or json NULL,
 * leave the fields unchanged. -EINVAL if a value is not one that ledger_encode() writes. */
int ledger_decode(struct ledger *ledger, const cJSON *json, int64_t updates,
                  struct fleet_error *err);

#endif
