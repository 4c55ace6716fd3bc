/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as text, in portions: words cover it, and with a vocabulary of the 256 bytes the tokens
 * are the bytes. What follows the first NUL is tried as a file of merges. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/runtime/data/bpe.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *path_of(const char *name)
{
    static char path[64];

    (void)snprintf(path, sizeof(path), "/dev/shm/fleetjob-fuzz-%ld-%s", (long)getpid(), name);
    return path;
}

static void remove_files(void)
{
    (void)unlink(path_of("vocab"));
    (void)unlink(path_of("merges"));
}

/* The 256 bytes as ids 0 … 255, spelled as vocab.json spells them, and "ab" as 256. */
static void write_vocabulary(void)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    int shifted = 256;

    fleet_strbuf_append(&text, "{\"ab\":256");
    for (int b = 0; b < 256; b++) {
        int code = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : shifted++;
        fleet_strbuf_appendf(&text, ",\"\\u%04x\":%d", (unsigned int)code, b);
    }
    fleet_strbuf_append_char(&text, '}');
    fleet_assert(fleet_file_write(path_of("vocab"), text.text, text.length, NULL) == 0);
}

static struct bpe *open_merges(const uint8_t *merges, size_t size)
{
    char vocabulary[64];
    struct bpe *bpe = NULL;

    (void)snprintf(vocabulary, sizeof(vocabulary), "%s", path_of("vocab"));
    fleet_assert(fleet_file_write(path_of("merges"), merges, size, NULL) == 0);
    (void)bpe_open(vocabulary, path_of("merges"), &bpe, NULL);
    return bpe;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct bpe *plain;
    struct bpe_tokens tokens = {0};
    const char *text = (const char *)data;
    const uint8_t *merges = memchr(data, 0, size);
    size_t from = 0, to = 0;

    if (!plain) {
        write_vocabulary();
        (void)atexit(remove_files);
        plain = open_merges(data, 0);
    }
    while (to < size) {
        to = to + 7 < size ? to + 7 : size;
        from += bpe_encode(plain, text + from, to - from, to == size, &tokens);
    }
    fleet_assert(from == size && tokens.count == (int64_t)size);
    for (size_t i = 0; i < size; i++)
        fleet_assert(tokens.ids[i] == data[i]);
    if (merges) {
        struct bpe *bpe = open_merges(merges + 1, size - (size_t)(merges + 1 - data));
        tokens.count = 0;
        if (bpe)
            fleet_assert(bpe_encode(bpe, text, size, true, &tokens) == size);
        bpe_free(bpe);
    }
    free(tokens.ids);
    return 0;
}
