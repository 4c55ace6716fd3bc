/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/training/trainer_file.h"

#include <errno.h>
#include <inttypes.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/field.h"
#include "libfleet/base/json.h"
#include "libfleet/base/json_build.h"
#include "libfleet/strategy/strategy_json.h"

char *trainer_file_format(const struct trainer_file *file, const struct strategy *strategy,
                          enum strategy_policy policy, const struct strategy_options *options)
{
    FLEET_AUTO_JSON cJSON *root = fleet_json_new_object();

    fleet_json_set(root, "training",
                   file->training ? fleet_json_copy(file->training) : fleet_json_new_object());
    fleet_json_set(root, "strategy", strategy_json_encode(strategy));
    fleet_json_set_string(root, "strategyPolicy", strategy_policies[policy]);
    fleet_json_set(root, "strategyOptions", fleet_object_encode(&strategy_options_type, options));
    fleet_json_set(root, "autoParallel", fleet_json_copy(file->auto_parallel));
    fleet_json_set_string(root, "jobName", file->job_name);
    fleet_json_set_string(root, "baseDir", file->base_folder);
    fleet_json_set_number(root, "elasticReplicas", (double)file->elastic_replicas);
    fleet_json_set(root, "encryptData", cJSON_CreateBool(file->encrypts));
    return fleet_json_print(root);
}

int trainer_file_parse(const char *text, size_t size, struct trainer_file *out,
                       struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *root = NULL;
    struct trainer_file file = {.job_name = "job", .base_folder = "", .elastic_replicas = 1};
    int rc;

    if ((rc = fleet_json_parse(text, size, TRAINER_FILE_SIZE_MAX, &root, err)) < 0 ||
        (rc = fleet_json_opt_string(root, "baseDir", &file.base_folder, err)) < 0 ||
        (rc = fleet_json_opt_string(root, "jobName", &file.job_name, err)) < 0 ||
        (rc = fleet_json_opt_int(root, "elasticReplicas", &file.elastic_replicas, err)) < 0 ||
        (rc = fleet_json_opt_bool(root, "encryptData", &file.encrypts, err)) < 0)
        return rc;
    if (file.elastic_replicas < 0 || file.elastic_replicas > 1)
        return fleet_error(err, -EINVAL, "elasticReplicas: must be 0 or 1, not %" PRId64,
                           file.elastic_replicas);
    file.training = fleet_json_at(root, "training");
    file.auto_parallel = fleet_json_at(root, "autoParallel");
    file.root = root;
    root = NULL;
    *out = file;
    return 0;
}

void trainer_file_release(struct trainer_file *file)
{
    cJSON_Delete(file->root);
    *file = (struct trainer_file){0};
}
