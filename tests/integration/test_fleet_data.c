/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleet_data.h through libfleet.so: lines, their errors, commands that fail or flood, the order of
 * files, batches, and shuffles over three processes, which keep the multiset of instances.
 */
#include <errno.h>

#include "include/fleet/fleet_data.h"
#include "tests/integration/library_processes.h"

static char folder[64];
static struct fleet_dataset *data;
static struct fleet_batch batch;

static const struct fleet_slot slots[] = {{"click", FLEET_SLOT_INT64, 1},
                                          {"weights", FLEET_SLOT_FLOAT, 2},
                                          {"words", FLEET_SLOT_INT64, 0}};

static struct fleet_data_options options(void)
{
    return (struct fleet_data_options){.slots = slots, .slot_count = 3};
}

static const char *in(const char *name)
{
    static char paths[8][128];
    static int next;
    char *path = paths[next++ % 8];

    (void)snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static const char *put(const char *name, const char *text)
{
    const char *path = in(name);
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    return path;
}

static int setup(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/test_data.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    char command[128];

    (void)state;
    fleet_dataset_free(data);
    data = NULL;
    (void)snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command);
}

/* An in-memory data set of one file with this text. */
static int load(const struct fleet_data_options *o, const char *text)
{
    const char *file = put("file", text);

    fleet_dataset_free(data);
    assert_int_equal(fleet_dataset_memory(o, &data, &err), 0);
    assert_int_equal(fleet_dataset_set_files(data, &file, 1, &err), 0);
    return fleet_dataset_load(data, &err);
}

static void refused(const char *text, int code, const char *words)
{
    struct fleet_data_options o = options();

    assert_int_equal(load(&o, text), code);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, err.text);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void test_fleet_data__a_batch_has_values_and_offsets(void **state)
{
    struct fleet_data_options o = options();

    (void)state;
    o.batch_size = 2;
    assert_int_equal(load(&o, "1 1 2 0.5 0 3 7 0 18446744073709551615\n"
                              "1 0 2 -1e-7 2 2 0 0\n"
                              "1 1 2 1 2 1 5"),
                     0); /* the last line has no end */
    assert_int_equal(fleet_dataset_next(data, &batch, &err), -EINVAL);
    assert_int_equal(fleet_dataset_begin(data, &err), 0);
    assert_int_equal(fleet_dataset_next(data, &batch, &err), 1);
    assert_int_equal(batch.size, 2);
    assert_true(batch.slots[0].values.ids[0] == 1 && batch.slots[0].values.ids[1] == 0);
    assert_int_equal(batch.slots[1].offsets[2], 4); /* dense: zeros stay */
    assert_true(batch.slots[1].values.floats[1] == 0 && batch.slots[1].values.floats[2] == -1e-7f);
    assert_int_equal(batch.slots[2].offsets[1], 2); /* sparse: the zero went */
    assert_true(batch.slots[2].values.ids[1] == UINT64_MAX);
    assert_int_equal(batch.slots[2].offsets[2], 3); /* nothing was left: one zero */
    assert_true(batch.slots[2].values.ids[2] == 0);
    assert_null(batch.ids);
    assert_int_equal(fleet_dataset_next(data, &batch, &err), 1);
    assert_int_equal(batch.size, 1);
    assert_int_equal(fleet_dataset_next(data, &batch, &err), 0);
}

