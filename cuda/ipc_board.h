/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_IPC_BOARD_H
#define CUDA_IPC_BOARD_H

/*
 * What the ranks of comm_ipc.h share in memory of the host: where each rank's window of GPU memory
 * is, the number of pieces that each pair has filled and taken, and the newest split. The memory
 * belongs to a file without a name, so nothing is left when its processes have ended. A rank opens
 * it by the /proc of the rank that made it, so both must be in one container.
 */

#include <stdatomic.h>
#include <stdint.h>

struct fleet_error;

#define IPC_RANKS_MAX   64
#define IPC_HANDLE_SIZE 64 /* cudaIpcMemHandle_t */

struct ipc_place {
    int32_t pid, fd;
    uint64_t secret; /* also in the board: another file may have taken the number */
};

struct ipc_member {
    _Atomic uint32_t is_open;    /* `window` and `pid` are there */
    _Atomic uint32_t has_closed; /* it uses no window of others any more, and will use none */
    _Atomic uint32_t splits;     /* that it has begun; the three below are of the newest one */
    int32_t pid;
    int32_t color, key;
    struct ipc_place child; /* a board that the group may use */
    uint8_t window[IPC_HANDLE_SIZE];
};

/* Pieces from one rank to another, since the beginning. */
struct ipc_pair {
    _Alignas(64) _Atomic uint64_t filled; /* the sender has written them */
    _Alignas(64) _Atomic uint64_t taken;  /* the receiver has read them */
};

struct ipc_board {
    uint64_t secret;
    struct ipc_member members[IPC_RANKS_MAX];
    struct ipc_pair pairs[IPC_RANKS_MAX][IPC_RANKS_MAX]; /* [sender][receiver] */
};

/* A new board, zeroed. It can be opened until ipc_board_hide(). -EIO. */
int ipc_board_make(struct ipc_board **out, struct ipc_place *out_place, struct fleet_error *err);
void ipc_board_hide(const struct ipc_place *place);

/* -EIO: the process that made it is gone, or is not of this container. */
int ipc_board_open(const struct ipc_place *place, struct ipc_board **out, struct fleet_error *err);

/* NULL is fine. */
void ipc_board_close(struct ipc_board *board);

#endif
