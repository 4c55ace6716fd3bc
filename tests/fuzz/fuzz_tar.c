/* SPDX-License-Identifier: Apache-2.0 */

/* Any block as the header of a tar archive, as it is and with a checksum that fits: a name never
 * leaves its folder, and what is read is written and read equal. */
#include <stdio.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/checkpoint/tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECKSUM_AT   148
#define CHECKSUM_SIZE 8

static void try(const char block[TAR_BLOCK])
{
    struct tar_entry entry, again;
    char written[TAR_BLOCK];

    if (tar_decode(block, &entry, NULL) < 0 || entry.is_end)
        return;
    fleet_assert(entry.name[0] && !strchr(entry.name, '/'));
    tar_encode(entry.name, entry.size, 0, written);
    fleet_assert(tar_decode(written, &again, NULL) == 0);
    fleet_assert(strcmp(entry.name, again.name) == 0 && entry.size == again.size);
    fleet_assert((entry.size + tar_padding(entry.size)) % TAR_BLOCK == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char block[TAR_BLOCK] = {0};
    unsigned int sum = 0;

    memcpy(block, data, size < TAR_BLOCK ? size : TAR_BLOCK);
    try(block);
    memset(block + CHECKSUM_AT, ' ', CHECKSUM_SIZE);
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += (unsigned char)block[i];
    (void)snprintf(block + CHECKSUM_AT, CHECKSUM_SIZE, "%06o", sum);
    try(block);
    return 0;
}
