/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STORE_STORE_H
#define AGENT_RUNTIME_STORE_STORE_H

/*
 * A place in an object store or HDFS: "s3://…", "hdfs://…", "webhdfs://…", "swebhdfs://…". The
 * functions are those of include/fleet/fleet_fs.h; libfleet.so is opened when the first place is,
 * so that a trainer without one has neither that library nor libcurl in its memory.
 *
 * Errors: -EAGAIN: the server cannot be reached or does not answer as it should, so a later try may
 * succeed. -EACCES, -EINVAL, -ENOENT and others of fleet_fs.h: another try would not help. All name
 * the object and have the server's words. `err` may not be NULL.
 *
 * Threads: several may use one place at once.
 */

#include <stddef.h>

/* error.h comes first: fleet.h defines the same structure where error.h is absent. */
/* clang-format off */
#include "libfleet/base/error.h"
#include "include/fleet/fleet_fs.h"
/* clang-format on */

#define STORE_LIBRARY_ENV "FLEET_LIBRARY" /* the file libfleet.so.0, if it is not beside us */
#define STORE_PART_BYTES  ((uint64_t)16 << 20)

struct store;

/* -ENOENT: libfleet.so cannot be opened. -EINVAL: variables are missing or wrong. No request is
 * sent. */
int store_open(const char *url, struct store **out, struct fleet_error *err);
void store_free(struct store *store); /* NULL is fine */

const char *store_url(const struct store *store); /* without "/" at its end */

/* `name` is below the place; "" is the place itself. Those without a transfer give up soon, so that
 * others can wait for them: after 20 s of no answer. */
int store_look(const struct store *store, const char *name, struct fleet_fs_info *out,
               struct fleet_error *err);
int store_list(const struct store *store, const char *name, struct fleet_fs_names *folders,
               struct fleet_fs_names *files, struct fleet_error *err);
int store_read(const struct store *store, const char *name, size_t size_max, char **out,
               size_t *bytes, struct fleet_error *err);
void store_names_release(const struct store *store, struct fleet_fs_names *names);

/* A file or a folder with all in it; missing is fine. */
int store_delete(const struct store *store, const char *name, struct fleet_error *err);

/* Write file `local` to `name`, and replace a file that is there. A reader sees all of it or
 * nothing. */
int store_put(const struct store *store, const char *local, const char *name,
              struct fleet_error *err);

/*
 * Read file `name`, which store_look() has described, to `local`, which appears when it is complete
 * and durable. What a killed process has read stays beside it in ".NAME.….part", and the next call
 * goes on from there. Long transfers write a line of the log now and then. -EAGAIN also if the file
 * changes meanwhile.
 */
int store_get(const struct store *store, const char *name, const struct fleet_fs_info *seen,
              const char *local, struct fleet_error *err);

#endif
