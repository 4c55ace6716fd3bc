/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_CHECKPOINT_TAR_H
#define LIBFLEET_CHECKPOINT_TAR_H

/*
 * Headers of a tar archive of plain files in one folder (POSIX.1-1988 ustar; sizes from 8 GiB on in
 * base 256, as GNU tar writes them). Pure. After the last file come two blocks of zeros.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fleet_error;

#define TAR_BLOCK    512
#define TAR_NAME_MAX 100

struct tar_entry {
    char name[TAR_NAME_MAX + 1]; /* no folder */
    uint64_t size;
    bool is_end; /* a block of zeros: nothing else is set */
};

/* The block before a file. `wall_s`: its time, seconds since 1970. `name` fits (asserted). */
void tar_encode(const char *name, uint64_t size, int64_t wall_s, char out[TAR_BLOCK]);

/* -EBADMSG: no header, a wrong checksum, another type than a file, a name that leaves the
 * folder. */
int tar_decode(const char block[TAR_BLOCK], struct tar_entry *out, struct fleet_error *err);

/* Bytes from the end of a file's data to the next header. */
size_t tar_padding(uint64_t size);

#endif