static void test_fleet_data__a_wrong_line_is_named(void **state)
{
    (void)state;
    refused("1 1 2 1 2 1 5\n1 1 2 1 2 0\n", -EBADMSG,
            "/file:2: slot \"words\": the number of ids "
            "can not be zero");
    refused("1 1 3 1 2 3 1 5\n", -EBADMSG,
            "slot \"weights\": 3 values, its variable has 2 elements");
    refused("1 1 2 1 2\n", -EBADMSG, "the line ends before slot \"words\"");
    refused("1 1 2 1 2 2 5\n", -EBADMSG, "slot \"words\": a value is missing");
    refused("1 1 2 1 2 1 5 6\n", -EBADMSG, "text behind the last slot: \"6\"");
    refused("1 -1 2 1 2 1 5\n", -EBADMSG, "\"-1\" is not an unsigned number");
    refused("1 18446744073709551616 2 1 2 1 5\n", -EBADMSG, "is not an unsigned number");
    refused("1 1 2 1 x 1 5\n", -EBADMSG, "\"x\" is not a number");
    refused("x 1 2 1 2 1 5\n", -EBADMSG, "slot \"click\": needed is the number of its values");
    refused("1 1  2 1 2 1 5\n", -EBADMSG, "slot \"weights\"");
    refused("99999999999 1 2 1 2 1 5\n", -EBADMSG, "is not a number of values");
    refused("\n", -EBADMSG, "/file:1: the line ends before slot \"click\"");
}

static void test_fleet_data__ids_and_contents(void **state)
{
    struct fleet_data_options o = options();

    (void)state;
    o.parse_ins_id = o.parse_content = true;
    assert_int_equal(load(&o, "1 id-1 1 text 1 1 2 1 2 1 5\n"), 0);
    assert_int_equal(fleet_dataset_begin(data, &err), 0);
    assert_int_equal(fleet_dataset_next(data, &batch, &err), 1);
    assert_string_equal(batch.ids[0], "id-1");
    assert_string_equal(batch.contents[0], "text");
    assert_int_equal(load(&o, "2 id 1 text 1 1 2 1 2 1 5\n"), -EBADMSG);
    assert_non_null(strstr(err.text, "ins_id"));
}

/* ---- files and commands ---------------------------------------------------------------------- */

/* The order is that of the files, with any number of threads. */
static void test_fleet_data__threads_keep_the_order_of_files(void **state)
{
    char names[12][16], text[256];
    const char *files[12];
    int64_t size;

    (void)state;
    for (int f = 0; f < 12; f++) {
        text[0] = '\0';
        (void)snprintf(names[f], sizeof(names[f]), "f%d", f);
        for (int i = 0; i <= f % 3; i++)
            (void)snprintf(text + strlen(text), 64, "1 %d 2 1 2 1 5\n", 10 * f + i);
        files[f] = strdup(put(names[f], text));
    }
    for (int threads = 1; threads < 20; threads += 6) {
        struct fleet_data_options o = options();
        uint64_t last = 0;
        int seen = 0;
        o.threads = threads;
        fleet_dataset_free(data);
        assert_int_equal(fleet_dataset_memory(&o, &data, &err), 0);
        assert_int_equal(fleet_dataset_set_files(data, files, 12, &err), 0);
        assert_int_equal(fleet_dataset_preload(data, &err), 0);
        assert_int_equal(fleet_dataset_load(data, &err), -EALREADY);
        assert_int_equal(fleet_dataset_preload_wait(data, &err), 0);
        assert_int_equal(fleet_dataset_begin(data, &err), 0);
        while (fleet_dataset_next(data, &batch, &err) == 1) {
            assert_true(seen++ == 0 || batch.slots[0].values.ids[0] > last);
            last = batch.slots[0].values.ids[0];
        }
        assert_int_equal(seen, 24);
        assert_int_equal(fleet_dataset_size(data, &size, &err), 0);
        assert_int_equal(size, 24);
    }
    for (int f = 0; f < 12; f++)
        free((void *)(uintptr_t)files[f]);
    fleet_dataset_release_memory(data);
    assert_int_equal(fleet_dataset_size(data, &size, &err), 0);
    assert_int_equal(size, 0);
}

