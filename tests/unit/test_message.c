/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Messages: what is written reads back equal, what is outside the limits is refused with the name
 * of the field, what is unknown is ignored (fields) or refused (types).
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/rendezvous/message.h"

static const int ports[] = {7001, 7002};
static const struct message_member members[] = {
    {.pod_uid = "a", .index = 0, .address = "10.0.0.1", .ports = ports, .processes = 2, .step = 11},
    {.pod_uid = "b", .index = 4, .address = "10.0.0.2", .ports = ports, .processes = 1, .step = -1},
};
static const struct fleet_lineage_entry lineage[] = {
    {.generation = {1, 1}, .first_step = 1},
    {.generation = {2, 3}, .first_step = 12},
};
static const struct message_step steps[] = {
    {.step = 4,
     .generation = 3,
     .loss = 2.5,
     .grad_norm = 0.1,
     .learning_rate = 1e-3,
     .tokens = 64,
     .tokens_per_second = 91000.25,
     .times = {0.001, 0.25, 0.5, 0.125, 1e-6}},
    {.step = 5, .generation = 3, .loss = NAN, .grad_norm = NAN, .learning_rate = NAN},
};

static const struct message examples[] = {
    {.type = MESSAGE_HELLO,
     .sequence = 1,
     .hello = {.job_uid = "job",
               .pod_uid = "pod",
               .index = 3,
               .attempt = 1,
               .address = "::1",
               .ports = ports,
               .processes = 2,
               .devices = "cpu",
               .backend = "cpu",
               .level = FLEET_ISA_AVX512BF16,
               .version = "0.1.0",
               .status = {.state = MESSAGE_STATE_RUNNING,
                          .generation = {1, 7},
                          .step = 99,
                          .phase = FLEET_PHASE_RESTORED,
                          .state_generation = {1, 6},
                          .steps_from = 98},
               .place = 2,
               .members = 4,
               .restarts = 3,
               .left_for = "Resize"}},
    {.type = MESSAGE_READY,
     .sequence = 2,
     .ready = {.status = {.state = MESSAGE_STATE_RUNNING,
                          .generation = {1, 7},
                          .phase = FLEET_PHASE_FIRST_STEP,
                          .step = 5,
                          .state_generation = {1, 7}},
               .age_ms = 0.25}},
    {.type = MESSAGE_PROGRESS,
     .progress = {.generation = {1, 3}, .steps_from = 4, .steps = steps, .count = 2}},
    {.type = MESSAGE_EVALUATION, .evaluation = {.generation = {1, 3}, .step = 5, .loss = 2.25}},
    {.type = MESSAGE_FAILED,
     .failed = {.generation = {1, 3},
                .local_rank = 1,
                .exit_code = -1,
                .signal = 9,
                .cause = "OutOfMemory",
                .fatal = true,
                .is_back = true,
                .lines = "a \"b\"\n\tc\x01\n",
                .age_ms = 12}},
    {.type = MESSAGE_PEER_LOST, .peer_lost = {.generation = {1, 3}, .rank = 3, .age_ms = 1}},
    {.type = MESSAGE_CHECKPOINT_DONE,
     .checkpoint_done = {.generation = {1, 3}, .step = 100, .path = "/checkpoints/step-100"}},
    {.type = MESSAGE_CHECKPOINT_FAILED,
     .checkpoint_failed = {.step = 100, .reason = "No space left on device"}},
    {.type = MESSAGE_FINISHED,
     .finished = {.generation = {1, 3}, .steps = 300, .loss = 2.1, .weights_sha256 = "00ff"}},
    {.type = MESSAGE_LEFT, .left = {.reason = "SIGTERM"}},
    {.type = MESSAGE_ASSIGN,
     .assign = {.generation = {2, 3},
                .members = members,
                .member_count = 2,
                .world = 3,
                .key = {1, 2, 0xff},
                .plan_digest = "d",
                .level = FLEET_ISA_AMX,
                .lineage = lineage,
                .lineage_count = 2,
                .step = 11,
                .reporter = 1,
                .progress_step = 10,
                .progress_interval_ms = 50,
                .restarts = 3}},
    {.type = MESSAGE_ABORT, .abort = {.generation = {1, 3}, .cause = "MemberLost", .member = 2}},
    {.type = MESSAGE_CHECKPOINT, .checkpoint = {.generation = {1, 3}}},
    {.type = MESSAGE_LEAVE, .leave = {.reason = "scaled down"}},
    {.type = MESSAGE_DONE, .done = {.succeeded = true, .reason = "all steps done"}},
    {.type = MESSAGE_REFUSED, .refused = {.reason = "no such job"}},
    {.type = MESSAGE_HEARTBEAT,
     .heartbeat = {.status = {.generation = {1, 3}, .step = -1},
                   .progress_step = 7,
                   .interval_ms = 500}},
    {.type = MESSAGE_PUT, .put = {{1, 3}, "nccl", "\0\1\xff", 3}},
    {.type = MESSAGE_GET, .get = {.generation = {1, 3}, .key = "nccl"}},
    {.type = MESSAGE_VALUE, .value = {{1, 3}, "nccl", "", 0}},
};

