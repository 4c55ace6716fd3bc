/* SPDX-License-Identifier: Apache-2.0 */

/* Reductions at level avx512. */
#define COMM_FOLDINGS comm_foldings_avx512
#include "agent/runtime/comm/fold_loops.h"
