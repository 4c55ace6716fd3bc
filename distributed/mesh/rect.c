/* SPDX-License-Identifier: Apache-2.0 */

#include "distributed/mesh/rect.h"

#include <string.h>

int64_t rect_elements(const struct rect *rect, int dims)
{
    int64_t elements = 1;

    for (int d = 0; d < dims; d++)
        elements *= rect->count[d];
    return elements;
}

struct rect rect_overlap(const struct rect *a, const struct rect *b, int dims)
{
    struct rect out = {{0}, {0}};

    for (int d = 0; d < dims; d++) {
        int64_t end_a = a->first[d] + a->count[d], end_b = b->first[d] + b->count[d];
        int64_t end = end_a < end_b ? end_a : end_b;

        out.first[d] = a->first[d] > b->first[d] ? a->first[d] : b->first[d];
        out.count[d] = end > out.first[d] ? end - out.first[d] : 0;
    }
    return out;
}

void rect_copy(const struct rect *area, int dims, size_t size, const void *from,
               const struct rect *in, void *to, const struct rect *out)
{
    int64_t at[RESHARD_DIMS_MAX] = {0}, rows = 1;
    int last = dims - 1;
    size_t bytes = (size_t)area->count[last] * size;

    for (int d = 0; d < last; d++)
        rows *= area->count[d];
    for (int64_t row = 0; row < rows && bytes > 0; row++) {
        int64_t source = 0, target = 0;

        for (int d = 0; d < dims; d++) {
            int64_t index = area->first[d] + at[d]; /* at[last] is 0 */
            source = source * in->count[d] + index - in->first[d];
            target = target * out->count[d] + index - out->first[d];
        }
        memcpy((char *)to + (size_t)target * size, (const char *)from + (size_t)source * size,
               bytes);
        for (int d = last - 1; d >= 0 && ++at[d] == area->count[d]; d--)
            at[d] = 0;
    }
}
