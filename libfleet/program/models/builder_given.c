/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The division of a layer where a user gave strategies to operators. A tuple is read from its last
 * numbers: those in front of them are samples and tokens. libfleet/autoparallel/given_operators.h
 * compares what came of it with all that was given, so nothing is checked here.
 */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/json.h"
#include "libfleet/program/models/builder.h"
#include "libfleet/program/models/builder_internal.h"
#include "libfleet/training/training.h"

#define UNKNOWN 0 /* parts: the tuple is not given */

/* The first entry for the operator counts. */
static const struct training_operator *find(const struct builder *b, const char *name)
{
    char full[PROGRAM_NAME_MAX];

    (void)snprintf(full, sizeof(full), "%s%s", b->prefix, name);
    for (size_t i = 0; b->given && i < b->given->count; i++)
        if (fnmatch(b->given->items[i].operator_name, full, 0) == 0)
            return &b->given->items[i];
    return NULL;
}

/* Number `behind` from the end of tuple `operand`. */
static int64_t parts_of(const cJSON *tuples, int operand, int behind)
{
    const cJSON *tuple = cJSON_GetArrayItem(tuples, operand);
    int64_t parts;

    if (fleet_json_item_int(cJSON_GetArrayItem(tuple, cJSON_GetArraySize(tuple) - 1 - behind),
                            &parts) < 0)
        return UNKNOWN;
    return parts;
}

static int64_t either(int64_t a, int64_t b)
{
    return a != UNKNOWN ? a : b;
}

/* The first number of the first tuple. The loss itself has one number, which is no samples. */
static int64_t samples_of(const cJSON *tuples)
{
    int last = cJSON_GetArraySize(cJSON_GetArrayItem(tuples, 0)) - 1;

    return last > 0 ? parts_of(tuples, 0, last) : UNKNOWN;
}

void builder_give(struct builder *b, const struct training_operator_list *given)
{
    b->given = given;
    b->replicas = UNKNOWN;
    for (size_t i = 0; i < given->count; i++) {
        int64_t samples = either(samples_of(given->items[i].in), samples_of(given->items[i].out));

        if (samples != UNKNOWN && (b->replicas == UNKNOWN || samples < b->replicas))
            b->replicas = samples;
    }
}

/* What the entry says of the features, and of the inputs of a layer. */
static int64_t features_of(const struct training_operator *given, bool transposed)
{
    return either(parts_of(given->in, 1, transposed ? 1 : 0), parts_of(given->out, 0, 0));
}

static int64_t inputs_of(const struct training_operator *given, bool transposed)
{
    return either(parts_of(given->in, 1, transposed ? 0 : 1), parts_of(given->in, 0, 0));
}

/* What the entry says of samples and tokens: the first two of three numbers. */
static enum builder_rows rows_of(const struct builder *b, const struct training_operator *given,
                                 enum builder_rows otherwise)
{
    int64_t ranks = b->cell.model_ranks;
    int64_t samples = either(parts_of(given->in, 0, 2), parts_of(given->out, 0, 2));
    int64_t tokens = either(parts_of(given->in, 0, 1), parts_of(given->out, 0, 1));

    if (samples == UNKNOWN)
        return otherwise;
    if (tokens == ranks && b->program->tokens_per_sample % ranks == 0)
        return BUILDER_TOKENS;
    return tokens == 1 && samples == b->replicas * ranks &&
                   b->program->micro_batch_size % ranks == 0
               ? BUILDER_SAMPLES
               : BUILDER_ALL_ROWS;
}

enum builder_rows builder_given_rows(const struct builder *b, const char *name,
                                     enum builder_rows otherwise)
{
    const struct training_operator *given = find(b, name);

    return given ? rows_of(b, given, otherwise) : otherwise;
}

bool builder_given_columns(const struct builder *b, const char *name, bool otherwise)
{
    const struct training_operator *given = find(b, name);
    int64_t columns =
        given ? either(parts_of(given->in, 0, 0), parts_of(given->out, 0, 0)) : UNKNOWN;

    return columns == UNKNOWN ? otherwise : columns > 1;
}

