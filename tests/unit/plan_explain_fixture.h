/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_PLAN_EXPLAIN_FIXTURE_H
#define TESTS_UNIT_PLAN_EXPLAIN_FIXTURE_H

/*
 * Plans of a small model for a strategy in JSON, with the values that tests compare.
 */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/plan/plan.h"
#include "libfleet/strategy/strategy_json.h"
#include "libfleet/training/training.h"
#include "tests/support/planned_job.h"

/* 64 micro-batches of 2, a model of 8 equal layers. */
#define JOB(optimizer)                                                                         \
    "{\"model\":{\"name\":\"gpt\",\"layers\":8,\"heads\":4,\"width\":128,\"context\":64,"      \
    "\"vocabulary\":256},\"data\":{\"path\":\"t\"},\"optimizer\":{\"name\":\"" optimizer "\"," \
    "\"learningRate\":0.1},\"globalBatchSize\":128,\"microBatchSize\":2,\"steps\":10}"

/* ln_1, c_attn, attn.c_proj, ln_2, mlp.c_fc, mlp.c_proj: matrices, vectors. */
#define LAYER_MATRICES (128 * 384 + 128 * 128 + 2 * 128 * 512)
#define LAYER_VECTORS  (4 * 128 + 384 + 128 + 512 + 128)
#define LAYER          (LAYER_MATRICES + LAYER_VECTORS)
#define TOKENS         (256 * 128) /* wte, which the last stage reads too */
#define POSITIONS      (64 * 128)
#define LAST_NORM      (2 * 128)

static inline void job_init(struct job *job, const char *training, const char *strategy, int world)
{
    struct plan_request request = {.training = training ? &job->training : NULL,
                                   .strategy = &job->strategy,
                                   .world = world,
                                   .only_explain = true};
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};

    job_decode(job, training, strategy);
    job->rc = plan_build(&request, &job->plan, &job->errors);
    fleet_errors_print(&job->errors, &text);
    if (job->rc)
        fail_msg("%s on %d: refused: %s", strategy, world, text.text);
}

static inline void expect_bytes(const struct plan *plan, enum plan_bytes kind, double wanted)
{
    if (fabs((double)plan->bytes[kind] - wanted) > 1)
        fail_msg("%s: expected %.0f, got %zu", plan_bytes_name(kind), wanted, plan->bytes[kind]);
}

static const struct plan_transfer *find(const struct plan_traffic *traffic, const char *what)
{
    for (size_t i = 0; i < traffic->count; i++)
        if (strncmp(transfer_what_text(&traffic->items[i]), what, strlen(what)) == 0)
            return &traffic->items[i];
    return NULL;
}

static inline void expect_sent(const struct plan_traffic *traffic, const char *kind,
                               const char *what, double wanted)
{
    const struct plan_transfer *t = find(traffic, what);

    if (!t)
        fail_msg("%s %s: expected, but nobody sends it", kind, what);
    assert_string_equal(transfer_kind_text(t), kind);
    if (fabs(t->bytes - wanted) > 1 + 1e-9 * wanted)
        fail_msg("%s %s: expected %.0f bytes, got %.0f", kind, what, wanted, t->bytes);
}

#endif
