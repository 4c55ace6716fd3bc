/* SPDX-License-Identifier: Apache-2.0 */

/* Any JSON as what weights say of their job; what is read must be read again from what an export
 * would keep of it, and be the same model. */
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/json.h"
#include "libfleet/checkpoint/job_record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FLEET_AUTO_JSON cJSON *job = NULL;
    FLEET_AUTO_JSON cJSON *kept = NULL;
    FLEET_AUTO_FREE char *text = NULL;
    struct job_record record, again;

    if (fleet_json_parse((const char *)data, size, JOB_RECORD_SIZE_MAX, &job, NULL) < 0)
        return 0;
    text = job_record_metadata(job);
    if (job_record_decode(job, &record, NULL) < 0)
        return 0;
    fleet_assert(text != NULL);
    fleet_assert(fleet_json_parse(text, strlen(text), JOB_RECORD_SIZE_MAX, &kept, NULL) == 0);
    if (job_record_decode(kept, &again, NULL) == 0) {
        fleet_assert(again.training.model.name == record.training.model.name);
        fleet_assert(again.training.model.vocabulary == record.training.model.vocabulary);
        job_record_release(&again);
    }
    job_record_release(&record);
    return 0;
}