static int decode(const char *text, struct message *message, struct fleet_error *err)
{
    return message_decode(text, strlen(text), message, err);
}

static void test_message__every_type_reads_back_as_it_was_written(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
        struct message_text *once = message_encode(&examples[i]), *twice;
        struct message message;
        struct fleet_error err = {.text = "nothing"};

        assert_int_equal(examples[i].type, i); /* an example for each type, in order */
        if (message_decode(once->text, once->size, &message, &err) < 0)
            fail_msg("%s: %s", once->text, err.text);
        twice = message_encode(&message);
        assert_string_equal(once->text, twice->text);
        message_text_release(once);
        message_text_release(twice);
        message_release(&message);
    }
}

static void test_message__values_survive_the_way(void **state)
{
    struct message copy;

    (void)state;
    message_copy(&examples[MESSAGE_HELLO], &copy);
    assert_string_equal(copy.hello.pod_uid, "pod");
    assert_int_equal(copy.hello.ports[1], 7002);
    assert_int_equal(copy.hello.level, FLEET_ISA_AVX512BF16);
    assert_int_equal(copy.hello.status.state, MESSAGE_STATE_RUNNING);
    assert_int_equal(copy.hello.status.generation.counter, 7);
    assert_int_equal(copy.hello.status.state_generation.counter, 6);
    assert_int_equal(copy.sequence, 1);
    message_release(&copy);
    message_copy(&examples[MESSAGE_ASSIGN], &copy);
    assert_int_equal(copy.assign.members[1].index, 4);
    assert_int_equal(copy.assign.members[1].ports[0], 7001);
    assert_int_equal(copy.assign.key[2], 0xff);
    assert_int_equal(copy.assign.lineage[1].first_step, 12);
    assert_int_equal(message_first_rank(&copy.assign, 1), 2);
    message_release(&copy);
    message_copy(&examples[MESSAGE_PROGRESS], &copy);
    assert_true(copy.progress.steps[0].tokens_per_second == 91000.25);
    assert_true(copy.progress.steps[0].times.optimizer_s == 1e-6);
    assert_true(isnan(copy.progress.steps[1].loss));
    message_release(&copy);
    message_copy(&examples[MESSAGE_PUT], &copy);
    assert_int_equal(copy.put.value_size, 3);
    assert_memory_equal(copy.put.value, "\0\1\xff", 3);
    message_release(&copy);
    message_copy(&examples[MESSAGE_FAILED], &copy);
    assert_string_equal(copy.failed.lines, "a \"b\"\n\tc\x01\n");
    message_release(&copy);
}

