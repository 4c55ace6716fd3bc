/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/noise_images.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/random.h"
#include "tests/support/job_run.h"

#define IMAGES      40
#define IMAGE_BYTES 3073 /* a label, then 3 · 32 · 32 colours */

char *noise_images_folder(void)
{
    struct fleet_random_key key = fleet_random_key(1, "images", 0);
    FLEET_AUTO_FREE float *noise = malloc((size_t)IMAGES * IMAGE_BYTES * sizeof(*noise));
    FLEET_AUTO_FREE uint8_t *bytes = malloc((size_t)IMAGES * IMAGE_BYTES);
    char *folder = job_run_folder();
    FLEET_AUTO_FREE char *file = fleet_file_join(folder, "data_batch_1.bin");

    fleet_assert(noise && bytes);
    fleet_random_normal(key, 0, (size_t)IMAGES * IMAGE_BYTES, 128.0f, 40.0f, noise);
    for (int i = 0; i < IMAGES * IMAGE_BYTES; i++)
        bytes[i] = (uint8_t)(i % IMAGE_BYTES == 0 ? i / IMAGE_BYTES % 10
                                                  : fminf(fmaxf(noise[i], 0.0f), 255.0f));
    fleet_assert(fleet_file_write(file, bytes, (size_t)IMAGES * IMAGE_BYTES, NULL) == 0);
    return folder;
}
