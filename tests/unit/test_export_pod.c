/* SPDX-License-Identifier: Apache-2.0 */

/* The pod that reads a job's checkpoints: what it takes over from the workers, where it must
 * run, and what is refused; and the archive that comes out of it. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/export_pod.h"
#include "cli/untar.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/checkpoint/tar.h"

#define JOB(volume, more, status)                                                             \
    "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\",\"metadata\":{\"name\":" \
    "\"gpt\",\"namespace\":\"team\",\"uid\":\"u-1\"},\"spec\":{\"worker\":{\"replicas\":2,"   \
    "\"volumes\":[{\"name\":\"text\",\"mountPath\":\"/data\",\"configMap\":\"text\"},"        \
    "{\"name\":\"scratch\",\"mountPath\":\"/scratch\",\"emptyDir\":{}}," volume "]},"         \
    "\"training\":{\"model\":{\"name\":\"gpt\",\"layers\":1,\"heads\":1,\"width\":8,"         \
    "\"context\":8},\"data\":{\"path\":\"/data\"},\"optimizer\":{\"learningRate\":0.1},"      \
    "\"globalBatchSize\":2,\"microBatchSize\":1,\"steps\":2" more "}},\"status\":{" status "}}"
#define CLAIM     "{\"name\":\"ck\",\"mountPath\":\"/ck\",\"claim\":\"ck-claim\"}"
#define HOST_PATH "{\"name\":\"ck\",\"mountPath\":\"/ck\",\"hostPath\":\"/srv/ck\"}"
#define SAVES     ",\"checkpoint\":{\"path\":\"/ck/gpt\"}"
#define SAVED                                                                                     \
    "\"agentImage\":\"runtime:1\",\"image\":\"o:2\",\"checkpoint\":{\"path\":\"/ck/gpt/step-2\"," \
    "\"step\":2}"
#define WORKER(name, phase, node)                                                             \
    "{\"metadata\":{\"name\":\"" name "\"},\"spec\":{\"nodeName\":\"" node "\"},\"status\":{" \
    "\"phase\":\"" phase "\"}}"
#define LIST(items) "{\"items\":[" items "]}"
#define MODE(mode) \
    LIST("{\"metadata\":{\"name\":\"ck-claim\"},\"spec\":{\"accessModes\":[\"" mode "\"]}}")

struct situation {
    const char *job, *pods, *claims;
    const char *node, *image, *checkpoint;
};

static int build(const struct situation *s, cJSON **out, char **out_path, struct fleet_error *err)
{
    FLEET_AUTO_JSON cJSON *job = cJSON_Parse(s->job);
    FLEET_AUTO_JSON cJSON *pods = cJSON_Parse(s->pods ? s->pods : LIST(""));
    FLEET_AUTO_JSON cJSON *claims = s->claims ? cJSON_Parse(s->claims) : NULL;
    struct export_pod_request request = {.job = job,
                                         .pods = pods,
                                         .claims = claims,
                                         .name = "gpt-export-1",
                                         .image = s->image,
                                         .node = s->node,
                                         .checkpoint = s->checkpoint};

    assert_non_null(job);
    assert_non_null(pods);
    return export_pod_build(&request, out, out_path, err);
}

static cJSON *build_well(const struct situation *s, const char *path)
{
    FLEET_AUTO_FREE char *found = NULL;
    cJSON *pod = NULL;
    struct fleet_error err;

    if (build(s, &pod, &found, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(found, path);
    return pod;
}

static void expect_refused(const struct situation *s, const char *words)
{
    FLEET_AUTO_FREE char *path = NULL;
    FLEET_AUTO_JSON cJSON *pod = NULL;
    struct fleet_error err;

    assert_int_equal(build(s, &pod, &path, &err), -EINVAL);
    if (!strstr(err.text, words))
        fail_msg("expected \"%s\": %s", words, err.text);
}

static void expect(const cJSON *pod, const char *path, const char *value)
{
    const cJSON *item = fleet_json_at(pod, path);
    FLEET_AUTO_FREE char *text = item ? fleet_json_print(item) : strdup("nothing");

    if (strcmp(text, value) != 0)
        fail_msg("%s: %s, expected %s", path, text, value);
}

static const char *node_of(const cJSON *pod)
{
    return cJSON_GetStringValue(fleet_json_at(
        pod, "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution."
             "nodeSelectorTerms[0].matchFields[0].values[0]"));
}

/* ---- the pod --------------------------------------------------------------------------------- */

