/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_HDFS_FIXTURE_H
#define TESTS_INTEGRATION_HDFS_FIXTURE_H

/* A real HDFS (tools/hdfs.sh) for a test. Without one the test is skipped. */

#include <pwd.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define HDFS_START_S 600

struct hdfs {
    char home[512]; /* of the program, for HADOOP_HOME; "": there is none */
    char user[64];  /* the superuser */
    pid_t pid;
    int http_port, port; /* of the name node, for webhdfs:// and hdfs:// */
};

/* False: it is not there. The reason is printed then. */
static inline bool hdfs_find(struct hdfs *hdfs)
{
    FILE *pipe = popen("tools/hdfs.sh --built", "r");
    const struct passwd *user = getpwuid(getuid());
    bool found = pipe && fgets(hdfs->home, sizeof(hdfs->home), pipe) != NULL;

    if (pipe && pclose(pipe) != 0)
        found = false;
    hdfs->home[found ? strcspn(hdfs->home, "\n") : 0] = '\0';
    (void)snprintf(hdfs->user, sizeof(hdfs->user), "%s", user ? user->pw_name : "root");
    return found;
}

/* The port behind `before` in a file of a few lines; 0: not there. */
static inline int hdfs_port(const char *path, const char *before)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t size = 0;
    int port = 0;

    while (file && port == 0 && getline(&line, &size, file) > 0) {
        const char *at = strstr(line, before);
        if (at)
            port = atoi(at + strlen(before));
    }
    if (file)
        (void)fclose(file);
    free(line);
    return port;
}

/* Start it over the folder `place`, an absolute path, and wait until it is ready. It ends with the
 * test. False: it does not start. */
static inline bool hdfs_start(struct hdfs *hdfs, const char *place)
{
    char program[600], details[512], conf[512];

    (void)snprintf(program, sizeof(program), "%s/bin/start", hdfs->home);
    (void)snprintf(details, sizeof(details), "%s/details", place);
    (void)snprintf(conf, sizeof(conf), "%s/conf.xml", place);
    hdfs->pid = fork();
    if (hdfs->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)execl(program, program, place, "0", "0", "-format", (char *)NULL);
        _exit(127);
    }
    hdfs->port = 0;
    for (int i = 0; i < HDFS_START_S * 20 && hdfs->port == 0; i++) {
        if (hdfs->pid < 0 || waitpid(hdfs->pid, NULL, WNOHANG) != 0)
            return false;
        (void)usleep(50000);
        hdfs->port = hdfs_port(details, "\"namenode_port\":");
    }
    hdfs->http_port = hdfs_port(conf, "<name>dfs.namenode.http-address</name><value>localhost:");
    return hdfs->port > 0 && hdfs->http_port > 0;
}

/* Kill it and start it again over the same files, with the same ports of the name node. It returns
 * before the server answers. */
static inline void hdfs_replace(struct hdfs *hdfs, const char *place)
{
    char program[600], http[16], port[16];

    (void)kill(hdfs->pid, SIGKILL);
    (void)waitpid(hdfs->pid, NULL, 0);
    (void)snprintf(program, sizeof(program), "%s/bin/start", hdfs->home);
    (void)snprintf(http, sizeof(http), "%d", hdfs->http_port);
    (void)snprintf(port, sizeof(port), "%d", hdfs->port);
    hdfs->pid = fork();
    if (hdfs->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)execl(program, program, place, http, port, (char *)NULL);
        _exit(127);
    }
}

static inline void hdfs_stop(const struct hdfs *hdfs)
{
    (void)kill(hdfs->pid, SIGKILL);
    (void)waitpid(hdfs->pid, NULL, 0);
}

#endif
