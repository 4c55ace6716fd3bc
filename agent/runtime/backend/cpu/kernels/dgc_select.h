/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_DGC_SELECT_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_DGC_SELECT_H

/*
 * What deep gradient compression sends of one tensor (libfleet/program/dgc.h): the new u and v, the
 * threshold and the message.
 *
 * The k largest magnitudes are found by their bits, which have the same order as the numbers; a NaN
 * is larger than any number. Three histograms narrow the threshold down, by 11, 10 and 10 bits.
 * Counts are whole numbers, so the number of threads does not change the result.
 *
 * Where few elements are sent, one pass over all elements is enough. A sample gives a floor that
 * about three times as many elements reach as are sent. The pass notes these, and histograms and
 * message are made of the notes. A task with too many of them looks at all its elements again, and
 * so do all tasks if fewer than k reach the floor. So the floor never changes the result.
 */

#include "agent/runtime/backend/cpu/kernels/kernel.h"
#include "libfleet/program/dgc.h"

#define DGC_BINS       2048
#define DGC_HISTOGRAMS 3
#define DGC_NAN        UINT32_C(0x7fffffff)
#define DGC_INFINITY   UINT32_C(0x7f800000)
#define DGC_NOTES      DGC_NOTES_MAX /* of a task */
#define DGC_NOTED_OF   32            /* notes are taken if at most one in this number is sent */

/* The elements of a task that reach the floor, in their order. */
struct dgc_notes {
    int64_t count; /* may be more than fit: then none is used */
    uint32_t index[DGC_NOTES];
    float value[DGC_NOTES];
};

_Static_assert(sizeof(struct dgc_notes) == DGC_NOTES_BYTES, "the plan counts notes");

struct dgc {
    const float *param, *gradient, *u, *v;
    int64_t count;
    float factor; /* the gradient's: ranks / leaves, clipped, rescaled */
    float l1, l2, momentum;
    bool nesterov;
    int64_t kept;            /* k */
    double *squares;         /* scratch: one a block */
    int64_t *above, *at;     /* scratch: elements above the threshold and on it, one a task */
    float *sample;           /* scratch: [dgc_sample()] */
    struct dgc_notes *notes; /* scratch: one a task */
    bool has_notes;
    uint32_t floor;           /* the least magnitude that is noted, as bits */
    struct cpu_backend *cpu;  /* whose threads' buffers hold histograms */
    uint32_t found, mask;     /* the bits of the threshold found so far, and which they are */
    uint32_t bins;            /* of the next histogram, … */
    int shift;                /* … which counts the bits from here on */
    uint32_t threshold;       /* the least magnitude that is sent, as bits, … */
    int64_t ties;             /* … and how many elements of exactly that one are sent at most */
    uint32_t *indices, *sent; /* [kept] of the message */
};

struct dgc_lanes {
    v16 u, v;
};

/* u and v of n elements from i on, as the update will have them. */
V_INLINE struct dgc_lanes dgc_moved(const struct dgc *d, int64_t i, int64_t n)
{
    v16 g = v_mul(v_load_n(d->gradient + i, n), v_set(d->factor)), p, u, v;

    if (d->l2 != 0 || d->l1 != 0) {
        p = v_load_n(d->param + i, n);
        g = v_fma(v_set(d->l2), p, g);
        g = v_add(g, v_select(v_less(v_zero(), p), v_set(d->l1), v_zero()));
        g = v_sub(g, v_select(v_less(p, v_zero()), v_set(d->l1), v_zero()));
    }
    u = v_load_n(d->u + i, n);
    v = v_load_n(d->v + i, n);
    if (d->nesterov) {
        u = v_mul(v_set(d->momentum), v_add(u, g));
        v = v_add(v_add(v, u), g);
    } else {
        u = v_fma(v_set(d->momentum), u, g);
        v = v_add(v, u);
    }
    return (struct dgc_lanes){u, v};
}

/* v of n <= 16 elements from i on. False, and `out` is not written, if the magnitudes of all are
 * below the number with the bits `least`: almost everywhere, once a threshold is known. */
V_INLINE bool dgc_values(const struct dgc *d, int64_t i, int64_t n, uint32_t least,
                         float out[V_LANES])
{
    v16 v = dgc_moved(d, i, n).v;

    if (v_all(v_less(v_max(v, v_sub(v_zero(), v)), v_set(typed_float_of_bits(least)))))
        return false;
    v_store(out, v);
    return true;
}

