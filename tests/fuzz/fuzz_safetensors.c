/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as a safetensors file: refused, or every byte that a tensor names can be read, and what
 * is written from it reads back equal. */
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Bytes that are no text are written as U+FFFD, so names that hold some may change. */
static bool is_ascii(const struct safetensors_file *file)
{
    for (size_t i = 0; i < file->count; i++)
        for (const char *p = file->tensors[i].name; *p; p++)
            if ((unsigned char)*p >= 0x80)
                return false;
    return true;
}

static void check_round_trip(const struct safetensors_file *file)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    struct safetensors_file again;
    uint64_t size = safetensors_header_encode(file->tensors, file->count, NULL, 0, &text);

    fleet_assert(safetensors_header_decode(text.text, text.length, size, &again, NULL) == 0);
    fleet_assert(again.count == file->count);
    for (size_t i = 0; i < file->count; i++)
        fleet_assert(again.tensors[i].bytes == file->tensors[i].bytes &&
                     strcmp(again.tensors[i].name, file->tensors[i].name) == 0);
    safetensors_release(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors_file file;
    volatile uint8_t sum = 0;

    if (safetensors_header_decode(data, size, size, &file, NULL) < 0)
        return 0;
    for (size_t i = 0; i < file.count; i++) {
        const struct safetensors_tensor *tensor = &file.tensors[i];
        for (uint64_t at = 0; at < tensor->bytes; at++)
            sum = (uint8_t)(sum ^ data[tensor->offset + at]);
        fleet_assert(safetensors_find(&file, tensor->name) == tensor);
    }
    if (is_ascii(&file))
        check_round_trip(&file);
    safetensors_release(&file);
    return 0;
}
