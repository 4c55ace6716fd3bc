/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_COMM_IPC_H
#define CUDA_COMM_IPC_H

/*
 * Collectives between ranks of one machine through GPU memory that they share by CUDA's handles
 * (agent/runtime/comm/device.h), for ranks that share a GPU, which NCCL refuses before 2.30, or
 * whose GPUs reach each other. Without a library of NVIDIA's beside CUDA.
 *
 * Each rank has a window of GPU memory with slots for each other rank. A sender copies a piece into
 * a slot of its window; once that copy has ended, it counts the piece on the board (ipc_board.h).
 * The receiver, which has opened the window, copies the piece out and counts it, which frees the
 * slot. The host puts and counts the copies in calls of test(). Nothing in a stream waits for
 * another rank: so a lost rank holds up no GPU, and an abort has nothing to stop. Sums are those of
 * device.c, in the order of the ranks or of the tree.
 *
 * A window is freed when all ranks that have opened it have closed it, or have ended. Until then it
 * is kept, also behind free(). A rank that opens a handle needs the other rank alive.
 *
 * Operations of it are in no graph.
 */

#include "agent/runtime/comm/device.h"

const struct comm_device_library *comm_ipc_library(void);

#endif