/* The magnitude of a number, as bits that are ordered as magnitudes are. */
static inline uint32_t dgc_key(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    bits &= DGC_NAN;
    return bits > DGC_INFINITY ? DGC_NAN : bits;
}

/* ---- looking at elements --------------------------------------------------------------------- */

static int64_t dgc_first(int64_t task)
{
    return task * KERNEL_TASK_ELEMENTS;
}

static int64_t dgc_end(const struct dgc *d, int64_t task)
{
    return kernel_least(dgc_first(task + 1), d->count);
}

/* Note what reaches the floor. */
static void dgc_note_task(void *context, int64_t task, int thread)
{
    const struct dgc d = *(const struct dgc *)context; /* in registers: the notes are not in it */
    struct dgc_notes *notes = &d.notes[task];
    int64_t to = dgc_end(&d, task), count = 0;

    (void)thread;
    for (int64_t i = dgc_first(task); i < to; i += V_LANES) {
        float x[V_LANES];
        int64_t n = kernel_least(to - i, V_LANES);
        if (!dgc_values(&d, i, n, d.floor, x))
            continue;
        for (int64_t l = 0; l < n; l++) {
            if (dgc_key(x[l]) < d.floor)
                continue;
            if (count < DGC_NOTES) {
                notes->index[count] = (uint32_t)(i + l);
                notes->value[count] = x[l];
            }
            count++;
        }
    }
    notes->count = count;
}

/* What a look does with element i, whose v is `value`. */
typedef void dgc_visit(const struct dgc *d, void *state, int64_t i, float value);

/* Look at the elements of a task in their order, or at those that reach `least`. */
V_INLINE void dgc_look(const struct dgc *d, int64_t task, uint32_t least, dgc_visit *visit,
                       void *state)
{
    const struct dgc_notes *notes = &d->notes[task];
    int64_t to = dgc_end(d, task);

    if (d->has_notes && notes->count <= DGC_NOTES) {
        for (int64_t j = 0; j < notes->count; j++)
            visit(d, state, notes->index[j], notes->value[j]);
        return;
    }
    for (int64_t i = dgc_first(task); i < to; i += V_LANES) {
        float x[V_LANES];
        int64_t n = kernel_least(to - i, V_LANES);
        if (dgc_values(d, i, n, least, x))
            for (int64_t l = 0; l < n; l++)
                visit(d, state, i + l, x[l]);
    }
}

/* ---- the threshold --------------------------------------------------------------------------- */

V_INLINE void dgc_count(const struct dgc *d, void *state, int64_t i, float value)
{
    uint32_t key = dgc_key(value);
    int64_t *bins = state;

    (void)i;
    if ((key & d->mask) == d->found)
        bins[(key >> d->shift) & (d->bins - 1)]++;
}

static void dgc_count_task(void *context, int64_t task, int thread)
{
    const struct dgc *d = context;

    dgc_look(d, task, d->found, dgc_count, cpu_thread_buffer(d->cpu, thread));
}

static void dgc_clear_bins(const struct dgc *d)
{
    for (int t = 0; t < d->cpu->threads; t++)
        memset(cpu_thread_buffer(d->cpu, t), 0, DGC_BINS * sizeof(int64_t));
}

/* Go from the largest bin down to the one that holds number *rank (from 1) of the largest; *rank
 * becomes its number within the bin. */
static uint32_t dgc_find_bin(const struct dgc *d, int64_t *rank)
{
    for (uint32_t bin = d->bins - 1;; bin--) {
        int64_t held = 0;
        for (int t = 0; t < d->cpu->threads; t++)
            held += ((const int64_t *)cpu_thread_buffer(d->cpu, t))[bin];
        if (*rank <= held || bin == 0)
            return bin;
        *rank -= held;
    }
}

/* Set the threshold to number `rank` of the largest of x[count]; of all elements if x is NULL. */
static void dgc_find_threshold(struct dgc *d, const float *x, int64_t count, int64_t rank)
{
    static const int bits[DGC_HISTOGRAMS] = {11, 10, 10};

    d->found = d->mask = 0;
    d->shift = 31;
    for (int i = 0; i < DGC_HISTOGRAMS; i++) {
        d->shift -= bits[i];
        d->bins = UINT32_C(1) << bits[i];
        dgc_clear_bins(d);
        for (int64_t j = 0; x && j < count; j++)
            dgc_count(d, cpu_thread_buffer(d->cpu, 0), j, x[j]);
        if (!x)
            cpu_parallel(d->cpu, kernel_pieces(d->count, KERNEL_TASK_ELEMENTS), dgc_count_task, d);
        d->found |= dgc_find_bin(d, &rank) << d->shift;
        d->mask |= (d->bins - 1) << d->shift;
    }
    d->threshold = d->found;
    d->ties = rank;
}

