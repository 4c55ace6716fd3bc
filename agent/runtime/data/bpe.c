/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Merges are a hash table from a pair of ids to (rank, id of the joined token). A word is a linked
 * list of tokens and a heap of the pairs that could be joined, so long words cost n log n. Most
 * words repeat: a table keeps their tokens, and a newer word replaces an older one in the same
 * place.
 */
#include "agent/runtime/data/bpe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/vocabulary.h"

#define REMEMBERED      65536 /* places */
#define REMEMBERED_SIZE 24    /* bytes of a word */
#define REMEMBERED_IDS  8

/* Bytes after a word that are needed to be sure where it ends: a character, or a contraction. */
#define LOOK_AHEAD 8

struct merge {
    uint64_t pair; /* left id << 32 | right id */
    int32_t rank;  /* -1: free place */
    int32_t id;    /* of the joined token */
};

struct remembered {
    uint8_t size, count; /* size 0: free place */
    char word[REMEMBERED_SIZE];
    int32_t ids[REMEMBERED_IDS];
};

/* A token of the word being encoded; joined ones leave the list. */
struct node {
    int32_t id;     /* -1: joined into its left neighbour */
    int prev, next; /* -1 = none */
};

/* A pair that could be joined when it was found. */
struct candidate {
    int32_t rank, joined;
    int left;
    int32_t left_id, right_id;
};

struct bpe {
    int64_t vocabulary;
    int32_t byte_ids[256];
    struct merge *merges; /* [merge_capacity], a power of two */
    size_t merge_capacity;
    struct remembered *remembered;
    struct node *nodes; /* [word_capacity] */
    struct candidate *heap;
    size_t word_capacity, heap_count;
};

/* ---- the files ------------------------------------------------------------------------------- */

