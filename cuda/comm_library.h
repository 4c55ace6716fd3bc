/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_COMM_LIBRARY_H
#define CUDA_COMM_LIBRARY_H

/*
 * Which library carries collectives between GPUs: NCCL (comm_nccl.h), or, with FLEET_CUDA_COMM=ipc
 * in the environment, memory that the ranks share (comm_ipc.h). All ranks of a job need the same.
 */

struct comm_device_library;
struct fleet_error;

#define COMM_LIBRARY_ENV "FLEET_CUDA_COMM"

/* Errors of comm_nccl_library(); -EINVAL: the variable has another value. */
int fleet_cuda_collectives(const struct comm_device_library **out, struct fleet_error *err);

#endif
