/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/checkpoint/match.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/checkpoint/tensors.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/map.h"
#include "libfleet/base/memory.h"
#include "libfleet/checkpoint/safetensors.h"
#include "libfleet/program/slice.h"

/* One tensor of a file: it is elements [first, …) of the whole tensor that one of the program's is,
 * or is a part of. */
struct match {
    const struct safetensors_tensor *from;
    const struct checkpoint_tensor *to;
    int64_t first;
};

#define SHOWN_MAX 3 /* tensors that do not fit, one by one, of each kind */

/* Why a tensor does not fit. */
enum misfit {
    MISFIT_OTHER,
    MISFIT_SHAPE,
    MISFIT_MISSING,
    MISFITS
};

struct matcher {
    struct checkpoint_tensors wanted;
    struct fleet_map by_name; /* name -> struct checkpoint_tensor */
    int64_t *found;           /* [wanted.count]: our elements of each that files hold */
    struct match *matches;    /* [match_count] */
    size_t match_count;
    bool is_foreign; /* files that others made: other types, more tensors than ours */
    enum misfit misfits[FLEET_ERRORS_MAX]; /* of each error */
    int64_t their_width, our_width;        /* of the models, where they differ; 0 = not known */
};

static void matcher_init(struct matcher *m, const struct checkpoint_state *state)
{
    *m = (struct matcher){0};
    checkpoint_tensors_init(&m->wanted, state);
    m->found = calloc(m->wanted.count + 1, sizeof(*m->found));
    fleet_assert(m->found != NULL);
    for (size_t i = 0; i < m->wanted.count; i++)
        fleet_assert(fleet_map_insert(&m->by_name, m->wanted.items[i].name, &m->wanted.items[i]));
}

static void matcher_release(struct matcher *m)
{
    fleet_map_release(&m->by_name);
    checkpoint_tensors_release(&m->wanted);
    free(m->found);
    free(m->matches);
}

/* The error that was added last is of this kind. */
static void note_misfit(struct matcher *m, const struct fleet_errors *errors, enum misfit kind)
{
    if (errors->count <= FLEET_ERRORS_MAX)
        m->misfits[errors->count - 1] = kind;
}

static bool has_suffix(const char *text, const char *suffix)
{
    size_t n = strlen(text), k = strlen(suffix);

    return n >= k && strcmp(text + n - k, suffix) == 0;
}

/* 1 if both hold the same bytes, 0 if not, -errno if one cannot be read. */
static int is_equal(const struct safetensors_tensor *a, const struct safetensors_tensor *b,
                    struct fleet_error *err)
{
    uint8_t chunks[2][8192];

    if (a->type != b->type || a->bytes != b->bytes)
        return 0;
    for (uint64_t at = 0; at < a->bytes; at += sizeof(chunks[0])) {
        size_t size =
            a->bytes - at < sizeof(chunks[0]) ? (size_t)(a->bytes - at) : sizeof(chunks[0]);
        int rc = safetensors_read(a, at, chunks[0], size, err);
        if (rc == 0)
            rc = safetensors_read(b, at, chunks[1], size, err);
        if (rc < 0)
            return rc;
        if (memcmp(chunks[0], chunks[1], size) != 0)
            return 0;
    }
    return 1;
}

/* Whether `tensor` is the output head of a GPT-2 that is the same matrix as its token embedding;
 * -errno if they cannot be read. */
static int is_tied_head(const struct safetensors_file *file,
                        const struct safetensors_tensor *tensor, struct fleet_error *err)
{
    const struct safetensors_tensor *embedding = safetensors_find(file, "transformer.wte.weight");

    if (!embedding)
        embedding = safetensors_find(file, "wte.weight");
    return strcmp(tensor->name, "lm_head.weight") == 0 && embedding
               ? is_equal(embedding, tensor, err)
               : 0;
}

/* Published GPT-2 and ResNet files have tensors that no model needs: causal masks, counters. No
 * other extra tensor is allowed. */
static void check_superfluous(const struct matcher *m, const struct safetensors_file *file,
                              const struct safetensors_tensor *tensor, struct fleet_errors *errors)
{
    struct fleet_error err;
    int is_tied;

    if (m->is_foreign && ((has_suffix(tensor->name, ".attn.bias") && tensor->ndim == 4) ||
                          has_suffix(tensor->name, ".attn.masked_bias") ||
                          has_suffix(tensor->name, ".num_batches_tracked")))
        return;
    is_tied = m->is_foreign ? is_tied_head(file, tensor, &err) : 0;
    if (is_tied < 0)
        fleet_errors_add(errors, tensor->name, "%s", err.text);
    else if (is_tied == 0)
        fleet_errors_add(errors, tensor->name, "not in the model");
}

