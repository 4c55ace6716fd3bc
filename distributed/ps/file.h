/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_FILE_H
#define DISTRIBUTED_PS_FILE_H

/*
 * A server's part of all tables as a file: FOLDER/part-SERVER-of-SERVERS.
 *
 *   "FLPSPART"   version (4)   server (4)   servers (4)   workers (4)   step (8)   updates (8)
 *   tables (4)   0 (4)
 *   each worker: process (8), sequence (8)
 *   each table: its description (PS_TABLE_BYTES), count (8), first (8); then
 *     sparse: count rows as they lie in memory; dense: count values and the state
 *   SHA-256 of all before (32)
 */

#include <stdio.h>

#include "distributed/ps/table.h"

struct ps_file_worker {
    uint64_t process, sequence; /* of the last push that is in the file */
};

/* A server as a file. */
struct ps_file {
    int server, servers, workers;
    int64_t step, updates;
    struct ps_file_worker *worker; /* [workers] */
    struct ps_table **tables;      /* [FLEET_PS_TABLES_MAX], NULL: none */
};

/* "FOLDER/part-S-of-N", heap. */
char *ps_file_path(const char *folder, int server, int servers);

/* Write it so that a reader sees the old or the new one. `mode` decides about rows; their numbers
 * change (ps_row_saved()) after the file is complete. -errno */
int ps_file_write(const char *folder, const struct ps_file *file, int mode,
                  struct fleet_error *err);

/*
 * Read rows and elements that server `file->server` of `file->servers` holds into file->tables; a
 * missing table is made. For a part of this server itself, `workers` = file->workers, step, updates
 * and workers are read, too, if `wants_workers`. `stream` is at its beginning. -EBADMSG: damaged.
 * -EPROTO: a table differs from the one that is there. After an error some rows may be there.
 */
int ps_file_read(FILE *stream, struct ps_file *file, bool wants_workers, int64_t rows_max,
                 struct fleet_error *err);

/* All parts of a folder. -ENOENT: none, or one is missing; names it. */
int ps_file_load(const char *folder, struct ps_file *file, int64_t rows_max,
                 struct fleet_error *err);

/* The own part of a snapshot folder. 1: it was there, 0: it is not. */
int ps_file_restore(const char *folder, struct ps_file *file, int64_t rows_max,
                    struct fleet_error *err);

#endif
