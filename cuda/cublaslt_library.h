/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_CUBLASLT_LIBRARY_H
#define CUDA_CUBLASLT_LIBRARY_H

/*
 * Opens cuBLASLt: the file that the environment variable FLEET_CUBLASLT_LIBRARY names, else
 * libcublasLt.so.13, else libcublasLt.so.12, where the loader looks; "none" is none. It stays open
 * until the process ends. Any thread.
 */

#include "cuda/cublaslt_api.h"

struct fleet_error;

#define CUBLASLT_LIBRARY_ENV "FLEET_CUBLASLT_LIBRARY"
#define CUBLASLT_LEAST       120000

struct cublaslt_library {
#define CUBLASLT_MEMBER(result, name, parameters) result(*name) parameters;
    CUBLASLT_FUNCTIONS(CUBLASLT_MEMBER)
#undef CUBLASLT_MEMBER
    const char *file; /* as it was opened */
    size_t version;   /* major · 10000 + minor · 100 + patch */
};

/* Errors of library_open(); it refuses a library that is older than CUBLASLT_LEAST. */
int cublaslt_library_open(const struct cublaslt_library **out, struct fleet_error *err);

#endif
