/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_NCCL_ENDING_H
#define CUDA_NCCL_ENDING_H

/*
 * ncclCommAbort() takes hundreds of milliseconds: it joins NCCL's threads and frees its memory. So
 * it runs in a thread of its own for each communicator, and the trainer reports at once that its
 * generation is over.
 *
 * Any thread.
 */

#include <stdbool.h>

#include "cuda/nccl_library.h"

/* Abort `comm`, which nobody may use any more. False: there is no thread for that. */
bool nccl_ending_start(const struct nccl_library *library, ncclComm_t comm);

/* Wait until all that was started has returned. */
void nccl_ending_wait(void);

#endif
