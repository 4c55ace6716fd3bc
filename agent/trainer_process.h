/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_PROCESS_H
#define AGENT_TRAINER_PROCESS_H

/*
 * One child process: started, its output read line by line, signalled. It decides nothing.
 *
 * Invariants
 *  (1) The child leads a process group of its own, so a signal reaches all that it has started.
 *  (2) The child dies with its parent, even if that is killed (PR_SET_PDEATHSIG), and inherits no
 *      descriptor but 0, 1, 2 and those it is given.
 *  (3) Each line of its output leaves this process whole, with a prefix; the last lines are kept
 *      for the failure report.
 *  (4) Nothing here waits for the reader of our own output (libfleet/base/line_writer.h).
 */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "agent/link.h"
#include "libfleet/base/strbuf.h"

struct fleet_error;
struct fleet_line_writer;

#define TRAINER_PROGRESS_FD_ENV "FLEET_PROGRESS_FD"
#define TRAINER_PROGRESS_FD     3 /* the number in the child; here the descriptor has any number */

#define TRAINER_LINE_SIZE_MAX 8192  /* longer lines are broken */
#define TRAINER_TAIL_SIZE_MAX 12288 /* bytes of last lines that are kept */

/* One of the child's streams on its way to ours. */
struct trainer_stream {
    int fd;                        /* our end of the pipe, -1 = closed */
    struct fleet_line_writer *out; /* borrowed: where lines go; NULL = nowhere */
    struct fleet_strbuf line;      /* the unfinished one */
};

struct trainer_process {
    pid_t pid;                        /* 0 = none runs */
    struct link link;                 /* fd -1: none (own trainer, or it is gone) */
    struct trainer_stream streams[2]; /* stdout, stderr */
    char prefix[32];                  /* of each line in the text form, "[2] " */
    int rank;                         /* of each line in the JSON form; -1 = not known yet */
    struct fleet_strbuf tail;         /* last lines of both streams, oldest first */
};

struct trainer_launch {
    const char *path;         /* program; looked up in PATH if it has no slash */
    char *const *arguments;   /* argv, NULL-terminated */
    char *const *environment; /* NULL-terminated; the descriptors below are added to it */
    bool has_link;            /* speaks link.h: FLEET_LINK_FD */
    int listener;             /* descriptor to inherit, -1 = none: FLEET_LISTEN_FD */
    int progress; /* the same, but as TRAINER_PROGRESS_FD; goes with none of the others */
};

/* None runs; and back to nothing: closes everything, but does not signal a child that runs. */
void trainer_process_init(struct trainer_process *process);
void trainer_process_release(struct trainer_process *process);

/* -errno if it cannot be started, naming the program; nothing runs then. The tail is emptied. */
int trainer_process_start(struct trainer_process *process, const struct trainer_launch *launch,
                          struct fleet_error *err);

/* To the whole process group; nothing happens if it does not run. */
void trainer_process_signal(struct trainer_process *process, int signal_number);

/* Take what the stream holds, pass lines on. False at its end: the stream is closed then. */
bool trainer_process_read(struct trainer_process *process, struct trainer_stream *stream);

/* It has ended and is about to be reaped: end what is left of its group, read what is left of its
 * output, close everything. */
void trainer_process_ended(struct trainer_process *process);

#endif
