/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/links_file.h"

#include <errno.h>
#include <stdlib.h>

#include "cli/yaml_print.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/yaml.h"

#define LINKS_SIZE_MAX ((size_t)64 << 10)

int links_file_place(char **out_path, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

    if (cache && *cache)
        fleet_strbuf_appendf(&path, "%s/fleetjob/links.yaml", cache);
    else if (home && *home)
        fleet_strbuf_appendf(&path, "%s/.cache/fleetjob/links.yaml", home);
    else
        return fleet_error(err, -EINVAL,
                           "neither XDG_CACHE_HOME nor HOME is set: give --links FILE");
    *out_path = fleet_strbuf_take(&path);
    return 0;
}

/* Put the file's name in front of its errors. */
static void add_file_errors(const char *file, const struct fleet_errors *found,
                            struct fleet_errors *errors)
{
    for (size_t i = 0; i < found->count && i < FLEET_ERRORS_MAX; i++)
        fleet_errors_add(errors, "", "%s: %s%s%s", file, found->items[i].path,
                         *found->items[i].path ? ": " : "", found->items[i].message);
}

int links_file_read(const char *path, struct links *out, struct fleet_errors *errors)
{
    FLEET_AUTO_FREE char *text = NULL;
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct fleet_errors found = {0};
    struct fleet_error err;
    size_t size;
    int rc;

    if (fleet_file_read(path, LINKS_SIZE_MAX, &text, &size, &err) < 0) {
        fleet_errors_add(errors, "", "%s", err.text);
        return -EINVAL;
    }
    if (fleet_yaml_to_json(text, size, &json, &err) < 0) {
        fleet_errors_add(errors, "", "%s: %s", path, err.text);
        return -EINVAL;
    }
    rc = links_decode(json, out, &found);
    add_file_errors(path, &found, errors);
    fleet_errors_release(&found);
    return rc;
}

int links_file_write(const char *path, const struct links *links, const char *comment,
                     struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *json = fleet_object_encode(&links_type, links);
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    int rc = fleet_file_prepare(path, err);

    if (rc < 0)
        return rc;
    fleet_strbuf_append(&text, comment);
    yaml_print(json, &text);
    return fleet_file_write(path, text.text, text.length, err);
}