static void test_export_pod__sees_the_volumes_and_nothing_else(void **state)
{
    struct situation s = {.job = JOB(CLAIM, SAVES, SAVED), .claims = MODE("ReadWriteMany")};
    FLEET_AUTO_JSON cJSON *pod = build_well(&s, "/ck/gpt");

    (void)state;
    expect(pod, "metadata.name", "\"gpt-export-1\"");
    expect(pod, "metadata.namespace", "\"team\"");
    expect(pod, "metadata.labels",
           "{\"fleetjob.dev/export-of\":\"gpt\"}"); /* no worker of the job */
    expect(pod, "metadata.ownerReferences[0].uid", "\"u-1\"");
    expect(pod, "metadata.ownerReferences[0].controller", "nothing");
    expect(pod, "spec.containers[0].image", "\"runtime:1\"");
    expect(pod, "spec.containers[0].command", "[\"/fleetjob/bin/fleetjob\",\"hold\"]");
    expect(pod, "spec.containers[0].env", "nothing");
    expect(pod, "spec.containers[1]", "nothing");
    expect(pod, "spec.initContainers", "nothing");
    expect(pod, "spec.volumes",
           "[{\"name\":\"ck\",\"persistentVolumeClaim\":{\"claimName\":\"ck-claim\"}}]");
    expect(pod, "spec.containers[0].volumeMounts",
           "[{\"name\":\"ck\",\"mountPath\":\"/ck\",\"readOnly\":true}]");
    expect(pod, "spec.securityContext.runAsUser", "65532");
    expect(pod, "spec.securityContext.runAsNonRoot", "true");
    expect(pod, "spec.containers[0].securityContext.allowPrivilegeEscalation", "false");
    expect(pod, "spec.automountServiceAccountToken", "false");
    expect(pod, "spec.restartPolicy", "\"Never\"");
    expect(pod, "spec.activeDeadlineSeconds", "3600");
    assert_null(node_of(pod));
}

/* Both files are on one volume, which is mounted once. */
static void test_export_pod__a_tokenizer_needs_its_volume(void **state)
{
    FLEET_AUTO_FREE char *path = NULL;
    FLEET_AUTO_JSON cJSON *job = cJSON_Parse(JOB(CLAIM, SAVES, SAVED));
    FLEET_AUTO_JSON cJSON *pod = NULL;
    cJSON *data = (cJSON *)fleet_json_at(job, "spec.training.data");
    struct export_pod_request request = {.job = job, .name = "x"};
    struct fleet_error err;

    (void)state;
    (void)cJSON_AddStringToObject(data, "tokenizer", "bpe");
    (void)cJSON_AddStringToObject(data, "vocabulary", "/data/vocab.json");
    (void)cJSON_AddStringToObject(data, "merges", "/data/merges.txt");
    if (export_pod_build(&request, &pod, &path, &err) < 0)
        fail_msg("%s", err.text);
    expect(pod, "spec.containers[0].volumeMounts",
           "[{\"name\":\"ck\",\"mountPath\":\"/ck\",\"readOnly\":true},"
           "{\"name\":\"text\",\"mountPath\":\"/data\",\"readOnly\":true}]");
    expect(pod, "spec.volumes[1].configMap.name", "\"text\"");
    expect(pod, "spec.volumes[2]", "nothing");
}

