/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_COMM_NCCL_H
#define CUDA_COMM_NCCL_H

/*
 * Collectives over the memory of GPUs by NCCL (agent/runtime/comm/device.h).
 *
 * Communicators are non-blocking: every call may return before it has happened, and its progress
 * and its errors are polled by ncclCommGetAsyncError(). A communicator ends by ncclCommAbort()
 * alone, for ncclCommDestroy() waits for ranks that may be gone.
 */

struct comm_device_library;
struct fleet_error;

/* Open NCCL. Errors of nccl_library_open(). */
int comm_nccl_library(const struct comm_device_library **out, struct fleet_error *err);

#endif