static void test_message__refuses_with_the_name_of_the_field(void **state)
{
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "decode message: line 1, column 1: not JSON: the text ends where a value must stand"},
        {"[]", "decode message: type: required, but absent"},
        {"{\"type\": 3}", "decode message: type: must be a string"},
        {"{\"type\": \"dance\"}",
         "decode message: type: \"dance\" is no message of fleetjob.rendezvous.v1"},
        {"{\"type\": \"left\", \"sequence\": -1}",
         "decode message: sequence: -1 is negative, the first message has 1"},
        {"{\"type\": \"checkpoint\"}", "decode message checkpoint: generation: required"},
        {"{\"type\": \"checkpoint\", \"generation\": {\"epoch\": 1}}",
         "decode message checkpoint: generation.counter: required"},
        {"{\"type\": \"checkpoint\", \"generation\": {\"epoch\": 1, \"counter\": -1}}",
         "decode message checkpoint: generation.counter: must be in [0, 4503599627370496], not -1"},
        {"{\"type\": \"get\", \"generation\": {\"epoch\": 1, \"counter\": 1}}",
         "decode message get: key: required"},
        {"{\"type\": \"done\", \"succeeded\": 1}",
         "decode message done: succeeded: must be true or false, not 1"},
        {"{\"type\": \"heartbeat\", \"step\": 1.5}",
         "decode message heartbeat: step: must be an integer in "
         "[-1, 9007199254740992], not 1.5"},
        {"{\"type\": \"heartbeat\", \"step\": -2}",
         "decode message heartbeat: step: must be in [-1, 9007199254740992], not -2"},
        {"{\"type\": \"heartbeat\", \"step\": 1, \"intervalMs\": -1}",
         "decode message heartbeat: intervalMs: must be in [0, 1000000000000], not -1"},
        {"{\"type\": \"get\", \"generation\": {\"epoch\": 1, \"counter\": 1}, \"key\": \"\"}",
         "decode message get: key: must not be empty"},
        {"{\"type\": \"get\", \"generation\": {\"epoch\": 1, \"counter\": 1}, \"key\": \"\xff\"}",
         "decode message: line 1, column 67: not JSON: a byte that is not UTF-8"},
        {"{\"type\": \"put\", \"generation\": {\"epoch\": 1, \"counter\": 1}, \"key\": \"k\", "
         "\"value\": \"a=b=\"}",
         "decode message put: value: must be base64 of at most 1048576 bytes"},
        {"{\"type\": \"ready\", \"generation\": {\"epoch\": 1, \"counter\": 1}, "
         "\"phase\": \"asleep\", \"step\": 1}",
         "decode message ready: phase: must be one of waiting, connected, restored, "
         "firstStep, not \"asleep\""},
        {"{\"type\": \"progress\", \"generation\": {\"epoch\": 1, \"counter\": 1}, \"steps\": "
         "[{\"step\": 2}, {\"step\": 2}]}",
         "decode message progress: steps[1]: steps must follow each other"},
        {"{\"type\": \"progress\", \"generation\": {\"epoch\": 1, \"counter\": 1}, \"steps\": "
         "[{\"step\": 2}, {}]}",
         "decode message progress: steps[1].step: required"},
        {"{\"type\": \"left\"} {}",
         "decode message: line 1, column 18: not JSON: text after the end of the "
         "value"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct message message;
        struct fleet_error err;
        assert_int_equal(decode(cases[i].text, &message, &err), -EINVAL);
        assert_string_equal(err.text, cases[i].error);
    }
}

/* The example with `from` replaced by `to` must be refused with a text that contains `word`. */
static void check_refused(enum message_type type, const char *from, const char *to,
                          const char *word)
{
    struct message_text *text = message_encode(&examples[type]);
    FLEET_AUTO_STRBUF struct fleet_strbuf changed = {0};
    char *at = strstr(text->text, from);
    struct message message;
    struct fleet_error err = {.text = "accepted"};
    int rc;

    if (!at)
        fail_msg("%s not in %s", from, text->text);
    fleet_strbuf_append_bytes(&changed, text->text, (size_t)(at - text->text));
    fleet_strbuf_append(&changed, to);
    fleet_strbuf_append(&changed, at + strlen(from));
    rc = decode(changed.text, &message, &err);
    if (rc != -EINVAL || !strstr(err.text, word))
        fail_msg("%s -> %s: got %d \"%s\", expected %d \"…%s…\"", from, to, rc, err.text, -EINVAL,
                 word);
    message_text_release(text);
}

static void test_message__holds_what_belongs_together_together(void **state)
{
    (void)state;
    check_refused(MESSAGE_ASSIGN, "\"world\":3", "\"world\":4", "world: 4 is not");
    check_refused(MESSAGE_ASSIGN, "\"reporter\":1", "\"reporter\":2", "there is no member 2");
    check_refused(MESSAGE_ASSIGN, "\"key\":\"0102", "\"key\":\"01", "key: must be 64");
    check_refused(MESSAGE_ASSIGN, "[7001,7002]", "[]", "members[0].ports: must not be empty");
    check_refused(MESSAGE_ASSIGN, "[7001,7002]", "[7001,70020]", "ports[1]: must be in");
    check_refused(MESSAGE_HELLO, "\"avx512bf16\"", "\"neon\"", "level: must be one of plain, ");
    check_refused(MESSAGE_HELLO, "\"podUid\":\"pod\"", "\"podUid\":\"\"",
                  "podUid: must not be empty");
    check_refused(MESSAGE_HELLO, "\"place\":2", "\"place\":4096",
                  "place: must be in [-1, 4095], not 4096");
}

