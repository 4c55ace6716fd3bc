/* SPDX-License-Identifier: Apache-2.0 */

/*
 * malloc() for long runs of short histories (`make soak`): it never gives memory back, so a free
 * block costs a few instructions. A quarter of a simulated history is spent in glibc's malloc().
 *
 * Memory comes in spans of 64 KiB, aligned to their size. A span holds blocks of one size, so the
 * size of a block is found in the head of its span. Each thread has lists of free blocks of its
 * own; a block joins the list of the thread that frees it. Large blocks are mappings of their own.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SPAN      ((size_t)65536)
#define SPANS     ((size_t)64) /* that are mapped at once */
#define STEP      ((size_t)16) /* between the small sizes */
#define SMALL_MAX ((size_t)1024)
#define BLOCK_MAX ((size_t)16384) /* sizes above SMALL_MAX are powers of two up to this one */
#define PAGE      ((size_t)4096)  /* of a large block, before its bytes */
#define CLASSES   (SMALL_MAX / STEP + 1 + 4)

struct span {
    size_t size;   /* of each block; of a large block: its bytes */
    size_t mapped; /* of a large block: the bytes of its mapping; 0 = none */
};

struct block {
    struct block *next;
};

static __thread __attribute__((tls_model("initial-exec"))) struct block *free_blocks[CLASSES];
static __thread __attribute__((tls_model("initial-exec"))) char *fresh, *fresh_end; /* spans */

static size_t class_of(size_t size)
{
    size_t index = SMALL_MAX / STEP + 1;

    if (size <= SMALL_MAX)
        return (size + STEP - 1) / STEP;
    for (size_t above = 2 * SMALL_MAX; above < size; above *= 2)
        index++;
    return index;
}

static size_t size_of(size_t class)
{
    return class <= SMALL_MAX / STEP ? class * STEP
                                     : 2 * SMALL_MAX << (class - SMALL_MAX / STEP - 1);
}

/* Zeroed, aligned to SPAN; NULL if there is no memory. */
static char *map(size_t size)
{
    char *start =
        mmap(NULL, size + SPAN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t skip;

    if (start == MAP_FAILED)
        return NULL;
    skip = (SPAN - (uintptr_t)start % SPAN) % SPAN;
    if (skip > 0)
        (void)munmap(start, skip);
    if (skip < SPAN)
        (void)munmap(start + skip + size, SPAN - skip);
    return start + skip;
}

static void *large_block(size_t size)
{
    size_t mapped = (size + 2 * PAGE - 1) / PAGE * PAGE;
    char *start = size < PTRDIFF_MAX / 2 ? map(mapped) : NULL;

    if (!start) {
        errno = ENOMEM;
        return NULL;
    }
    *(struct span *)start = (struct span){.size = size, .mapped = mapped};
    return start + PAGE;
}

/* Cut a new span into blocks. The first one is the head, which has one size at least: so blocks
 * whose size is a power of two are aligned to it. */
static void *first_of_span(size_t class)
{
    size_t size = size_of(class);
    char *start;

    if (fresh == fresh_end) {
        fresh = map(SPANS * SPAN);
        if (!fresh)
            abort();
        fresh_end = fresh + SPANS * SPAN;
    }
    start = fresh;
    fresh += SPAN;
    *(struct span *)start = (struct span){.size = size};
    for (char *at = start + size; at + 2 * size <= start + SPAN; at += size) {
        struct block *block = (struct block *)(at + size);
        block->next = free_blocks[class];
        free_blocks[class] = block;
    }
    return start + size;
}

void *malloc(size_t size)
{
    size_t class;
    struct block *block;

    if (size > BLOCK_MAX)
        return large_block(size);
    class = class_of(size > STEP ? size : STEP);
    block = free_blocks[class];
    if (!block)
        return first_of_span(class);
    free_blocks[class] = block->next;
    return block;
}

static struct span *span_of(const void *at)
{
    return (struct span *)((uintptr_t)at & ~(SPAN - 1));
}

void free(void *at)
{
    struct span *span = span_of(at);
    struct block *block = at;
    size_t class;

    if (!at)
        return;
    if (span->mapped > 0) {
        (void)munmap(span, span->mapped);
        return;
    }
    class = class_of(span->size);
    block->next = free_blocks[class];
    free_blocks[class] = block;
}

void *calloc(size_t count, size_t size)
{
    size_t bytes;
    void *at;

    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    at = malloc(bytes);
    return at && bytes <= BLOCK_MAX ? memset(at, 0, bytes) : at; /* mappings are zeroed */
}

void *realloc(void *at, size_t size)
{
    size_t old = at ? span_of(at)->size : 0;
    void *larger;

    if (at && size <= old && size > old / 4)
        return at;
    larger = malloc(size);
    if (!larger || !at)
        return larger;
    memcpy(larger, at, old < size ? old : size);
    free(at);
    return larger;
}

void *aligned_alloc(size_t alignment, size_t size)
{
    size_t power = 2 * SMALL_MAX;

    if (alignment <= STEP)
        return malloc(size);
    while (power < size || power < alignment)
        power *= 2;
    if (alignment > PAGE)
        abort();
    return malloc(power);
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    *out = aligned_alloc(alignment, size);
    return *out ? 0 : ENOMEM;
}

void *memalign(size_t alignment, size_t size);

void *memalign(size_t alignment, size_t size)
{
    return aligned_alloc(alignment, size);
}

size_t malloc_usable_size(void *at);

size_t malloc_usable_size(void *at)
{
    return at ? span_of(at)->size : 0;
}
