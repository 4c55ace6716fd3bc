/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_PS_FILE_H
#define DISTRIBUTED_PS_FILE_H

/*
 * The part of all tables that one server holds, as a file: FOLDER/part-SERVER-of-SERVERS. Numbers
 * in brackets are bytes; all numbers are little-endian.
 *
 *   "FLPSPART"   version (4)   server (4)   servers (4)   workers (4)   step (8)   updates (8)
 *   tables (4)   0 (4)
 *   each worker: process (8), sequence (8)
 *   each table: its description (PS_TABLE_BYTES), count (8), first (8); then
 *     sparse: `count` rows as in memory (struct ps_row)
 *     dense: `count` values, then the rule's state
 *   SHA-256 of all bytes before it (32)
 */

#include <stdio.h>

#include "distributed/ps/table.h"

struct ps_file_worker {
    uint64_t process, sequence; /* of the worker's last push that the file contains */
};

/* What a file has of its server. The lists are borrowed. */
struct ps_file {
    int server, servers, workers;
    int64_t step, updates;
    struct ps_file_worker *worker; /* [workers] */
    struct ps_table **tables;      /* [FLEET_PS_TABLES_MAX], NULL: none */
};

/* "FOLDER/part-S-of-N". The caller frees it. */
char *ps_file_path(const char *folder, int server, int servers);

/* Write the file, and the folder if it is missing. A reader sees the old file or the new one, never
 * a part. `mode` chooses the rows (fleet_save_state()). After the file is complete, ps_row_saved()
 * is called for each row in it. -ENOMEM, -errno with the path. */
int ps_file_write(const char *folder, const struct ps_file *file, int mode,
                  struct fleet_error *err);

/*
 * Read one part from the beginning of `stream`. The part may come from any server of any number of
 * servers: the rows and elements that server file->server of file->servers holds go to
 * file->tables, and a missing table is made. If `wants_workers`, then step, updates and workers are
 * read, too; the part must be that of the same server, with the same numbers of servers and
 * workers. -EBADMSG: the part is damaged. -EPROTO: it is that of another server, or a table differs
 * from that in file->tables. -ENOSPC: a table has rows_max rows. After an error the tables may have
 * some of the rows.
 */
int ps_file_read(FILE *stream, struct ps_file *file, bool wants_workers, int64_t rows_max,
                 struct fleet_error *err);

/* Read all parts of a folder. -ENOENT names the part that is missing. Errors of ps_file_read(). */
int ps_file_load(const char *folder, struct ps_file *file, int64_t rows_max,
                 struct fleet_error *err);

/* Read the part of server file->server from its snapshot folder. Returns 1 if the part was read, 0
 * if there is none, else an error of ps_file_read(). */
int ps_file_restore(const char *folder, struct ps_file *file, int64_t rows_max,
                    struct fleet_error *err);

#endif
