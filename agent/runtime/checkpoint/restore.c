/* SPDX-License-Identifier: Apache-2.0 */

/*
 * From files back into the flat spaces. First every tensor of the files is matched with what the
 * state wants, and all that does not fit is listed; only then is anything copied.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/checkpoint/tensors.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/map.h"
#include "libfleet/base/memory.h"
#include "libfleet/checkpoint/safetensors.h"
#include "libfleet/training/training.h"

/* One tensor of a file that goes to elements [first, …) of one of the program's. */
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
    int64_t *found;           /* [wanted.count]: elements of each that files hold */
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
    if (from->ndim != to->var->ndim)
        return false;
    for (int i = 0; i < from->ndim; i++)
        if (from->shape[i] != to->var->shape[i])
            return false;
    return true;
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

    fleet_strbuf_append(&text, "shape ");
    safetensors_print_shape(from->shape, from->ndim, &text);
    fleet_strbuf_append(&text, ", the model's is ");
    safetensors_print_shape(to->var->shape, to->var->ndim, &text);
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
    m->found[index] += count;
    if (!type_fits(m, tensor->type))
        fleet_errors_add(errors, tensor->name, "type %s, expected %s",
                         safetensors_type_name(tensor->type),
                         m->is_foreign ? "F32, BF16, F16 or F64" : "F32");
    else if (is_piece && (tensor->ndim != 1 || first > to->elements - count))
        fleet_errors_add(errors, tensor->name, "does not fit into the %lld elements of %s",
                         (long long)to->elements, to->name);
    else if (!is_piece && !shapes_are_equal(tensor, to))
        refuse_shape(m, tensor, to, errors);
    else
        m->matches[m->match_count++] = (struct match){tensor, to, first};
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