static uint64_t hash_of(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static struct merge *merge_place(const struct bpe *bpe, uint64_t pair)
{
    size_t mask = bpe->merge_capacity - 1, at = (size_t)hash_of(pair) & mask;

    while (bpe->merges[at].rank >= 0 && bpe->merges[at].pair != pair)
        at = (at + 1) & mask;
    return &bpe->merges[at];
}

/* One line "left right"; `line` is cut up. */
static int add_merge(struct bpe *bpe, const struct vocabulary *vocabulary, char *line, int32_t rank,
                     struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf joined = {0};
    char *blank = strchr(line, ' ');
    int64_t left, right, id;
    struct merge *place;
    uint64_t pair;

    if (!blank || strchr(blank + 1, ' '))
        return fleet_error(err, -EINVAL, "\"%.60s\" is not two tokens", line);
    *blank = '\0';
    fleet_strbuf_appendf(&joined, "%s%s", line, blank + 1);
    left = vocabulary_id(vocabulary, line);
    right = vocabulary_id(vocabulary, blank + 1);
    id = vocabulary_id(vocabulary, fleet_strbuf_text(&joined));
    if (left < 0 || right < 0 || id < 0)
        return fleet_error(err, -EINVAL, "\"%.60s\" is not in the vocabulary",
                           left < 0    ? line
                           : right < 0 ? blank + 1
                                       : fleet_strbuf_text(&joined));
    pair = (uint64_t)left << 32 | (uint64_t)right;
    place = merge_place(bpe, pair);
    /* the last of two equal lines counts, as in the encoder of GPT-2's authors */
    *place = (struct merge){.pair = pair, .rank = rank, .id = (int32_t)id};
    return 0;
}

static size_t count_lines(const char *text)
{
    size_t lines = 1;

    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

static int load_merges(struct bpe *bpe, const char *path, const struct vocabulary *vocabulary,
                       struct fleet_error *err)
{
    FLEET_AUTO_FREE char *text = NULL;
    size_t size = 0;
    char *rest, *line;
    int32_t number = 0;
    int rc = fleet_file_read(path, BPE_MERGES_FILE_MAX, &text, &size, err);

    if (rc < 0)
        return rc;
    if (memchr(text, '\0', size))
        return fleet_error(err, -EINVAL, "%s: line %zu: a NUL byte is not text", path,
                           count_lines(text));
    bpe->merge_capacity = 1024;
    while (bpe->merge_capacity < 2 * count_lines(text))
        bpe->merge_capacity *= 2;
    bpe->merges = malloc(bpe->merge_capacity * sizeof(*bpe->merges));
    fleet_assert(bpe->merges != NULL);
    for (size_t i = 0; i < bpe->merge_capacity; i++)
        bpe->merges[i].rank = -1;
    for (rest = text; (line = strsep(&rest, "\n"));) {
        number++;
        line[strcspn(line, "\r")] = '\0';
        if (line[0] == '\0' || (number == 1 && strncmp(line, "#version", 8) == 0))
            continue;
        rc = add_merge(bpe, vocabulary, line, number, err);
        if (rc < 0) {
            (void)fleet_error_wrap(err, "%s: line %d", path, number);
            return rc;
        }
    }
    return 0;
}

int bpe_open(const char *vocabulary_path, const char *merges_path, struct bpe **out,
             struct fleet_error *err)
{
    struct bpe *bpe = calloc(1, sizeof(*bpe));
    struct vocabulary vocabulary;
    int rc;

    fleet_assert(bpe != NULL);
    bpe->remembered = calloc(REMEMBERED, sizeof(*bpe->remembered));
    fleet_assert(bpe->remembered != NULL);
    rc = vocabulary_read(vocabulary_path, &vocabulary, err);
    if (rc < 0) {
        (void)fleet_error_wrap(err, VOCABULARY_FIELD);
    } else {
        bpe->vocabulary = vocabulary.size;
        memcpy(bpe->byte_ids, vocabulary.byte_ids, sizeof(bpe->byte_ids));
        rc = load_merges(bpe, merges_path, &vocabulary, err);
        if (rc < 0)
            (void)fleet_error_wrap(err, "spec.training.data.merges");
        vocabulary_release(&vocabulary);
    }
    if (rc < 0) {
        bpe_free(bpe);
        return rc;
    }
    *out = bpe;
    return 0;
}

void bpe_free(struct bpe *bpe)
{
    if (!bpe)
        return;
    free(bpe->merges);
    free(bpe->remembered);
    free(bpe->nodes);
    free(bpe->heap);
    free(bpe);
}

int64_t bpe_vocabulary(const struct bpe *bpe)
{
    return bpe->vocabulary;
}

/* ---- a word ---------------------------------------------------------------------------------- */

static bool comes_before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

static void push(struct bpe *bpe, struct candidate candidate)
{
    size_t at = bpe->heap_count++;

    while (at > 0 && comes_before(&candidate, &bpe->heap[(at - 1) / 2])) {
        bpe->heap[at] = bpe->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    bpe->heap[at] = candidate;
}

static struct candidate pop(struct bpe *bpe)
{
    struct candidate top = bpe->heap[0], last = bpe->heap[--bpe->heap_count];
    size_t at = 0, child;

    while ((child = 2 * at + 1) < bpe->heap_count) {
        if (child + 1 < bpe->heap_count && comes_before(&bpe->heap[child + 1], &bpe->heap[child]))
            child++;
        if (!comes_before(&bpe->heap[child], &last))
            break;
        bpe->heap[at] = bpe->heap[child];
        at = child;
    }
    bpe->heap[at] = last;
    return top;
}

/* Note the pair that begins at `left`, if it can be joined. */
static void consider(struct bpe *bpe, int left)
{
    const struct node *a, *b;
    const struct merge *merge;

    if (left < 0 || bpe->nodes[left].next < 0)
        return;
    a = &bpe->nodes[left];
    b = &bpe->nodes[a->next];
    merge = merge_place(bpe, (uint64_t)a->id << 32 | (uint64_t)b->id);
    if (merge->rank >= 0)
        push(bpe, (struct candidate){merge->rank, merge->id, left, a->id, b->id});
}

static void join(struct bpe *bpe, const struct candidate *candidate)
{
    struct node *a = &bpe->nodes[candidate->left], *b;

    if (a->id != candidate->left_id || a->next < 0 || bpe->nodes[a->next].id != candidate->right_id)
        return; /* one of the two has been joined meanwhile */
    b = &bpe->nodes[a->next];
    b->id = -1;
    a->id = candidate->joined;
    a->next = b->next;
    if (a->next >= 0)
        bpe->nodes[a->next].prev = candidate->left;
    consider(bpe, a->prev);
    consider(bpe, candidate->left);
}

/* Each join removes one pair and adds at most two: 3n candidates are enough. */
static void reserve(struct bpe *bpe, size_t size)
{
    if (size <= bpe->word_capacity)
        return;
    bpe->word_capacity = size < 256 ? 256 : 2 * size;
    free(bpe->nodes);
    free(bpe->heap);
    bpe->nodes = malloc(bpe->word_capacity * sizeof(*bpe->nodes));
    bpe->heap = malloc(3 * bpe->word_capacity * sizeof(*bpe->heap));
    fleet_assert(bpe->nodes && bpe->heap);
}

static void append_id(struct bpe_tokens *tokens, int32_t id)
{
    if (tokens->count == tokens->capacity) {
        tokens->capacity = tokens->capacity ? 2 * tokens->capacity : 1024;
        tokens->ids = realloc(tokens->ids, (size_t)tokens->capacity * sizeof(*tokens->ids));
        fleet_assert(tokens->ids != NULL);
    }
    tokens->ids[tokens->count++] = id;
}

static void merge_word(struct bpe *bpe, const char *word, size_t size, struct bpe_tokens *tokens)
{
    int count = (int)size;

    reserve(bpe, size);
    bpe->heap_count = 0;
    for (int i = 0; i < count; i++)
        bpe->nodes[i] =
            (struct node){bpe->byte_ids[(unsigned char)word[i]], i - 1, i + 1 < count ? i + 1 : -1};
    for (int i = 0; i + 1 < count; i++)
        consider(bpe, i);
    while (bpe->heap_count > 0) {
        struct candidate best = pop(bpe);
        join(bpe, &best);
    }
    for (int i = 0; i >= 0; i = bpe->nodes[i].next)
        append_id(tokens, bpe->nodes[i].id);
}

static uint64_t hash_word(const char *word, size_t size)
{
    uint64_t hash = size;

    for (size_t i = 0; i < size; i++)
        hash = hash * 0x100000001b3u ^ (unsigned char)word[i];
    return hash_of(hash);
}

static void encode_word(struct bpe *bpe, const char *word, size_t size, struct bpe_tokens *tokens)
{
    struct remembered *place;
    int64_t first = tokens->count;

    if (size > REMEMBERED_SIZE) {
        merge_word(bpe, word, size, tokens);
        return;
    }
    place = &bpe->remembered[hash_word(word, size) % REMEMBERED];
    if (place->size == size && memcmp(place->word, word, size) == 0) {
        for (int i = 0; i < place->count; i++)
            append_id(tokens, place->ids[i]);
        return;
    }
    merge_word(bpe, word, size, tokens);
    if (tokens->count - first > REMEMBERED_IDS)
        return;
    place->size = (uint8_t)size;
    place->count = (uint8_t)(tokens->count - first);
    memcpy(place->word, word, size);
    memcpy(place->ids, tokens->ids + first, (size_t)place->count * sizeof(int32_t));
}

size_t bpe_encode(struct bpe *bpe, const char *text, size_t size, bool is_last,
                  struct bpe_tokens *tokens)
{
    size_t at = 0;

    fleet_assert(size <= INT32_MAX);
    while (at < size) {
        size_t length = bpe_word(text + at, size - at);
        if (!is_last && size - at - length < LOOK_AHEAD)
            break;
        encode_word(bpe, text + at, length, tokens);
        at += length;
    }
    return at;
}