#define TEMPLATE                                                                                \
    "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\",\"metadata\":{\"name\":"   \
    "\"gpt\",\"uid\":\"u\"},\"spec\":{\"worker\":{\"replicas\":1,\"template\":{\"spec\":{"      \
    "\"nodeSelector\":{\"disk\":\"fast\"},\"schedulerName\":\"other\",\"securityContext\":{"    \
    "\"runAsUser\":1000},\"tolerations\":[{\"key\":\"gpu\",\"operator\":\"Exists\"}],"          \
    "\"imagePullSecrets\":[{\"name\":\"registry\"}],\"affinity\":{\"podAntiAffinity\":{},"      \
    "\"nodeAffinity\":{\"requiredDuringSchedulingIgnoredDuringExecution\":{"                    \
    "\"nodeSelectorTerms\":[{\"matchExpressions\":[{\"key\":\"a\",\"operator\":\"Exists\"}]},"  \
    "{\"matchExpressions\":[{\"key\":\"b\",\"operator\":\"Exists\"}]}]}}},"                     \
    "\"containers\":[{\"name\":\"w\",\"volumeMounts\":[{\"name\":\"v\",\"mountPath\":\"/\"},"   \
    "{\"name\":\"h\",\"mountPath\":\"/ck\",\"subPath\":\"x\"}]}],\"volumes\":[{\"name\":\"v\"," \
    "\"emptyDir\":{}},{\"name\":\"h\",\"hostPath\":{\"path\":\"/srv\"}}]}}},\"training\":{"     \
    "\"model\":{\"name\":\"gpt\",\"layers\":1,\"heads\":1,\"width\":8,\"context\":8},"          \
    "\"data\":{\"path\":\"/data\"},\"optimizer\":{\"learningRate\":0.1},"                       \
    "\"globalBatchSize\":2,\"microBatchSize\":1,\"steps\":2" SAVES "}},\"status\":{" SAVED "}}"

static void test_export_pod__a_template_says_where_and_as_whom(void **state)
{
    struct situation s = {.job = TEMPLATE,
                          .pods = LIST(WORKER("gpt-worker-1-0", "Succeeded", "n2") "," WORKER(
                              "gpt-worker-0-0", "Succeeded", "n1"))};
    FLEET_AUTO_JSON cJSON *pod = build_well(&s, "/ck/gpt");
    static const char terms[] = "spec.affinity.nodeAffinity."
                                "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";

    (void)state;
    expect(pod, "spec.nodeSelector.disk", "\"fast\"");
    expect(pod, "spec.securityContext", "{\"runAsUser\":1000}");
    expect(pod, "spec.tolerations[0].key", "\"gpu\"");
    expect(pod, "spec.imagePullSecrets[0].name", "\"registry\"");
    expect(pod, "spec.schedulerName", "nothing"); /* a gang's scheduler would wait for others */
    expect(pod, "spec.affinity.podAntiAffinity", "nothing");
    expect(pod, "spec.containers[0].volumeMounts",
           "[{\"name\":\"h\",\"mountPath\":\"/ck\",\"subPath\":\"x\",\"readOnly\":true}]");
    for (int i = 0; i < 2; i++) { /* each alternative also demands the node */
        char path[200];
        (void)snprintf(path, sizeof(path), "%s[%d].matchFields[0].values", terms, i);
        expect(pod, path, "[\"n1\"]");
        (void)snprintf(path, sizeof(path), "%s[%d].matchExpressions[0].key", terms, i);
        expect(pod, path, i ? "\"b\"" : "\"a\"");
    }
}

