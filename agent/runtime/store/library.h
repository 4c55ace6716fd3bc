/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_STORE_LIBRARY_H
#define AGENT_RUNTIME_STORE_LIBRARY_H

/* libfleet.so, opened once a process. */

#include "agent/runtime/store/store.h"

/* Functions of fleet_fs.h, without "fleet_fs_" in their names. */
struct library {
    __typeof__(fleet_fs_open) *open;
    __typeof__(fleet_fs_free) *free;
    __typeof__(fleet_fs_look) *look;
    __typeof__(fleet_fs_list) *list;
    __typeof__(fleet_fs_names_release) *names_release;
    __typeof__(fleet_fs_read) *read;
    __typeof__(fleet_fs_read_part) *read_part;
    __typeof__(fleet_fs_delete) *delete_;
    __typeof__(fleet_fs_upload) *upload;
    __typeof__(fleet_fs_download) *download;
};

/* FLEET_LIBRARY, or libfleet.so.0 in the program's folder, in ../lib of it, or where the system
 * looks for libraries. -ENOENT with the loader's words; -EPROTO: it lacks a function. */
int library_open(const struct library **out, struct fleet_error *err);

#endif
