/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_NCCL_LIBRARY_H
#define CUDA_NCCL_LIBRARY_H

/*
 * Opens NCCL: the file that the environment variable FLEET_NCCL_LIBRARY names, else libnccl.so.2
 * where the loader looks; "none" is none. It stays open until the process ends. Any thread.
 */

#include "cuda/nccl_api.h"

struct fleet_error;

#define NCCL_LIBRARY_ENV "FLEET_NCCL_LIBRARY"
#define NCCL_LEAST       21800 /* ncclCommSplit */
#define NCCL_CAPTURES    23000 /* the oldest one whose operations we have captured into graphs */

struct nccl_library {
#define NCCL_MEMBER(result, name, parameters) result(*name) parameters;
    NCCL_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
};

/* Errors of library_open(); it refuses a library that is older than NCCL_LEAST. */
int nccl_library_open(const struct nccl_library **out, struct fleet_error *err);

#endif