static void test_export_pod__goes_where_the_volume_is(void **state)
{
    struct situation s = {.job = JOB(CLAIM, SAVES, SAVED), .claims = MODE("ReadWriteOnce")};
    cJSON *pod = build_well(&s, "/ck/gpt");

    (void)state;
    assert_null(node_of(pod)); /* the pods are gone: any node may attach it */
    cJSON_Delete(pod);
    s.pods = LIST(WORKER("gpt-worker-0-1", "Running", "n3"));
    pod = build_well(&s, "/ck/gpt");
    assert_string_equal(node_of(pod), "n3");
    cJSON_Delete(pod);
    s.claims = NULL; /* may not be listed: as if it were ReadWriteOnce */
    pod = build_well(&s, "/ck/gpt");
    assert_string_equal(node_of(pod), "n3");
    cJSON_Delete(pod);
    s.claims = MODE("ReadWriteMany");
    pod = build_well(&s, "/ck/gpt");
    assert_null(node_of(pod));
    cJSON_Delete(pod);
    s.node = "n9";
    s.image = "mine:3";
    s.checkpoint = "/ck/gpt/step-1";
    pod = build_well(&s, "/ck/gpt/step-1");
    assert_string_equal(node_of(pod), "n9");
    expect(pod, "spec.containers[0].image", "\"mine:3\"");
    cJSON_Delete(pod);
}

static void test_export_pod__what_cannot_be_read_is_refused(void **state)
{
    struct situation s = {.job = JOB(CLAIM, "", SAVED)};

    (void)state;
    expect_refused(&s, "FleetJob gpt saves no checkpoints: it has no spec.training.checkpoint");
    s.job = JOB(CLAIM, SAVES, "\"agentImage\":\"runtime:1\"");
    expect_refused(&s, "FleetJob gpt has not saved a checkpoint yet");
    s.job = JOB(CLAIM, ",\"checkpoint\":{\"path\":\"/else/gpt\"}", SAVED);
    expect_refused(&s, "checkpoint path /else/gpt is on no volume");
    s.job = JOB(CLAIM, ",\"checkpoint\":{\"path\":\"/ckk/gpt\"}", SAVED); /* not below /ck */
    expect_refused(&s, "checkpoint path /ckk/gpt is on no volume");
    s.job = JOB(CLAIM, ",\"checkpoint\":{\"path\":\"/scratch/gpt\"}", SAVED);
    expect_refused(&s, "checkpoint path /scratch/gpt is on an emptyDir");
    s.job = JOB(HOST_PATH, SAVES, SAVED);
    expect_refused(&s, "on a hostPath, and the job's pods are gone: name the node");
    s.job = JOB(CLAIM, SAVES, SAVED);
    s.claims = LIST("");
    expect_refused(&s, "the PersistentVolumeClaim ck-claim of the job is gone");
    s.claims = MODE("ReadWriteOncePod");
    s.pods = LIST(WORKER("gpt-worker-0-0", "Running", "n1"));
    expect_refused(&s, "ReadWriteOncePod and a worker uses it");
    s.checkpoint = "ck";
    expect_refused(&s, "--checkpoint: ck is not an absolute path");
    s = (struct situation){.job = JOB(CLAIM, SAVES, "\"checkpoint\":{\"path\":\"/ck/gpt/s\"}")};
    expect_refused(&s, "--image");
    s.job =
        "{\"apiVersion\":\"fleetjob.dev/v1alpha1\",\"kind\":\"FleetJob\",\"metadata\":{\"name\":"
        "\"own\",\"uid\":\"u\"},\"spec\":{\"worker\":{\"replicas\":1,\"template\":{\"spec\":{"
        "\"containers\":[{\"name\":\"w\",\"image\":\"i\",\"command\":[\"c\"]}]}}}}}";
    expect_refused(&s, "runs an own trainer");
}

/* ---- the archive ----------------------------------------------------------------------------- */

struct archive {
    char folder[64];
    struct fleet_strbuf bytes;
};