/* Elements at equal distances. */
static void dgc_take_sample(const struct dgc *d, int64_t count)
{
    for (int64_t j = 0; j < count; j++)
        d->sample[j] = kernel_lane(dgc_moved(d, j * d->count / count, 1).v);
}

/* Note all elements that reach `floor`; returns their number. */
static int64_t dgc_note(struct dgc *d, uint32_t floor)
{
    int64_t tasks = kernel_pieces(d->count, KERNEL_TASK_ELEMENTS), noted = 0;

    d->floor = floor;
    d->has_notes = true;
    cpu_parallel(d->cpu, tasks, dgc_note_task, d);
    for (int64_t t = 0; t < tasks; t++)
        noted += d->notes[t].count;
    return noted;
}

/* A magnitude that about three times as many elements reach as are sent, as bits. The sample is
 * groups of neighbours, which are quick to read. */
static uint32_t dgc_guess(struct dgc *d)
{
    int64_t groups = dgc_sample(d->count) / V_LANES, step = d->count / groups / V_LANES * V_LANES;
    double expected = (double)(groups * V_LANES) * (double)d->kept / (double)d->count;

    for (int64_t j = 0; j < groups; j++)
        v_store(d->sample + j * V_LANES, dgc_moved(d, j * step, V_LANES).v);
    dgc_find_threshold(d, d->sample, groups * V_LANES, (int64_t)(2 * expected) + V_LANES);
    return d->threshold;
}

/* The threshold of all elements, exactly. */
static void dgc_find_exact(struct dgc *d)
{
    if (d->kept <= d->count / DGC_NOTED_OF)
        d->has_notes = dgc_note(d, dgc_guess(d)) >= d->kept;
    dgc_find_threshold(d, NULL, 0, d->kept);
}

/* ---- taking what is sent --------------------------------------------------------------------- */

/* How many elements of a task lie above the threshold, and on it. */
struct dgc_told {
    int64_t above, at;
};

V_INLINE void dgc_tell(const struct dgc *d, void *state, int64_t i, float value)
{
    struct dgc_told *told = state;

    (void)i;
    told->above += dgc_key(value) > d->threshold;
    told->at += dgc_key(value) == d->threshold;
}

static void dgc_tell_task(void *context, int64_t task, int thread)
{
    const struct dgc *d = context;
    struct dgc_told told = {0};

    (void)thread;
    dgc_look(d, task, d->threshold, dgc_tell, &told);
    d->above[task] = told.above;
    d->at[task] = told.at;
}

/* above[] and at[] become the numbers in front of each task; returns how many elements are sent. */
static int64_t dgc_place_tasks(const struct dgc *d)
{
    int64_t tasks = kernel_pieces(d->count, KERNEL_TASK_ELEMENTS), above = 0, at = 0;

    for (int64_t t = 0; t < tasks; t++) {
        int64_t here = d->above[t], here_at = d->at[t];
        d->above[t] = above;
        d->at[t] = at;
        above += here;
        at += here_at;
    }
    return kernel_least(above + kernel_least(at, d->ties), d->kept);
}

/* The next place in the message, and the ties in front of it. */
struct dgc_taken {
    int64_t place, at;
};

V_INLINE void dgc_take(const struct dgc *d, void *state, int64_t i, float value)
{
    struct dgc_taken *taken = state;
    uint32_t key = dgc_key(value);
    bool is_tie = key == d->threshold;

    if (taken->place >= d->kept || key < d->threshold || (is_tie && taken->at >= d->ties))
        return;
    taken->at += is_tie;
    d->indices[taken->place] = (uint32_t)i;
    memcpy(&d->sent[taken->place], &value, sizeof(value));
    taken->place++;
}

static void dgc_take_task(void *context, int64_t task, int thread)
{
    const struct dgc *d = context;
    int64_t at = d->at[task];
    struct dgc_taken taken = {.place = d->above[task] + kernel_least(at, d->ties), .at = at};

    (void)thread;
    dgc_look(d, task, d->threshold, dgc_take, &taken);
}

#endif
