/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/named_pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"

int named_pipe_open(const char *folder, const char *name, int local_rank, char **out_path,
                    struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf path = {0};
    int fd = -1;

    fleet_strbuf_appendf(&path, "%s/%s.%d", folder, name, local_rank);
    (void)unlink(path.text);
    if (mkfifo(path.text, 0600) < 0 ||
        (fd = open(path.text, O_RDWR | O_NONBLOCK | O_CLOEXEC)) < 0) {
        int rc = fleet_error(err, -errno, "make the named pipe %s: %s", path.text, strerror(errno));
        (void)unlink(path.text);
        return rc;
    }
    *out_path = fleet_strbuf_take(&path);
    return fd;
}