static void test_fleet_data__lines_go_through_the_users_commands(void **state)
{
    struct fleet_data_options o = options();

    (void)state;
    o.pipe_command = "sed 's/$/ 2 1 2 1 5/'";
    assert_int_equal(load(&o, "1 1\n1 2\n"), 0);
    o.download = "tr a 1 <\"$1\"";
    assert_int_equal(load(&o, "a a\na 2\n"), 0);
    o.download = "tr a 1 <\"$1\"; exit 3";
    assert_int_equal(load(&o, "a a\n"), -EIO);
    assert_non_null(strstr(err.text, "/file: download failed with exit code 3"));
    o.download = NULL;
    o.pipe_command = "kill -9 $$";
    assert_int_equal(load(&o, "1 1\n"), -EIO);
    assert_non_null(strstr(err.text, "pipe_command failed with exit code 137"));
    o.pipe_command = "yes '1 1 2 1 2 1 5'";
    o.bytes_max = 100000;
    assert_int_equal(load(&o, ""), -ENOMEM);
    assert_non_null(strstr(err.text, "more than bytes_max, 100000 bytes"));
    o.pipe_command = "cat /dev/zero | tr '\\0' 1";
    assert_int_equal(load(&o, ""), -EBADMSG);
    assert_non_null(strstr(err.text, "/file:1: the line is longer than"));
    o.pipe_command = "cat; yes >&2";
    assert_int_equal(load(&o, "1 1 2 1 2 1 5\n"), -EFBIG);
    assert_non_null(
        strstr(err.text, "/file: the commands wrote more than 1048576 bytes to stderr"));
    o.pipe_command = "cat; exec >&-; yes >&2";
    assert_int_equal(load(&o, "1 1 2 1 2 1 5\n"), -EFBIG);
    o.pipe_command = "cat; sleep 1000 >&- &"; /* it keeps stderr */
    assert_int_equal(load(&o, "1 1 2 1 2 1 5\n"), 0);
    o.pipe_command = "sleep 1000";
    o.timeout_ms = 200;
    assert_int_equal(load(&o, ""), -ETIMEDOUT);
    o.pipe_command = "exec >&- 2>&-; sleep 1000";
    assert_int_equal(load(&o, ""), -ETIMEDOUT);
}

/* A failed load leaves what was loaded before. */
static void test_fleet_data__a_failed_load_changes_nothing(void **state)
{
    struct fleet_data_options o = options();
    const char *files[2];
    int64_t size;

    (void)state;
    o.threads = 2;
    assert_int_equal(load(&o, "1 1 2 1 2 1 5\n"), 0);
    files[0] = in("missing");
    files[1] = in("file");
    assert_int_equal(fleet_dataset_set_files(data, files, 2, &err), 0);
    assert_int_equal(fleet_dataset_load(data, &err), -ENOENT);
    assert_non_null(strstr(err.text, "/missing"));
    assert_int_equal(fleet_dataset_size(data, &size, &err), 0);
    assert_int_equal(size, 1);
}

static void test_fleet_data__a_queue_streams_its_files(void **state)
{
    struct fleet_data_options o = options();
    const char *files[] = {put("a", "1 1 2 1 2 1 5\n1 2 2 1 2 1 5\n"), put("b", ""),
                           put("c", "1 3 2 1 2 1 5\nwrong\n")};
    int64_t size;

    (void)state;
    o.batch_size = 2;
    assert_int_equal(fleet_dataset_queue(&o, &data, &err), 0);
    assert_int_equal(fleet_dataset_set_files(data, files, 3, &err), 0);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(fleet_dataset_begin(data, &err), 0);
        assert_int_equal(fleet_dataset_next(data, &batch, &err), 1);
        assert_int_equal(batch.size, 2);
        assert_int_equal(fleet_dataset_next(data, &batch, &err), -EBADMSG);
        assert_non_null(strstr(err.text, "/c:2: "));
    }
    assert_int_equal(fleet_dataset_load(data, &err), -ENOTSUP);
    assert_int_equal(fleet_dataset_local_shuffle(data, &err), -ENOTSUP);
    assert_int_equal(fleet_dataset_size(data, &size, &err), -ENOTSUP);
}

