/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_IPC_WINDOW_H
#define CUDA_IPC_WINDOW_H

/*
 * For comm_ipc.c alone: the windows of a communicator. One is this rank's, the others are opened
 * from the handles on the board. One thread at a time; errors are those of device.h, unless others
 * are named.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/runtime/comm/device.h"
#include "cuda/device.h"
#include "cuda/ipc_board.h"

#define IPC_PIECE ((size_t)1 << 20) /* bytes that are copied at a time */
#define IPC_SLOTS 2                 /* pieces under way from one rank to another */

struct ipc_window;

/* The window of rank `rank` on `board`, which it takes, also in a failure unless `place` is given:
 * that of a board this process has made; then it hides and closes it later. The calls below, but
 * ipc_window_member(), need ipc_window_join() to have returned 1. */
int ipc_window_make(struct cuda_device *device, struct ipc_board *board,
                    const struct ipc_place *place, int rank, int world, struct ipc_window **out,
                    struct fleet_error *err);

/* Close what is opened; the own window stays until no other rank uses it. NULL is fine. */
void ipc_window_free(struct ipc_window *window);

/* Free those that no other rank uses any more. */
void ipc_window_sweep(void);

/* This rank's entry on the board. */
struct ipc_member *ipc_window_member(struct ipc_window *window);

/* 1: all windows are open. 0: a rank has none yet, or has ended, which its connection will show. */
int ipc_window_join(struct ipc_window *window, struct fleet_error *err);

/* Put the copy of a piece of `part`, at byte `at`, into the stream. 0: no slot is free, or the
 * piece has not come yet; else 1. */
int ipc_window_put(struct ipc_window *window, const struct comm_device_part *part, size_t at,
                   size_t bytes, cudaStream_t stream, struct fleet_error *err);

/* Count pieces whose copies have ended. 1: all of them have. */
int ipc_window_count(struct ipc_window *window, struct fleet_error *err);

/* Have all ranks begun split number `number`? The group of this rank's color in it. */
struct ipc_group {
    int rank, world;
    struct ipc_place place; /* of the board that its first rank has made */
};
bool ipc_window_have_split(const struct ipc_window *window, uint32_t number);
void ipc_window_group(const struct ipc_window *window, struct ipc_group *out);

#endif
