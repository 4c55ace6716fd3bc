/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Everything here is arithmetic in doubles on numbers that all ranks share, in one fixed order:
 * ranks reach the same verdict without asking each other.
 */
#include "agent/runtime/ledger.h"

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/field_row.h"
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
    averaging_init(&ledger->averaging, rules->strategy);
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

bool ledger_average(struct ledger *ledger, const struct ledger_rules *rules,
                    const struct averaging_step *step)
{
    bool kept;

    ledger->owes_average =
        averaging_advance(&ledger->averaging, rules->strategy, rules->options, step, &kept);
    return kept;
}

/* ---- in a manifest --------------------------------------------------------------------------- */

#define LOSSES_MAX 1000000

/* A ledger as in a manifest; absent values are NaN or -1. */
struct record {
    struct scaling {
        double scale;
        int good, bad;
    } scaling;
    struct averaging averaging;
    int64_t skipped;
    double *losses; /* oldest first, heap */
    size_t loss_count;
};

#define COUNT(name, member) \
    ROW(struct scaling, name, INT32, member, FLEET_MIN | FLEET_MAX, .max = INT_MAX, .unset = -1)

static const struct fleet_field scaling_fields[] = {
    ROW(struct scaling, "scale", NUMBER, scale, FLEET_ABOVE | FLEET_MAX, .max = FLT_MAX,
        .unset = NAN),
    COUNT("good", good),
    COUNT("bad", bad),
    ROW_END,
};

static const struct fleet_object scaling_type =
    ROW_OBJECT_TYPE("loss scale", struct scaling, scaling_fields);

static const struct fleet_field averaging_fields[] = {
    ROW(struct averaging, "last", INT, last, FLEET_MIN, .unset = -1),
    ROW(struct averaging, "interval", INT, interval, FLEET_MIN | FLEET_MAX, .min = 1,
        .max = INT_MAX, .unset = -1),
    ROW(struct averaging, "firstLoss", NUMBER, first_loss, 0, .unset = NAN),
    ROW(struct averaging, "firstRate", NUMBER, first_rate, 0, .unset = NAN),
    ROW_END,
};

static const struct fleet_object averaging_type =
    ROW_OBJECT_TYPE("averaging", struct averaging, averaging_fields);

static const struct fleet_field record_fields[] = {
    ROW_OBJECT(struct record, "averaging", averaging, averaging_type, 0),
    ROW_OBJECT(struct record, "lossScaling", scaling, scaling_type, 0),
    ROW(struct record, "skipped", INT, skipped, FLEET_MIN, .unset = -1),
    ROW(struct record, "losses", LIST, losses, 0, .item = FLEET_FIELD_NUMBER,
        .count_max = LOSSES_MAX),
    ROW_END,
};

static const struct fleet_object record_type =
    ROW_OBJECT_TYPE("ledger", struct record, record_fields);

cJSON *ledger_encode(const struct ledger *ledger)
{
    int64_t kept = ledger->loss_count < ledger->window ? ledger->loss_count : ledger->window;
    struct record record = {
        .scaling = {ledger->scaling.scale, ledger->scaling.good, ledger->scaling.bad},
        .averaging = ledger->averaging,
        .skipped = ledger->skipped,
        .losses = calloc((size_t)kept + 1, sizeof(double)),
        .loss_count = (size_t)kept,
    };
    cJSON *json;

    fleet_assert(record.losses != NULL);
    for (int64_t i = 0; i < kept; i++)
        record.losses[i] = kept_loss(ledger, i);
    json = fleet_object_encode(&record_type, &record);
    free(record.losses);
    return json;
}

static void take_scaling(const struct record *record, struct loss_scaling *out)
{
    if (!isnan(record->scaling.scale))
        out->scale = (float)record->scaling.scale;
    if (record->scaling.good >= 0)
        out->good = record->scaling.good;
    if (record->scaling.bad >= 0)
        out->bad = record->scaling.bad;
}

static void take_averaging(const struct averaging *from, struct averaging *out)
{
    if (from->last >= 0)
        out->last = from->last;
    if (from->interval >= 1)
        out->interval = from->interval;
    out->has_first = !isnan(from->first_loss) && !isnan(from->first_rate);
    out->first_loss = out->has_first ? from->first_loss : 0;
    out->first_rate = out->has_first ? from->first_rate : 0;
}

int ledger_read_scaling(const cJSON *json, struct loss_scaling *out, struct fleet_error *err)
{
    struct record record;

    if (fleet_object_read(&record_type, json, &record, err) < 0)
        return -EINVAL;
    take_scaling(&record, out);
    fleet_object_release(&record_type, &record);
    return 0;
}

int ledger_decode(struct ledger *ledger, const cJSON *json, int64_t updates,
                  struct fleet_error *err)
{
    struct record record;

    if (fleet_object_read(&record_type, json, &record, err) < 0)
        return -EINVAL;
    ledger->updates = updates;
    ledger->loss_count = 0;
    take_scaling(&record, &ledger->scaling);
    take_averaging(&record.averaging, &ledger->averaging);
    if (record.skipped >= 0)
        ledger->skipped = record.skipped;
    for (size_t i = 0; i < record.loss_count && ledger->window > 0; i++)
        ledger->losses[ledger->loss_count++ % ledger->window] = record.losses[i];
    fleet_object_release(&record_type, &record);
    return 0;
}
