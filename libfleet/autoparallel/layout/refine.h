/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_LAYOUT_REFINE_H
#define LIBFLEET_AUTOPARALLEL_LAYOUT_REFINE_H

/*
 * Two layouts in the same terms: cut axes of their device matrices and dimensions of their shapes
 * until matrix and shape are the same. No device's slice changes, only the words for it.
 *
 * An axis of 4 is the axes [2,2]; a dimension of 8 that it divides becomes [2,4], each divided by
 * one of them. Entries are compared from the right, where both products start at 1; the greater is
 * cut by the smaller. So a common form exists if each product of last entries divides the next
 * greater one of the other (MindSpore: redistribution_layout_transfer.cc,
 * reshape_layout_transfer.cc).
 */

#include "libfleet/autoparallel/layout.h"

/*
 * Write both, refined. Axes of one device go; dimensions stay as they are where the shapes are
 * equal and no axis has to be cut. False, and nothing of use in the outputs, if no common form
 * exists or it has more than LAYOUT_DIMS_MAX dimensions.
 */
bool layout_refine(const struct layout *a, const struct layout *b, struct layout *out_a,
                   struct layout *out_b);

#endif
