/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_DATA_INSTANCE_H
#define DISTRIBUTED_DATA_INSTANCE_H

/*
 * An instance as bytes, in memory and between workers: id and content (4 bytes of length, text),
 * then for each slot the number of values (4 bytes) and the values (float 4, id 8 bytes). Numbers
 * are in the machine's order and not aligned. Pure.
 */

#include "distributed/distributed.h"
#include "include/fleet/fleet_data.h"

struct instance {
    uint32_t size; /* of bytes[] */
    uint8_t bytes[];
};

/* The parts of a line. */
struct data_format {
    struct fleet_slot *slots;
    int slot_count;
    bool parse_ins_id, parse_content;
};

/* Parse a line without its line end. The caller frees *out. -EBADMSG names the slot and the
 * cause. */
int instance_parse(const struct data_format *format, const char *line, size_t length,
                   struct instance **out, struct fleet_error *err);

/* Check an instance that another worker sent. -EBADMSG: it does not have this format. */
int instance_check(const struct data_format *format, const struct instance *instance,
                   struct fleet_error *err);

/* The id and the content. They lie in the instance and have no final NUL. */
const char *instance_id(const struct instance *instance, uint32_t *length);
const char *instance_content(const struct instance *instance, uint32_t *length);

/* The *count values of a slot, as bytes that may not be aligned. */
const uint8_t *instance_slot(const struct data_format *format, const struct instance *instance,
                             int slot, uint32_t *count);

size_t slot_value_size(const struct fleet_slot *slot);

/* A copy of `instance` with the values of slot `slot` of `from`. NULL: out of memory. */
struct instance *instance_with_slot(const struct data_format *format,
                                    const struct instance *instance, int slot,
                                    const struct instance *from);

/* XXH64 with seed 0 (Collet, xxHash specification 0.1.1). */
uint64_t xxh64(const void *data, size_t size);

#endif
