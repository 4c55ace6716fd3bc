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

/*
 * -ENOENT: the variable is "none", or it is not set and the loader finds no library; the error has
 * its reason. -EINVAL: the file that the variable names cannot be opened. -EPROTO: the library
 * lacks a function, or is older than CUBLASLT_LEAST.
 */
int cublaslt_library_open(const struct cublaslt_library **out, struct fleet_error *err);

#endif