static void add_entry(struct archive *a, const char *name, const char *text)
{
    char block[TAR_BLOCK];
    size_t size = strlen(text);

    tar_encode(name, size, 1700000000, block);
    fleet_strbuf_append_bytes(&a->bytes, block, sizeof(block));
    fleet_strbuf_append(&a->bytes, text);
    memset(block, 0, sizeof(block));
    fleet_strbuf_append_bytes(&a->bytes, block, tar_padding(size));
}

static int unpack(struct archive *a, struct untar_result *out, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(a->folder, "archive");
    FLEET_AUTO_CLOSE int fd = -1;

    assert_int_equal(fleet_file_write(path, a->bytes.text, a->bytes.length, NULL), 0);
    fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    return untar(fd, a->folder, out, err);
}

static void expect_bad(struct archive *a, const char *words)
{
    struct untar_result result;
    struct fleet_error err;

    assert_int_equal(unpack(a, &result, &err), -EBADMSG);
    if (!strstr(err.text, words))
        fail_msg("expected \"%s\": %s", words, err.text);
    fleet_strbuf_clear(&a->bytes);
}

static void expect_file(const struct archive *a, const char *name, const char *expected)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(a->folder, name);
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;

    assert_int_equal(fleet_file_read(path, 1 << 16, &text, &size, NULL), 0);
    assert_string_equal(text, expected);
}

static void test_export_pod__an_archive_is_unpacked(void **state)
{
    struct archive a = {.folder = "/tmp/fleetjob-untar-XXXXXX"};
    FLEET_AUTO_FREE char *command = NULL;
    char zeros[2 * TAR_BLOCK] = {0};
    struct untar_result result;
    struct fleet_error err;

    (void)state;
    assert_non_null(mkdtemp(a.folder));
    add_entry(&a, "one", "first");
    add_entry(&a, "two", "");
    fleet_strbuf_append_bytes(&a.bytes, zeros, sizeof(zeros));
    if (unpack(&a, &result, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(result.files, 2);
    assert_int_equal(result.bytes, 5);
    expect_file(&a, "one", "first");
    expect_file(&a, "two", "");
    fleet_strbuf_clear(&a.bytes);

    add_entry(&a, "one", "second");
    a.bytes.length -= TAR_BLOCK; /* in the middle of the file */
    expect_bad(&a, "ends too early");
    add_entry(&a, "one", "second"); /* without its end */
    expect_bad(&a, "ends too early");
    expect_file(&a, "one", "second"); /* it was complete */
    add_entry(&a, "../up", "x");
    expect_bad(&a, "something else than plain files: ../up");
    add_entry(&a, "one", "x");
    a.bytes.text[3] = 'z';
    expect_bad(&a, "damaged");
    fleet_strbuf_append_bytes(&a.bytes, zeros, 10);
    expect_bad(&a, "ends too early");
    fleet_strbuf_release(&a.bytes);
    command = malloc(200);
    (void)snprintf(command, 200, "rm -r %s", a.folder);
    assert_int_equal(system(command), 0);
}

static void test_export_pod__sizes_of_any_length(void **state)
{
    const uint64_t sizes[] = {0, 1, 511, (1ull << 33) - 1, 1ull << 33, 1ull << 40, INT64_MAX};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct tar_entry entry;
        char block[TAR_BLOCK];
        tar_encode("model.safetensors", sizes[i], 0, block);
        assert_int_equal(tar_decode(block, &entry, NULL), 0);
        assert_true(entry.size == sizes[i]);
        assert_string_equal(entry.name, "model.safetensors");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_export_pod__sees_the_volumes_and_nothing_else),
        cmocka_unit_test(test_export_pod__a_tokenizer_needs_its_volume),
        cmocka_unit_test(test_export_pod__a_template_says_where_and_as_whom),
        cmocka_unit_test(test_export_pod__goes_where_the_volume_is),
        cmocka_unit_test(test_export_pod__what_cannot_be_read_is_refused),
        cmocka_unit_test(test_export_pod__an_archive_is_unpacked),
        cmocka_unit_test(test_export_pod__sizes_of_any_length),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
