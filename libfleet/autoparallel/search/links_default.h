/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_SEARCH_LINKS_DEFAULT_H
#define LIBFLEET_AUTOPARALLEL_SEARCH_LINKS_DEFAULT_H

#include "libfleet/autoparallel/search/links.h"

/*
 * Rates for a job whose machines nobody has measured: a rank computes on one processor with AVX2,
 * ranks of a node talk by shared memory, nodes by 10 Gbit/s. The memory has no limit. They order
 * divisions; the seconds themselves may be far from those of other machines. All machines have the
 * same rates, so a job gets the same division everywhere. `node`: ranks of a node.
 */
struct links links_default(int node);

#endif
