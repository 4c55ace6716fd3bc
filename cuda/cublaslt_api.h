/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_CUBLASLT_API_H
#define CUDA_CUBLASLT_API_H

/*
 * Of cuBLASLt's interface, what we use. The library is opened at run time, so building needs no
 * header of cuBLAS. Numbers and struct sizes are those of versions 12 and 13. Enumerations of the
 * library are int here; attributes are set by their address and size.
 */

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cublasLtMatmulDesc *cublasLtMatmulDesc_t;
typedef struct cublasLtMatrixLayout *cublasLtMatrixLayout_t;
typedef struct cublasLtMatmulPreference *cublasLtMatmulPreference_t;

typedef enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
} cublasStatus_t;

/* cudaDataType_t */
enum cublaslt_type {
    CUBLASLT_FP32 = 0,
    CUBLASLT_FP16 = 2,
    CUBLASLT_BF16 = 14,
    CUBLASLT_E4M3 = 28,
    CUBLASLT_E5M2 = 29,
};

/* cublasComputeType_t */
enum cublaslt_compute {
    CUBLASLT_COMPUTE_FP32 = 68, /* IEEE fp32 for fp32 operands */
    CUBLASLT_COMPUTE_TF32 = 77, /* fp32 operands are rounded to tf32 */
};

enum cublaslt_operation {
    CUBLASLT_AS_IT_IS = 0,
    CUBLASLT_TURNED = 1,
};

/* cublasLtMatmulDescAttributes_t; the type of each value is behind it */
enum cublaslt_product_attribute {
    CUBLASLT_PRODUCT_TURN_A = 3,        /* int32_t, enum cublaslt_operation */
    CUBLASLT_PRODUCT_TURN_B = 4,        /* int32_t */
    CUBLASLT_PRODUCT_EPILOGUE = 7,      /* uint32_t, enum cublaslt_epilogue */
    CUBLASLT_PRODUCT_BIAS = 8,          /* const void * */
    CUBLASLT_PRODUCT_AUXILIARY = 11,    /* void * */
    CUBLASLT_PRODUCT_AUXILIARY_LD = 12, /* int64_t, a multiple of 8 for GELU */
    CUBLASLT_PRODUCT_SCALE_A = 17,      /* const void *, of a float that fp8 is multiplied by */
    CUBLASLT_PRODUCT_SCALE_B = 18,      /* const void * */
    CUBLASLT_PRODUCT_BIAS_TYPE = 26,    /* int32_t, enum cublaslt_type; else the result's */
};

/* cublasLtEpilogue_t */
enum cublaslt_epilogue {
    CUBLASLT_EPILOGUE_NONE = 1,
    CUBLASLT_EPILOGUE_RELU = 2,
    CUBLASLT_EPILOGUE_BIAS = 4,
    CUBLASLT_EPILOGUE_GELU = 32,       /* by tanh */
    CUBLASLT_EPILOGUE_AUXILIARY = 128, /* with GELU: its operand is written, too */
};

/* cublasLtMatrixLayoutAttribute_t */
enum cublaslt_layout_attribute {
    CUBLASLT_LAYOUT_BATCH_COUNT = 5,  /* int32_t */
    CUBLASLT_LAYOUT_BATCH_STRIDE = 6, /* int64_t, elements */
};

/* cublasLtMatmulPreferenceAttributes_t */
enum cublaslt_preference {
    CUBLASLT_PREFER_WORKSPACE_MAX = 1, /* uint64_t, bytes */
    CUBLASLT_PREFER_REDUCTIONS = 3,    /* uint32_t, bits of enum cublaslt_reduction */
    CUBLASLT_PREFER_ALIGNMENT_A = 5,   /* uint32_t, bytes; then of B, C and D */
};

/* cublasLtReductionScheme_t: how the parts of a sum that is cut along k come together */
enum cublaslt_reduction {
    CUBLASLT_REDUCTION_NONE = 0,         /* it is not cut */
    CUBLASLT_REDUCTION_IN_PLACE = 1,     /* in the result */
    CUBLASLT_REDUCTION_COMPUTE_TYPE = 2, /* in the workspace, in fp32 */
    CUBLASLT_REDUCTION_OUTPUT_TYPE = 4,  /* in the workspace, rounded */
};

/* cublasLtMatmulAlgoConfigAttributes_t */
enum cublaslt_algorithm_attribute {
    CUBLASLT_ALGORITHM_ID = 0,        /* int32_t */
    CUBLASLT_ALGORITHM_REDUCTION = 3, /* uint32_t, enum cublaslt_reduction */
};

typedef struct {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;

typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

/* X(result, name, parameters) of each function that a library must have. */
#define CUBLASLT_FUNCTIONS(X)                                                                    \
    X(size_t, cublasLtGetVersion, (void))                                                        \
    X(const char *, cublasLtGetStatusName, (cublasStatus_t status))                              \
    X(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle))                               \
    X(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle))                                \
    X(cublasStatus_t, cublasLtMatmulDescCreate,                                                  \
      (cublasLtMatmulDesc_t * product, int compute_type, int scale_type))                        \
    X(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t product))                 \
    X(cublasStatus_t, cublasLtMatmulDescSetAttribute,                                            \
      (cublasLtMatmulDesc_t product, int attribute, const void *value, size_t bytes))            \
    X(cublasStatus_t, cublasLtMatrixLayoutCreate,                                                \
      (cublasLtMatrixLayout_t * layout, int type, uint64_t rows, uint64_t columns, int64_t ld))  \
    X(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout))              \
    X(cublasStatus_t, cublasLtMatrixLayoutSetAttribute,                                          \
      (cublasLtMatrixLayout_t layout, int attribute, const void *value, size_t bytes))           \
    X(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference)) \
    X(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference))  \
    X(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,                                      \
      (cublasLtMatmulPreference_t preference, int attribute, const void *value, size_t bytes))   \
    X(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,                                            \
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,          \
       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,             \
       cublasLtMatmulPreference_t preference, int wanted,                                        \
       cublasLtMatmulHeuristicResult_t results[], int *count))                                   \
    X(cublasStatus_t, cublasLtMatmulAlgoConfigGetAttribute,                                      \
      (const cublasLtMatmulAlgo_t *algorithm, int attribute, void *value, size_t bytes,          \
       size_t *written))                                                                         \
    X(cublasStatus_t, cublasLtMatmul,                                                            \
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void *alpha, const void *a,  \
       cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,          \
       const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,                \
       cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace,  \
       size_t workspace_bytes, cudaStream_t stream))

#endif