/* A file that fails in the middle leaves the state half new: the caller begins again or ends. */
static int copy_matches(const struct matcher *m, struct fleet_error *err)
{
    int rc = 0;

    for (size_t i = 0; i < m->match_count && rc == 0; i++) {
        const struct match *match = &m->matches[i];
        int64_t count = safetensors_elements(match->from);
        size_t bytes = (size_t)count * sizeof(float);
        float *place, *host;
        if (!match->to->data) /* another rank reads it */
            continue;
        place = match->to->data + match->first;
        host = backend_map(m->wanted.backend, place, bytes, BACKEND_WRITE);
        rc = safetensors_read_f32(match->from, 0, count, host, err);
        backend_unmap(m->wanted.backend, place, bytes, BACKEND_WRITE, host);
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

/* Match `files` with `state` and copy. -EINVAL with everything that does not fit; -EIO if a file
 * becomes shorter meanwhile. */
static int load_files(const struct safetensors_file *files, size_t count, bool is_foreign,
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

/* ---- checkpoints ----------------------------------------------------------------------------- */

static int load_checkpoint(const char *folder, const struct manifest *manifest, bool weights_only,
                           const struct checkpoint_state *state, struct fleet_error *err)
{
    struct safetensors_file *files = calloc(manifest->file_count + 1, sizeof(*files));
    size_t opened = 0;
    int rc = 0;

    fleet_assert(files != NULL);
    for (size_t i = 0; i < manifest->file_count && rc == 0; i++) {
        FLEET_AUTO_FREE char *path = fleet_file_join(folder, manifest->files[i].name);
        if (weights_only && !manifest_is_model_file(manifest->files[i].name))
            continue;
        rc = safetensors_open(path, &files[opened], err);
        if (rc == 0)
            opened++;
    }
    if (rc == 0)
        rc = load_files(files, opened, false, state, err);
    for (size_t i = 0; i < opened; i++)
        safetensors_release(&files[i]);
    free(files);
    return rc;
}

/* The first of `list` that is of the wanted step and verifies; -1 if none, *out_seen = of that
 * step. */
static int choose_sound(const char *path, int64_t resume, const struct manifest_list *list,
                        struct fleet_errors *warnings, size_t *out_seen)
{
    *out_seen = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct manifest_entry *entry = &list->entries[i];
        FLEET_AUTO_FREE char *folder = fleet_file_join(path, entry->folder);
        struct fleet_error why;
        if (resume >= 0 && entry->manifest.step != resume)
            continue;
        (*out_seen)++;
        if (manifest_verify(folder, &entry->manifest, &why) == 0)
            return (int)i;
        if (warnings)
            fleet_errors_add(warnings, entry->folder, "%s", why.text);
    }
    return -1;
}

static int restore_from(const char *path, struct manifest_list *list, int index,
                        const struct checkpoint_state *state, struct manifest *out_manifest,
                        char folder[CHECKPOINT_FOLDER_MAX], struct fleet_error *err)
{
    struct manifest_entry *entry = &list->entries[index];
    FLEET_AUTO_FREE char *place = fleet_file_join(path, entry->folder);
    int rc = load_checkpoint(place, &entry->manifest, false, state, err);

    if (rc < 0) {
        (void)fleet_error_wrap(err, "checkpoint %s", place);
        return rc;
    }
    (void)snprintf(folder, CHECKPOINT_FOLDER_MAX, "%s", entry->folder);
    *out_manifest = entry->manifest;
    entry->manifest = (struct manifest){0}; /* moved */
    return 0;
}

/* auto goes on from the newest run, not from the highest step: say so where a higher one lies
 * there. */
static void report_higher_steps(const struct manifest_list *list, size_t chosen,
                                struct fleet_errors *warnings)
{
    int64_t step = list->entries[chosen].manifest.step;

    for (size_t i = chosen + 1; i < list->count; i++)
        if (list->entries[i].manifest.step > step)
            fleet_errors_add(warnings, list->entries[i].folder,
                             "it is of a higher step, but of an older run than %s; resume: %lld "
                             "goes on from it",
                             list->entries[chosen].folder,
                             (long long)list->entries[i].manifest.step);
}

int checkpoint_restore(const char *path, int64_t resume, const struct manifest_history *history,
                       struct checkpoint_state *state, struct manifest *out_manifest,
                       char folder[CHECKPOINT_FOLDER_MAX], struct fleet_errors *warnings,
                       struct fleet_error *err)
{
    struct fleet_errors unreadable = {0};
    struct manifest_list list;
    size_t seen;
    int rc = manifest_scan(path, history, &list, &unreadable, err), index;

    if (rc < 0)
        return rc;
    for (size_t i = 0; warnings && i < unreadable.count && i < FLEET_ERRORS_MAX; i++)
        fleet_errors_add(warnings, unreadable.items[i].path, "%s", unreadable.items[i].message);
    index = choose_sound(path, resume, &list, warnings, &seen);
    if (index >= 0 && resume == TRAINING_RESUME_AUTO && !history && warnings)
        report_higher_steps(&list, (size_t)index, warnings);
    if (index >= 0)
        rc = restore_from(path, &list, index, state, out_manifest, folder, err);
    else if (seen > 0 || (resume < 0 && unreadable.count > 0))
        rc = fleet_error(err, -EBADMSG, "%s: no checkpoint of %zu is sound", path,
                         seen + unreadable.count);
    else if (resume >= 0)
        rc = fleet_error(err, -ENOENT, "%s: there is no checkpoint of step %lld", path,
                         (long long)resume);
    else
        rc = fleet_error(err, -ENOENT, "%s: there is no checkpoint", path);
    manifest_list_release(&list);
    fleet_errors_release(&unreadable);
    return rc;
}

int checkpoint_load_folder(const char *folder, const struct manifest *manifest, bool weights_only,
                           struct checkpoint_state *state, struct fleet_error *err)
{
    return load_checkpoint(folder, manifest, weights_only, state, err) < 0
               ? fleet_error_wrap(err, "checkpoint %s", folder)
               : 0;
}

/* ---- weights --------------------------------------------------------------------------------- */

int checkpoint_load_weights(const char *path, struct checkpoint_state *state,
                            struct fleet_error *err)
{
    struct checkpoint_state weights = *state;
    struct safetensors_file file;
    int rc = safetensors_open(path, &file, err);

    if (rc < 0)
        return rc;
    for (int i = 0; i < weights.space_count; i++)
        if (weights.spaces[i].suffix[0] != '\0') { /* optimizer states stay as they are */
            weights.spaces[i].data = NULL;
            weights.spaces[i].is_elsewhere = false;
        }
    rc = load_files(&file, 1, true, &weights, err);
    safetensors_release(&file);
    if (rc < 0)
        (void)fleet_error_wrap(err, "%s", path);
    return rc;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct checkpoint_tensor *)a)->name,
                  ((const struct checkpoint_tensor *)b)->name);
}

void checkpoint_weights_sha256(const struct program *program, struct backend *backend,
                               const float *parameters, char out[FLEET_SHA256_HEX_SIZE])
{
    struct checkpoint_tensors tensors;
    struct checkpoint_state state;
    struct fleet_sha256 *sha = fleet_sha256_new();
    uint8_t digest[FLEET_SHA256_SIZE];

    checkpoint_state_init(&state, program, backend, (float *)parameters, NULL, NULL, NULL);
    checkpoint_tensors_init(&tensors, &state);
    if (tensors.count)
        qsort(tensors.items, tensors.count, sizeof(*tensors.items), compare_names);
    for (size_t i = 0; i < tensors.count; i++) {
        float *data = tensors.items[i].data;
        size_t bytes = (size_t)tensors.items[i].elements * sizeof(*data);
        void *host = backend_map(backend, data, bytes, BACKEND_READ);
        fleet_sha256_update(sha, host, bytes);
        backend_unmap(backend, data, bytes, BACKEND_READ, host);
    }
    checkpoint_tensors_release(&tensors);
    fleet_sha256_finish(sha, digest);
    fleet_hex_encode(digest, sizeof(digest), out);
}
