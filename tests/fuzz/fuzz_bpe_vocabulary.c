/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as vocab.json, without merges: refused, or every text becomes tokens that it names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/runtime/data/bpe.h"
#include "libfleet/base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *path_of(const char *name, char out[64])
{
    (void)snprintf(out, 64, "/dev/shm/fleetjob-fuzz-vocabulary-%ld-%s", (long)getpid(), name);
    return out;
}

static void write_content(const char *name, const void *content, size_t size)
{
    char path[64];
    FILE *file = fopen(path_of(name, path), "w");

    fleet_assert(file && (size == 0 || fwrite(content, size, 1, file) == 1));
    fleet_assert(fclose(file) == 0);
}

static void remove_files(void)
{
    char path[64];

    (void)unlink(path_of("vocab", path));
    (void)unlink(path_of("merges", path));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "The quick brown\tfox's 12 caf\xc3\xa9s, \xff!";
    struct bpe_tokens tokens = {0};
    struct bpe *bpe = NULL;
    char vocabulary[64], merges[64];
    static bool is_ready;

    if (!is_ready) {
        write_content("merges", "#version: 0.2\n", 14);
        is_ready = atexit(remove_files) == 0;
    }
    write_content("vocab", data, size);
    if (bpe_open(path_of("vocab", vocabulary), path_of("merges", merges), &bpe, NULL) < 0)
        return 0;
    fleet_assert(bpe_encode(bpe, text, sizeof(text) - 1, true, &tokens) == sizeof(text) - 1);
    for (int64_t i = 0; i < tokens.count; i++)
        fleet_assert(tokens.ids[i] >= 0 && tokens.ids[i] < bpe_vocabulary(bpe));
    bpe_free(bpe);
    free(tokens.ids);
    return 0;
}