/* Ours that `tensor` is or is a piece of; NULL if none. */
static struct checkpoint_tensor *find_wanted(const struct matcher *m,
                                             const struct safetensors_tensor *tensor,
                                             int64_t *out_first, bool *out_is_piece)
{
    static const char prefix[] = "transformer."; /* of GPT-2 with a head, saved as a whole */
    struct checkpoint_tensor *to = fleet_map_get(&m->by_name, tensor->name);
    char base[SAFETENSORS_NAME_MAX + 1];
    char *at, *end;

    *out_first = 0;
    *out_is_piece = false;
    if (!to && m->is_foreign && strncmp(tensor->name, prefix, strlen(prefix)) == 0)
        to = fleet_map_get(&m->by_name, tensor->name + strlen(prefix));
    if (to || m->is_foreign)
        return to;
    (void)snprintf(base, sizeof(base), "%s", tensor->name);
    at = strrchr(base, '@');
    if (!at || at[1] < '0' || at[1] > '9')
        return NULL;
    *at = '\0';
    errno = 0;
    *out_first = strtoll(at + 1, &end, 10);
    *out_is_piece = true;
    return errno == 0 && *end == '\0' ? fleet_map_get(&m->by_name, base) : NULL;
}

static bool shapes_are_equal(const struct safetensors_tensor *from,
                             const struct checkpoint_tensor *to)
{
    int64_t shape[PROGRAM_DIMS_MAX];

    slice_whole_shape(to->var, shape);
    if (from->ndim != to->var->ndim)
        return false;
    for (int i = 0; i < from->ndim; i++)
        if (from->shape[i] != shape[i])
            return false;
    return true;
}

/* The elements of `var` among places [first, first + count) of the whole tensor. */
static int64_t count_own(const struct program_var *var, int64_t first, int64_t count)
{
    int64_t own = 0, run;

    for (int64_t at = first; at < first + count; at += run) {
        bool is_own = slice_find(var, at, &run) != SLICE_NOWHERE;
        run = run < first + count - at ? run : first + count - at;
        own += is_own ? run : 0;
    }
    return own;
}

static bool type_fits(const struct matcher *m, enum safetensors_type type)
{
    if (!m->is_foreign)
        return type == SAFETENSORS_F32;
    return type == SAFETENSORS_F32 || type == SAFETENSORS_BF16 || type == SAFETENSORS_F16 ||
           type == SAFETENSORS_F64;
}

/* A vector as long as the model is wide, of a file and of a model that differ in it: the weights of
 * a normalization. */
static void note_width(struct matcher *m, const struct safetensors_tensor *from)
{
    const struct checkpoint_tensor *to = fleet_map_get(&m->by_name, from->name);

    if (m->our_width > 0 || !to || to->var->ndim != 1 || from->ndim != 1 ||
        !(strstr(to->name, "ln_") || strstr(to->name, "norm")))
        return;
    m->their_width = from->shape[0];
    m->our_width = to->var->shape[0];
}

static void refuse_shape(struct matcher *m, const struct safetensors_tensor *from,
                         const struct checkpoint_tensor *to, struct fleet_errors *errors)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    int64_t shape[PROGRAM_DIMS_MAX];

    slice_whole_shape(to->var, shape);
    fleet_strbuf_append(&text, "shape ");
    safetensors_print_shape(from->shape, from->ndim, &text);
    fleet_strbuf_append(&text, ", the model's is ");
    safetensors_print_shape(shape, to->var->ndim, &text);
    fleet_errors_add(errors, from->name, "%s", text.text);
    note_misfit(m, errors, MISFIT_SHAPE);
    if (errors->count <= FLEET_ERRORS_MAX)
        note_width(m, from);
}

static void match_tensor(struct matcher *m, const struct safetensors_file *file,
                         const struct safetensors_tensor *tensor, struct fleet_errors *errors)
{
    int64_t first, count = safetensors_elements(tensor);
    bool is_piece;
    struct checkpoint_tensor *to = find_wanted(m, tensor, &first, &is_piece);
    size_t index = to ? (size_t)(to - m->wanted.items) : 0;

    if (!to) {
        check_superfluous(m, file, tensor, errors);
        return;
    }
    if (!type_fits(m, tensor->type))
        fleet_errors_add(errors, tensor->name, "type %s, expected %s",
                         safetensors_type_name(tensor->type),
                         m->is_foreign ? "F32, BF16, F16 or F64" : "F32");
    else if (is_piece && (tensor->ndim != 1 || first > slice_whole_elements(to->var) - count))
        fleet_errors_add(errors, tensor->name, "does not fit into the %lld elements of %s",
                         (long long)slice_whole_elements(to->var), to->name);
    else if (!is_piece && !shapes_are_equal(tensor, to))
        refuse_shape(m, tensor, to, errors);
    else {
        m->matches[m->match_count++] = (struct match){tensor, to, first};
        m->found[index] += count_own(to->var, first, count);
        return;
    }
    m->found[index] = to->elements; /* it is there, and one error is enough */
}

