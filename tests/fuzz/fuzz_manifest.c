/* SPDX-License-Identifier: Apache-2.0 */

/* Any text as a manifest, as it is and with a seal that fits; what is read must write and read
 * equal. The first line of the text is tried as a folder's name, too. */
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try(const char *text, size_t size)
{
    struct manifest manifest, again;
    char *written, *twice;

    if (manifest_decode(text, size, &manifest, NULL) < 0)
        return;
    written = manifest_encode(&manifest);
    fleet_assert(manifest_decode(written, strlen(written), &again, NULL) == 0);
    twice = manifest_encode(&again);
    fleet_assert(strcmp(written, twice) == 0);
    for (size_t i = 0; i < again.file_count; i++)
        fleet_assert(!strchr(again.files[i].name, '/'));
    free(written);
    free(twice);
    manifest_release(&again);
    manifest_release(&manifest);
}

static void try_folder(const char *name)
{
    struct fleet_generation generation;
    char again[MANIFEST_FOLDER_MAX];
    int64_t step;
    int copy;

    if (!manifest_folder_parse(name, &step, &generation, &copy))
        return;
    manifest_folder_format(step, generation, copy, again);
    fleet_assert(strcmp(name, again) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    uint8_t digest[FLEET_SHA256_SIZE];
    char hex[FLEET_SHA256_HEX_SIZE];

    fleet_strbuf_append_bytes(&text, data, size);
    try(text.text, text.length);
    fleet_sha256(text.text, text.length, digest);
    fleet_hex_encode(digest, sizeof(digest), hex);
    fleet_strbuf_appendf(&text, ",\"sha256\":\"%s\"}\n", hex);
    try(text.text, text.length);
    text.text[strcspn(text.text, "\n")] = '\0';
    try_folder(text.text);
    return 0;
}
