/* SPDX-License-Identifier: Apache-2.0 */

/* Reductions at level avx2. */
#define COMM_FOLDINGS comm_foldings_avx2
#include "agent/runtime/comm/fold_loops.h"