/* True if the strategy of `name` decides the division; then it is in *out, and *rows. */
static bool is_decided(const struct builder *b, const char *name, const struct builder_linear *l,
                       enum builder_division *out, enum builder_rows *rows)
{
    const struct training_operator *given = find(b, name);
    int64_t features, inputs;

    if (!given)
        return false;
    *rows = rows_of(b, given, BUILDER_ALL_ROWS);
    if (*rows != BUILDER_ALL_ROWS) {
        *out = BUILDER_WHOLE;
        return true;
    }
    features = features_of(given, l->transposed);
    inputs = inputs_of(given, l->transposed);
    if (features > 1)
        *out = BUILDER_COLUMNS;
    else if (inputs > 1 && l->activation == OP_ACTIVATION_NONE)
        *out = BUILDER_ROWS;
    else if ((l->division == BUILDER_COLUMNS ? features : inputs) != UNKNOWN)
        *out = BUILDER_WHOLE;
    else
        return false;
    return true;
}

/* Logits that the loss divides, or does not. */
static bool is_decided_by_loss(const struct builder *b, const char *name,
                               enum builder_division *out, enum builder_rows *rows)
{
    const struct training_operator *loss =
        b->layer < 0 && strcmp(name, "lm_head") == 0 ? find(b, "loss") : NULL;

    if (!loss || parts_of(loss->in, 0, 0) == UNKNOWN)
        return false;
    *rows = rows_of(b, loss, BUILDER_ALL_ROWS);
    *out = parts_of(loss->in, 0, 0) > 1 ? BUILDER_COLUMNS : BUILDER_WHOLE;
    return true;
}

enum builder_division builder_decide(const struct builder *b, const char *name, int x,
                                     const struct builder_linear *l, enum builder_rows *rows)
{
    enum builder_division division = l->division;

    *rows = BUILDER_ALL_ROWS;
    if (!b->given || l->division == BUILDER_WHOLE)
        return division;
    if (l->weight > 0 && b->program->vars[l->weight].slice.parts > 0)
        return BUILDER_COLUMNS;
    for (const char *const *sibling = l->siblings; sibling && *sibling; sibling++)
        if (is_decided(b, *sibling, l, &division, rows))
            return division;
    if (is_decided(b, name, l, &division, rows) || is_decided_by_loss(b, name, &division, rows))
        return l->weight > 0 ? BUILDER_WHOLE : division;
    if (l->weight > 0)
        return BUILDER_WHOLE;
    if (l->division == BUILDER_ROWS && builder_columns(b, x) == l->inputs)
        return BUILDER_WHOLE;
    return division;
}

bool builder_table_divided(const struct builder *b, bool is_tied)
{
    const struct training_operator *embedding = find(b, "embedding"), *head = find(b, "lm_head");
    enum builder_division division = BUILDER_COLUMNS;
    enum builder_rows rows = BUILDER_ALL_ROWS;
    int64_t words = embedding ? parts_of(embedding->in, 1, 1) : UNKNOWN;

    if (words == UNKNOWN && is_tied && head)
        words = features_of(head, true);
    if (words != UNKNOWN)
        return words > 1;
    if (is_tied && head && rows_of(b, head, BUILDER_ALL_ROWS) != BUILDER_ALL_ROWS)
        return false;
    if (is_tied)
        (void)is_decided_by_loss(b, "lm_head", &division, &rows);
    return division == BUILDER_COLUMNS;
}

bool builder_heads_divided(struct builder *b, const char *name, int x, int64_t columns)
{
    enum builder_rows rows;
    bool is_whole;

    if (!builder_divides(b) || b->rc < 0)
        return false;
    is_whole = b->given && builder_columns(b, x) == columns;
    b->whole_heads = name ? !builder_given_columns(b, name, !is_whole) : is_whole;
    rows = builder_rows_of(b, x);
    if (name)
        rows = builder_given_rows(b, name, rows);
    if (b->whole_heads && rows == BUILDER_SAMPLES)
        b->attention_rows = rows;
    return !b->whole_heads;
}
