/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as the note that a rank leaves beside its shard of a checkpoint. What is believed names
 * that shard's own files and nothing else, by names and digests that a manifest takes. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "agent/runtime/checkpoint/shards.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct checkpoint_shard *shard)
{
    fleet_assert(shard->file_count >= 0 && shard->file_count <= CHECKPOINT_SHARD_FILES_MAX);
    for (int i = 0; i < shard->file_count; i++) {
        const struct checkpoint_shard_file *file = &shard->files[i];
        fleet_assert(strcmp(file->name, "model-00002-of-00003.safetensors") == 0 ||
                     strcmp(file->name, "optimizer-00002-of-00003.safetensors") == 0);
        fleet_assert(strspn(file->sha256, "0123456789abcdefABCDEF") == 64 &&
                     file->sha256[64] == '\0');
        fleet_assert(i == 0 || strcmp(file->name, shard->files[0].name) != 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct checkpoint_shard shard;
    struct fleet_error err;
    int rc = shards_note_decode(data, size, 1, 3, &shard, &err);

    fleet_assert(rc <= 0);
    if (rc == 0)
        check(&shard);
    else
        fleet_assert(err.code == rc && err.text[0] != '\0');
    return 0;
}
