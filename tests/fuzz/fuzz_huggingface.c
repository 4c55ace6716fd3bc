/* SPDX-License-Identifier: Apache-2.0 */

/* Any JSON as a config.json; what is read must be written and read equal. And any text as a token's
 * spelling: its bytes are never more. */
#include <stdlib.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/checkpoint/huggingface.h"
#include "libfleet/checkpoint/vocabulary.h"
#include "libfleet/training/training.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_spelling(const uint8_t *data, size_t size)
{
    FLEET_AUTO_FREE char *spelled = strndup((const char *)data, size);
    FLEET_AUTO_FREE char *bytes = NULL;

    fleet_assert(spelled != NULL);
    bytes = malloc(strlen(spelled) + 1);
    fleet_assert(bytes != NULL);
    fleet_assert(vocabulary_unspell(spelled, bytes) <= strlen(spelled));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FLEET_AUTO_JSON cJSON *config = NULL;
    FLEET_AUTO_JSON cJSON *written = NULL;
    struct training_model model, again;

    try_spelling(data, size);
    if (fleet_json_parse((const char *)data, size, HUGGINGFACE_CONFIG_SIZE_MAX, &config, NULL) <
            0 ||
        huggingface_config_decode(config, &model, NULL) < 0)
        return 0;
    written = huggingface_config(&model, -1);
    fleet_assert(huggingface_config_decode(written, &again, NULL) == 0);
    fleet_assert(memcmp(&model, &again, sizeof(model)) == 0);
    return 0;
}
