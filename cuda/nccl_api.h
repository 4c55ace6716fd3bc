/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_NCCL_API_H
#define CUDA_NCCL_API_H

/*
 * Of NCCL's interface, what we use. The library is opened at run time, so building needs no header
 * of NCCL. The configuration is that of NCCL 2.18: a later library takes its own values for what it
 * has more.
 */

#include <limits.h>
#include <stddef.h>

#include <cuda_runtime_api.h>

typedef struct ncclComm *ncclComm_t;

#define NCCL_UNIQUE_ID_BYTES  128
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_SPLIT_NOCOLOR    (-1)
#define NCCL_API_MAGIC        0xcafebeefu
#define NCCL_SHRINK_ABORT     0x01
#define NCCL_CONFIG_VERSION   21800

typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
} ncclResult_t;

typedef enum {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclInt64 = 4,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9,
} ncclDataType_t;

typedef enum {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
} ncclRedOp_t;

typedef struct {
    size_t size;
    unsigned int magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare;
} ncclConfig_t;

/* X(result, name, parameters) of each function that a library must have. */
#define NCCL_FUNCTIONS(X)                                                                         \
    X(ncclResult_t, ncclGetVersion, (int *version))                                               \
    X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id))                                         \
    X(ncclResult_t, ncclCommInitRankConfig,                                                       \
      (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config))            \
    X(ncclResult_t, ncclCommSplit,                                                                \
      (ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config))              \
    X(ncclResult_t, ncclCommAbort, (ncclComm_t comm))                                             \
    X(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t * error))               \
    X(const char *, ncclGetErrorString, (ncclResult_t result))                                    \
    X(const char *, ncclGetLastError, (ncclComm_t comm))                                          \
    X(ncclResult_t, ncclGroupStart, (void))                                                       \
    X(ncclResult_t, ncclGroupEnd, (void))                                                         \
    X(ncclResult_t, ncclSend,                                                                     \
      (const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,            \
       cudaStream_t stream))                                                                      \
    X(ncclResult_t, ncclRecv,                                                                     \
      (void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,                  \
       cudaStream_t stream))                                                                      \
    X(ncclResult_t, ncclAllReduce,                                                                \
      (const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t reduction, \
       ncclComm_t comm, cudaStream_t stream))                                                     \
    X(ncclResult_t, ncclReduceScatter,                                                            \
      (const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t reduction, \
       ncclComm_t comm, cudaStream_t stream))                                                     \
    X(ncclResult_t, ncclAllGather,                                                                \
      (const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,       \
       cudaStream_t stream))                                                                      \
    X(ncclResult_t, ncclBroadcast,                                                                \
      (const void *send, void *receive, size_t count, ncclDataType_t type, int root,              \
       ncclComm_t comm, cudaStream_t stream))

/* Functions that newer libraries have, for which bench_nccl looks (tests/bench/nccl). */
#define NCCL_NEW_FUNCTIONS(X)                                                                      \
    X(ncclResult_t, ncclCommRevoke, (ncclComm_t comm, int flags))                                  \
    X(ncclResult_t, ncclCommShrink,                                                                \
      (ncclComm_t comm, int *excluded, int excluded_count, ncclComm_t *made, ncclConfig_t *config, \
       int flags))                                                                                 \
    X(ncclResult_t, ncclCommGetUniqueId, (ncclComm_t comm, ncclUniqueId * id))                     \
    X(ncclResult_t, ncclCommGrow,                                                                  \
      (ncclComm_t comm, int ranks, const ncclUniqueId *id, int rank, ncclComm_t *made,             \
       ncclConfig_t *config))

#endif
