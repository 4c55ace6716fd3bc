/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/checkpoint/tar.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

#define OCTAL_MAX ((uint64_t)1 << 33) /* eleven octal digits */

struct header {
    char name[TAR_NAME_MAX], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type;
    char linkname[100], magic[6], version[2], uname[32], gname[32], major[8], minor[8];
    char prefix[155], padding[12];
};
_Static_assert(sizeof(struct header) == TAR_BLOCK, "a header is one block");

size_t tar_padding(uint64_t size)
{
    return (size_t)((TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK);
}

/* Of all bytes, those of the checksum taken as blanks. */
static unsigned int sum_of(const struct header *header)
{
    struct header blank = *header;
    unsigned int sum = 0;

    memset(blank.checksum, ' ', sizeof(blank.checksum));
    for (size_t i = 0; i < sizeof(blank); i++)
        sum += ((const unsigned char *)&blank)[i];
    return sum;
}

/* Eleven octal digits; a larger number in base 256, which the first bit says. */
static void put_size(char field[12], uint64_t size)
{
    bool is_octal = size < OCTAL_MAX;

    field[0] = (char)0x80;
    for (int i = is_octal ? 10 : 11; i >= (is_octal ? 0 : 1); i--) {
        field[i] = (char)(is_octal ? '0' + (size & 7) : size & 0xff);
        size >>= is_octal ? 3 : 8;
    }
}

void tar_encode(const char *name, uint64_t size, int64_t wall_s, char out[TAR_BLOCK])
{
    struct header header = {.mode = "0000644",
                            .uid = "0000000",
                            .gid = "0000000",
                            .type = '0',
                            .magic = "ustar",
                            .version = {'0', '0'}};

    fleet_assert(strlen(name) <= TAR_NAME_MAX);
    memcpy(header.name, name, strlen(name));
    put_size(header.size, size);
    put_size(header.mtime, wall_s > 0 ? (uint64_t)wall_s : 0);
    (void)snprintf(header.checksum, sizeof(header.checksum), "%06o", sum_of(&header));
    memcpy(out, &header, sizeof(header));
}

/* A size that fits 63 bits. */
static bool get_size(const char field[12], uint64_t *out)
{
    char digits[13] = {0};
    size_t first, count;

    *out = 0;
    if ((unsigned char)field[0] == 0x80) {
        for (int i = 1; i < 12; i++) {
            if (*out >> 55)
                return false;
            *out = *out << 8 | (unsigned char)field[i];
        }
        return true;
    }
    memcpy(digits, field, 12);
    first = strspn(digits, " ");
    count = strspn(digits + first, "01234567"); /* strtoull() takes signs, too */
    *out = strtoull(digits + first, NULL, 8);
    return count > 0 && (digits[first + count] == '\0' || digits[first + count] == ' ');
}

static bool is_name(const char *name)
{
    return name[0] && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

int tar_decode(const char block[TAR_BLOCK], struct tar_entry *out, struct fleet_error *err)
{
    static const char zeros[TAR_BLOCK];
    struct tar_entry entry = {0};
    struct header header;

    memcpy(&header, block, sizeof(header));
    entry.is_end = memcmp(block, zeros, TAR_BLOCK) == 0;
    memcpy(entry.name, header.name, sizeof(header.name));
    if (!entry.is_end) {
        char checksum[sizeof(header.checksum) + 1] = {0};
        memcpy(checksum, header.checksum, sizeof(header.checksum));
        if (memcmp(header.magic, "ustar", 5) != 0 || strtoul(checksum, NULL, 8) != sum_of(&header))
            return fleet_error(err, -EBADMSG, "this is no tar archive, or it is damaged");
        if (header.type != '0' || header.prefix[0] || !is_name(entry.name))
            return fleet_error(err, -EBADMSG,
                               "the archive holds something else than plain files: %s", entry.name);
        if (!get_size(header.size, &entry.size))
            return fleet_error(err, -EBADMSG, "the archive's file %s has no size", entry.name);
    }
    *out = entry;
    return 0;
}