static void test_fleet_data__options_are_checked(void **state)
{
    static const struct fleet_slot twice[] = {{"a", FLEET_SLOT_FLOAT, 0},
                                              {"a", FLEET_SLOT_INT64, 0}};
    static const struct fleet_slot type[] = {{"a", (enum fleet_slot_type)2, 0}};
    struct fleet_data_options o = {0};

    (void)state;
    assert_int_equal(fleet_dataset_memory(NULL, &data, &err), -EINVAL);
    assert_int_equal(fleet_dataset_memory(&o, &data, &err), -EINVAL);
    assert_non_null(strstr(err.text, "slot_count is 0"));
    o = (struct fleet_data_options){.slots = twice, .slot_count = 2};
    assert_int_equal(fleet_dataset_memory(&o, &data, &err), -EINVAL);
    assert_non_null(strstr(err.text, "\"a\" is there twice"));
    o = (struct fleet_data_options){.slots = type, .slot_count = 1};
    assert_int_equal(fleet_dataset_memory(&o, &data, &err), -EINVAL);
    assert_non_null(strstr(err.text, "allowed: float and int64"));
    o = options();
    o.batch_size = -1;
    assert_int_equal(fleet_dataset_queue(&o, &data, &err), -EINVAL);
    o = options();
    o.merge_by_ins_id = true;
    assert_int_equal(fleet_dataset_memory(&o, &data, &err), -EINVAL);
    assert_non_null(strstr(err.text, "needs parse_ins_id"));
}

/* ---- shuffles -------------------------------------------------------------------------------- */

#define MANY 200

/* MANY lines with numbers from `first`; ids repeat every 10. */
static void load_many(const struct fleet_data_options *o, int first)
{
    static char text[MANY * 64];

    text[0] = '\0';
    for (int i = first; i < first + MANY; i++)
        (void)snprintf(text + strlen(text), 64, "1 id%d 1 %d 2 1 2 1 %d\n", i % 10, i, 1000 + i);
    assert_int_equal(load(o, text), 0);
}

/* The numbers in order into out[]; returns how many. Each has kept its word unless `is_mixed`. */
static int numbers(int *out, int room, bool is_mixed)
{
    int count = 0;

    CHECK(fleet_dataset_begin(data, &err) == 0);
    while (fleet_dataset_next(data, &batch, &err) == 1) {
        CHECK(count < room);
        out[count] = (int)batch.slots[0].values.ids[0];
        CHECK(is_mixed || batch.slots[2].values.ids[0] == (uint64_t)(1000 + out[count]));
        count++;
    }
    return count;
}

static void test_fleet_data__a_local_shuffle_is_repeatable(void **state)
{
    struct fleet_data_options o = options();
    int first[MANY], second[MANY], found[MANY], moved = 0;
    const char *words[] = {"words"}, *other[] = {"word"};
    char seen[MANY] = {0};

    (void)state;
    o.parse_ins_id = true;
    o.seed = 5;
    load_many(&o, 0);
    assert_int_equal(fleet_dataset_local_shuffle(data, &err), 0);
    assert_int_equal(numbers(first, MANY, false), MANY);
    assert_int_equal(fleet_dataset_local_shuffle(data, &err), 0);
    assert_int_equal(numbers(second, MANY, false), MANY);
    assert_memory_not_equal(first, second, sizeof(first));
    load_many(&o, 0);
    assert_int_equal(fleet_dataset_local_shuffle(data, &err), 0);
    assert_int_equal(numbers(found, MANY, false), MANY);
    assert_memory_equal(first, found, sizeof(first));
    for (int i = 0; i < MANY; i++)
        seen[first[i]]++;
    for (int i = 0; i < MANY; i++)
        assert_int_equal(seen[i], 1);
    /* only the words move */
    assert_int_equal(fleet_dataset_slots_shuffle(data, other, 1, &err), -ENOENT);
    assert_non_null(strstr(err.text, "\"word\""));
    assert_int_equal(fleet_dataset_slots_shuffle(data, words, 1, &err), 0);
    memset(seen, 0, sizeof(seen));
    assert_int_equal(fleet_dataset_begin(data, &err), 0);
    for (int i = 0; fleet_dataset_next(data, &batch, &err) == 1; i++) {
        int word = (int)batch.slots[2].values.ids[0] - 1000;
        assert_int_equal(batch.slots[0].values.ids[0], first[i]);
        seen[word]++;
        moved += word != first[i];
    }
    assert_true(moved > MANY / 2);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(seen[i], 1);
}