static void match_file(struct matcher *m, const struct safetensors_file *file,
                       struct fleet_errors *errors)
{
    m->matches = fleet_grow(m->matches, m->match_count + file->count, sizeof(*m->matches));
    for (size_t i = 0; i < file->count; i++)
        match_tensor(m, file, &file->tensors[i], errors);
}

static int compare_places(const void *a, const void *b)
{
    const struct match *x = a, *y = b;

    if (x->to != y->to)
        return x->to < y->to ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

/* The right number of elements may still leave a hole and hold as many twice. */
static void find_overlaps(struct matcher *m, struct fleet_errors *errors)
{
    int64_t end = 0;

    if (m->match_count)
        qsort(m->matches, m->match_count, sizeof(*m->matches), compare_places);
    for (size_t i = 0; i < m->match_count; i++) {
        const struct match *match = &m->matches[i];
        if (i == 0 || match->to != m->matches[i - 1].to)
            end = 0;
        if (match->first < end)
            fleet_errors_add(errors, match->to->name, "holds element %lld twice",
                             (long long)match->first);
        if (match->first + safetensors_elements(match->from) > end)
            end = match->first + safetensors_elements(match->from);
    }
}

static void find_missing(struct matcher *m, struct fleet_errors *errors)
{
    for (size_t i = 0; i < m->wanted.count; i++) {
        const struct checkpoint_tensor *tensor = &m->wanted.items[i];
        if (m->found[i] == 0 && tensor->elements > 0) {
            fleet_errors_add(errors, tensor->name, "missing");
            note_misfit(m, errors, MISFIT_MISSING);
        } else if (m->found[i] < tensor->elements)
            fleet_errors_add(errors, tensor->name, "%lld of %lld elements are missing",
                             (long long)(tensor->elements - m->found[i]),
                             (long long)tensor->elements);
    }
}

/* Read our elements of a match to `host`, the memory of all that we have of the tensor. */
static int read_own(const struct match *match, float *host, struct fleet_error *err)
{
    int64_t end = match->first + safetensors_elements(match->from), run;
    int rc = 0;

    for (int64_t at = match->first; at < end && rc == 0; at += run) {
        int64_t own = slice_find(match->to->var, at, &run);
        run = run < end - at ? run : end - at;
        if (own != SLICE_NOWHERE)
            rc = safetensors_read_f32(match->from, at - match->first, run, host + own, err);
    }
    return rc;
}

/* A file that fails in the middle leaves the state half new: the caller begins again or ends. */
static int copy_matches(const struct matcher *m, struct fleet_error *err)
{
    int rc = 0;

    for (size_t i = 0; i < m->match_count && rc == 0; i++) {
        const struct match *match = &m->matches[i];
        size_t bytes = (size_t)match->to->elements * sizeof(float);
        float *host;
        if (!match->to->data) /* another rank reads it */
            continue;
        host = backend_map(m->wanted.backend, match->to->data, bytes, BACKEND_CHANGE);
        rc = read_own(match, host, err);
        backend_unmap(m->wanted.backend, match->to->data, bytes, BACKEND_CHANGE, host);
    }
    return rc;
}

/* Another model than the file's differs in nearly every tensor: say in what, and show some. */
static void summarize(const struct matcher *m, struct fleet_errors *errors)
{
    struct fleet_errors few = {0};
    size_t shown[MISFITS] = {0}, left_out = 0;

    if (m->our_width > 0)
        fleet_errors_add(&few, "", "the checkpoint has width %lld, this model %lld",
                         (long long)m->their_width, (long long)m->our_width);
    for (size_t i = 0; i < errors->count && i < FLEET_ERRORS_MAX; i++)
        if (shown[m->misfits[i]]++ < SHOWN_MAX)
            fleet_errors_add(&few, errors->items[i].path, "%s", errors->items[i].message);
        else
            left_out++;
    if (errors->count > FLEET_ERRORS_MAX)
        left_out += errors->count - FLEET_ERRORS_MAX;
    if (left_out > 0)
        fleet_errors_add(&few, "", "and %zu more of the kind", left_out);
    fleet_errors_release(errors);
    *errors = few;
}

int match_load_files(const struct safetensors_file *files, size_t count, bool is_foreign,
                     const struct checkpoint_state *state, struct fleet_error *err)
{
    struct fleet_errors errors = {0};
    struct matcher m;
    int rc;

    matcher_init(&m, state);
    m.is_foreign = is_foreign;
    for (size_t i = 0; i < count; i++)
        match_file(&m, &files[i], &errors);
    find_missing(&m, &errors);
    find_overlaps(&m, &errors);
    summarize(&m, &errors);
    rc = fleet_errors_result(&errors, err);
    if (rc == 0)
        rc = copy_matches(&m, err);
    fleet_errors_release(&errors);
    matcher_release(&m);
    return rc;
}
