/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Everything here is arithmetic in doubles on numbers that all ranks share, in one fixed order:
 * ranks reach the same verdict without asking each other.
 */
#include "agent/runtime/ledger.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/strategy/strategy_options.h"
#include "libfleet/training/training.h"

struct ledger *ledger_new(const struct ledger_rules *rules)
{
    bool watches = rules->health->loss_spike != TRAINING_LOSS_SPIKE_OFF;
    int64_t window = watches ? rules->health->window : 0;
    struct ledger *ledger = calloc(1, sizeof(*ledger) + (size_t)window * sizeof(double));

    fleet_assert(ledger != NULL);
    ledger->window = window;
    loss_scaling_init(&ledger->scaling, rules->strategy);
    return ledger;
}

size_t ledger_bytes(const struct ledger *ledger)
{
    return sizeof(*ledger) + (size_t)ledger->window * sizeof(double);
}

/* ---- judging --------------------------------------------------------------------------------- */

/* The i-th of the losses that are kept, the oldest first. */
static double kept_loss(const struct ledger *ledger, int64_t i)
{
    int64_t kept = ledger->loss_count < ledger->window ? ledger->loss_count : ledger->window;

    return ledger->losses[(ledger->loss_count - kept + i) % ledger->window];
}

static bool is_spike(const struct ledger *ledger, const struct training_health *health, double loss)
{
    double sum = 0, squares = 0, mean;

    if (!isfinite(loss))
        return true;
    if (ledger->loss_count < ledger->window)
        return false;
    for (int64_t i = 0; i < ledger->window; i++)
        sum += kept_loss(ledger, i);
    mean = sum / (double)ledger->window;
    for (int64_t i = 0; i < ledger->window; i++) {
        double away = kept_loss(ledger, i) - mean;
        squares += away * away;
    }
    return loss > mean + health->factor * sqrt(squares / (double)ledger->window);
}

enum ledger_verdict ledger_judge(const struct ledger *ledger, const struct ledger_rules *rules,
                                 bool is_finite, const double *losses, int64_t count)
{
    bool spike = !is_finite;

    if (!is_finite && loss_scaling_is_on(rules->strategy))
        return rules->options->overflow_action == STRATEGY_OVERFLOW_ZERO_GRAD ? LEDGER_ZERO
                                                                              : LEDGER_OVERFLOW;
    if (rules->health->loss_spike == TRAINING_LOSS_SPIKE_OFF)
        return is_finite ? LEDGER_APPLY : LEDGER_FATAL;
    for (int64_t i = 0; i < count; i++)
        spike = spike || is_spike(ledger, rules->health, losses[i]);
    if (!spike)
        return LEDGER_APPLY;
    return rules->health->loss_spike == TRAINING_LOSS_SPIKE_ROLLBACK ? LEDGER_ROLLBACK
                                                                     : LEDGER_SPIKE;
}

void ledger_commit(struct ledger *ledger, const struct ledger_rules *rules, bool is_complete,
                   enum ledger_verdict verdict, bool is_finite, const double *losses, int64_t count)
{
    fleet_assert(verdict != LEDGER_FATAL);
    ledger->has_jumped = ledger->owes_rollback = is_complete && verdict == LEDGER_ROLLBACK;
    if (is_complete) {
        bool applied = verdict == LEDGER_APPLY || verdict == LEDGER_ZERO;
        ledger->updates += applied;
        ledger->skipped += !applied;
        loss_scaling_advance(&ledger->scaling, rules->strategy, !is_finite);
    }
    for (int64_t i = 0; i < count && ledger->window > 0; i++)
        if (isfinite(losses[i]))
            ledger->losses[ledger->loss_count++ % ledger->window] = losses[i];
}

/* ---- in a manifest --------------------------------------------------------------------------- */

cJSON *ledger_encode(const struct ledger *ledger)
{
    int64_t kept = ledger->loss_count < ledger->window ? ledger->loss_count : ledger->window;
    cJSON *root = fleet_json_new_object(), *scaling = fleet_json_set_object(root, "lossScaling");

    fleet_json_set_number(scaling, "scale", (double)ledger->scaling.scale);
    fleet_json_set_number(scaling, "good", ledger->scaling.good);
    fleet_json_set_number(scaling, "bad", ledger->scaling.bad);
    fleet_json_set_number(root, "skipped", (double)ledger->skipped);
    if (ledger->window > 0) {
        cJSON *losses = fleet_json_set_list(root, "losses");
        for (int64_t i = 0; i < kept; i++)
            fleet_json_add_number(losses, kept_loss(ledger, i));
    }
    return root;
}

int ledger_read_scaling(const cJSON *json, struct loss_scaling *out, struct fleet_error *err)
{
    double scale = (double)out->scale;
    int64_t good = out->good, bad = out->bad;

    if (fleet_json_opt_number(json, "lossScaling.scale", &scale, err) < 0 ||
        fleet_json_opt_int(json, "lossScaling.good", &good, err) < 0 ||
        fleet_json_opt_int(json, "lossScaling.bad", &bad, err) < 0)
        return err->code;
    if (!(scale > 0) || !isfinite((float)scale) || good < 0 || good > INT32_MAX || bad < 0 ||
        bad > INT32_MAX)
        return fleet_error(err, -EINVAL,
                           "lossScaling: scale %g, good %lld, bad %lld are no loss scale", scale,
                           (long long)good, (long long)bad);
    *out = (struct loss_scaling){.scale = (float)scale, .good = (int32_t)good, .bad = (int32_t)bad};
    return 0;
}

static int decode_losses(struct ledger *ledger, const cJSON *json, struct fleet_error *err)
{
    const cJSON *list = fleet_json_at(json, "losses"), *item;

    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
            return fleet_error(err, -EINVAL, "losses: number %lld of them is none",
                               (long long)ledger->loss_count);
        if (ledger->window > 0)
            ledger->losses[ledger->loss_count++ % ledger->window] = item->valuedouble;
    }
    return 0;
}

int ledger_decode(struct ledger *ledger, const cJSON *json, int64_t updates,
                  struct fleet_error *err)
{
    int rc = 0;

    ledger->updates = updates;
    ledger->loss_count = 0;
    if (!json)
        return 0;
    if ((rc = fleet_json_opt_int(json, "skipped", &ledger->skipped, err)) < 0 ||
        (rc = ledger_read_scaling(json, &ledger->scaling, err)) < 0 ||
        (rc = decode_losses(ledger, json, err)) < 0)
        return rc;
    return ledger->skipped < 0
               ? fleet_error(err, -EINVAL, "skipped: %lld updates", (long long)ledger->skipped)
               : 0;
}
