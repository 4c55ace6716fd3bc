/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SYSTEM_PRIVATE_FOLDER_H
#define CLI_SYSTEM_PRIVATE_FOLDER_H

/*
 * A folder below $TMPDIR (/tmp) that only this user can read and that goes with this process. One
 * that a killed process has left behind is removed by the next that makes one.
 */

struct fleet_error;

/* Heap path in *out; -errno if it cannot be made. */
int private_folder_make(char **out, struct fleet_error *err);

/* With the files in it; it holds no folders. */
void private_folder_remove(const char *path);

#endif
