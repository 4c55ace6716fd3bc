/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CUBLASLT_FAKE_FAKE_CUBLASLT_H
#define TESTS_CUBLASLT_FAKE_FAKE_CUBLASLT_H

/*
 * A libcublasLt without a GPU, over the streams of the fake CUDA runtime. README.md says what it
 * finds. A test that has opened it by itself finds the functions below by dlsym(); the environment
 * of a trainer sets:
 *   FAKE_CUBLASLT_FAIL     N:STATUS: call number N of a process, from 1, returns STATUS
 *   FAKE_CUBLASLT_REFUSES  words of enum fake_cublaslt_refusal in one text
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/cublaslt_api.h"

#define DECLARE(result, name, parameters) result name parameters;
CUBLASLT_FUNCTIONS(DECLARE)
#undef DECLARE

/* What it has no algorithm for, as bits; the words of FAKE_CUBLASLT_REFUSES. */
enum fake_cublaslt_refusal {
    FAKE_CUBLASLT_WIDE_BIAS = 1,  /* wide_bias: of another type than the result */
    FAKE_CUBLASLT_BIAS = 2,       /* bias: any */
    FAKE_CUBLASLT_ACTIVATION = 4, /* activation: any */
    FAKE_CUBLASLT_ALL = 8,        /* all: any product */
    FAKE_CUBLASLT_LATE = 16,      /* late: the others are proposed, and refused when they run */
};

void fake_cublaslt_reset(unsigned refusals, long fail_call, int fail_status);
long fake_cublaslt_calls(void);    /* since fake_cublaslt_reset() */
int fake_cublaslt_held(void);      /* handles, descriptors, layouts and preferences */
long fake_cublaslt_products(void); /* that were started, since fake_cublaslt_reset() */

/* ---- between cublaslt.c and multiply.c of this folder ---------------------------------------- */

struct cublasLtMatmulDesc {
    int32_t compute, turn_a, turn_b, bias_type;
    uint32_t epilogue;
    const void *bias;
    const float *a_scale, *b_scale; /* of fp8 */
    void *auxiliary;
    int64_t auxiliary_ld;
};

struct cublasLtMatrixLayout {
    int32_t type, batch;
    uint64_t rows, columns;
    int64_t ld, stride;
};

enum way {
    WAY_RANDOM,  /* adds the parts in the result, in any order */
    WAY_ROUNDED, /* adds rounded parts */
    WAY_PARTS,   /* adds parts in their order, in the workspace */
    WAY_IN_ORDER,
    WAYS,
};

/* A product as it goes into a stream. */
struct work {
    struct cublasLtMatmulDesc desc;
    struct cublasLtMatrixLayout a, b, d;
    const void *a_data, *b_data;
    void *d_data;
    float *workspace;
    uint64_t m, n, k; /* of the column-major result [m, n] */
    bool adds;        /* to what is there */
    enum way way;
    uint64_t random;
};

/* Takes a struct work; runs as a kernel of one thread. */
void multiply(const void *work);

#endif