/* In each process: its instances after a global shuffle, written to the file of its rank. */
static bool by_id;

static void shuffle_and_write(void)
{
    struct fleet_data_options o = options();
    int mine[3 * MANY], count;
    int64_t all;
    FILE *file;

    (void)snprintf(folder + strlen(folder), 8, "/%d", rank);
    CHECK(fleet_env_init(&err) == 0);
    o.parse_ins_id = true;
    o.merge_by_ins_id = by_id;
    load_many(&o, rank * MANY);
    CHECK(fleet_dataset_global_shuffle(data, NULL, &err) == 0);
    CHECK(fleet_dataset_size_of_all(data, NULL, &all, &err) == 0);
    CHECK(all == (int64_t)MANY * world);
    count = numbers(mine, 3 * MANY, false);
    file = fopen(in("result"), "w");
    CHECK(file != NULL);
    for (int i = 0; i < count; i++)
        (void)fprintf(file, "%d\n", mine[i]);
    CHECK(fclose(file) == 0);
    fleet_dataset_free(data);
}

/* owner[n]: the rank that has number n, each of them once. order: all of them as written. */
static void read_results(int owner[3 * MANY], int order[3 * MANY])
{
    int at = 0;

    memset(owner, -1, 3 * MANY * sizeof(*owner));
    for (int r = 0; r < 3; r++) {
        char name[24];
        FILE *file;
        int number;
        (void)snprintf(name, sizeof(name), "%d/result", r);
        file = fopen(in(name), "r");
        assert_non_null(file);
        while (fscanf(file, "%d", &number) == 1) {
            assert_true(number >= 0 && number < 3 * MANY && owner[number] == -1);
            owner[number] = r;
            order[at++] = number;
        }
        (void)fclose(file);
    }
    assert_int_equal(at, 3 * MANY);
}

static void shuffle_in_processes(void)
{
    for (int r = 0; r < 3; r++) {
        char name[16];
        char command[128];
        (void)snprintf(name, sizeof(name), "%d", r);
        (void)snprintf(command, sizeof(command), "mkdir -p %s", in(name));
        assert_int_equal(system(command), 0);
    }
    run_processes(3, shuffle_and_write, -1);
}

static void test_fleet_data__a_global_shuffle_keeps_every_instance(void **state)
{
    int owner[3 * MANY], first[3 * MANY], second[3 * MANY], counts[3] = {0};

    (void)state;
    by_id = false;
    shuffle_in_processes();
    read_results(owner, first);
    for (int i = 0; i < 3 * MANY; i++)
        counts[owner[i]]++;
    for (int r = 0; r < 3; r++) /* equal in expectation: 200 each, deviation 11.5 */
        assert_true(counts[r] > 100 && counts[r] < 300);
    shuffle_in_processes();
    read_results(owner, second);
    assert_memory_equal(first, second, sizeof(first));
}

static void test_fleet_data__equal_ids_meet_on_one_worker(void **state)
{
    int owner[3 * MANY], order[3 * MANY];

    (void)state;
    by_id = true;
    shuffle_in_processes();
    read_results(owner, order);
    for (int i = 0; i < 3 * MANY; i++)
        assert_int_equal(owner[i], owner[i % 10]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(test_fleet_data__##name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_batch_has_values_and_offsets),
        TEST(a_wrong_line_is_named),
        TEST(ids_and_contents),
        TEST(threads_keep_the_order_of_files),
        TEST(lines_go_through_the_users_commands),
        TEST(a_failed_load_changes_nothing),
        TEST(a_queue_streams_its_files),
        TEST(options_are_checked),
        TEST(a_local_shuffle_is_repeatable),
        TEST(a_global_shuffle_keeps_every_instance),
        TEST(equal_ids_meet_on_one_worker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