static void test_message__ignores_what_a_newer_peer_adds(void **state)
{
    struct message message;

    (void)state;
    assert_int_equal(
        decode("{\"type\": \"done\", \"succeeded\": true, \"mood\": {\"a\": [1]}}", &message, NULL),
        0);
    assert_int_equal(message.type, MESSAGE_DONE);
    assert_true(message.done.succeeded);
    assert_string_equal(message.done.reason, "");
    message_release(&message);
}

static void test_message__refuses_what_is_too_large(void **state)
{
    size_t size = MESSAGE_SIZE_MAX + 1;
    char *text = malloc(size);
    struct message message;
    struct fleet_error err;

    (void)state;
    memset(text, ' ', size);
    assert_int_equal(message_decode(text, size, &message, &err), -EFBIG);
    free(text);
}

static void test_message__cuts_long_texts_at_a_character(void **state)
{
    char *lines = malloc(MESSAGE_LINES_MAX + 8), *reason = malloc(MESSAGE_REASON_MAX + 8);
    struct message copy,
        message = {.type = MESSAGE_FAILED, .failed = {.exit_code = 1, .cause = "", .lines = lines}};

    (void)state;
    memset(lines, 'x', MESSAGE_LINES_MAX + 7);
    memcpy(lines + 6, "\xc3\xa4", 2); /* the cut falls into this character */
    lines[MESSAGE_LINES_MAX + 7] = '\0';
    message_copy(&message, &copy);
    assert_int_equal(strlen(copy.failed.lines), MESSAGE_LINES_MAX - 1);
    message_release(&copy);

    memset(reason, 'y', MESSAGE_REASON_MAX + 7);
    memcpy(reason + MESSAGE_REASON_MAX - 1, "\xff", 1); /* not UTF-8: becomes three bytes */
    reason[MESSAGE_REASON_MAX + 7] = '\0';
    message = (struct message){.type = MESSAGE_LEFT, .left = {.reason = reason}};
    message_copy(&message, &copy);
    assert_int_equal(strlen(copy.left.reason), MESSAGE_REASON_MAX - 1);
    message_release(&copy);
    free(lines);
    free(reason);
}

static void test_message__the_largest_generation_fits(void **state)
{
    struct message_member *many = calloc(MESSAGE_MEMBERS_MAX, sizeof(*many));
    struct message copy, message = examples[MESSAGE_ASSIGN];
    char uid[] = "01234567-89ab-cdef-0123-456789abcdef";

    (void)state;
    for (int i = 0; i < MESSAGE_MEMBERS_MAX; i++)
        many[i] = (struct message_member){.pod_uid = uid,
                                          .index = i,
                                          .address = "fd00:1234::abcd",
                                          .ports = ports,
                                          .processes = 2,
                                          .step = 123456};
    message.assign.members = many;
    message.assign.member_count = MESSAGE_MEMBERS_MAX;
    message.assign.world = 2 * MESSAGE_MEMBERS_MAX;
    message_copy(&message, &copy);
    assert_int_equal(copy.assign.member_count, MESSAGE_MEMBERS_MAX);
    assert_int_equal(copy.assign.members[4095].index, 4095);
    message_release(&copy);
    free(many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message__every_type_reads_back_as_it_was_written),
        cmocka_unit_test(test_message__values_survive_the_way),
        cmocka_unit_test(test_message__refuses_with_the_name_of_the_field),
        cmocka_unit_test(test_message__holds_what_belongs_together_together),
        cmocka_unit_test(test_message__ignores_what_a_newer_peer_adds),
        cmocka_unit_test(test_message__refuses_what_is_too_large),
        cmocka_unit_test(test_message__cuts_long_texts_at_a_character),
        cmocka_unit_test(test_message__the_largest_generation_fits),
    };
    return cmocka_run_group_tests_name("message", tests, NULL, NULL);
}
