/* SPDX-License-Identifier: Apache-2.0 */

/* Messages about text that libyaml rejects, with line and column. */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/base/yaml_internal.h"

int fleet_yaml_refuse_at(yaml_mark_t mark, struct fleet_error *err, const char *what,
                         const char *word)
{
    return fleet_error(err, -EINVAL, "line %zu, column %zu: %s%s%.100s%s", mark.line + 1,
                       mark.column + 1, what, word ? " \"" : "", word ? word : "",
                       word ? "\"" : "");
}

/* libyaml gives the position of invalid characters only in bytes. */
static yaml_mark_t mark_of_byte(const char *text, size_t offset)
{
    yaml_mark_t mark = {0};

    for (size_t i = 0; i < offset; i++) {
        mark.column++;
        if (text[i] == '\n') {
            mark.line++;
            mark.column = 0;
        }
    }
    return mark;
}

/* Is this character of the text a tab? */
static bool is_tab_at(const char *text, size_t size, size_t index)
{
    for (size_t at = 0; at < size; at++) {
        bool is_start =
            ((unsigned char)text[at] & 0xc0) != 0x80; /* the index counts characters, not bytes */
        if (is_start && index-- == 0)
            return text[at] == '\t';
    }
    return false;
}

/* Messages of libyaml, and plainer ones that replace them. */
static const struct {
    const char *problem, *context; /* the start of libyaml's texts; "" = any */
    const char *words;
    bool at_start; /* report where the construct begins, not where libyaml stopped */
} known_problems[] = {
    {"could not find expected ':'", "", "a key without a colon: \"key: value\" is expected", true},
    {"mapping values are not allowed", "",
     "a colon that is not expected here: indent the line like its neighbours, or put quotes around "
     "a text that has \": \" in it",
     false},
    {"block sequence entries are not allowed", "",
     "a \"- \" that is not expected here: a list begins on a line of its own", false},
    {"did not find expected ',' or '}'", "", "\"{\" is not closed: \",\" or \"}\" is expected",
     true},
    {"did not find expected ',' or ']'", "", "\"[\" is not closed: \",\" or \"]\" is expected",
     true},
    {"did not find expected node content", "", "a value is missing, or a bracket is not closed",
     false},
    {"found unexpected end of stream", "while scanning a quoted", "a quote is not closed", true},
    {"found unexpected document indicator", "while scanning a quoted", "a quote is not closed",
     true},
    {"did not find expected key", "",
     "the indentation fits no mapping that is open: a key is expected", false},
    {"did not find expected '-' indicator", "",
     "the indentation fits no list that is open: \"- \" is expected", false},
    {"did not find expected <document start>", "",
     "text after the end of the document; \"---\" begins another one", false},
    {"found character that cannot start any token", "",
     "this character cannot begin a value: put quotes around the text", false},
    {"invalid ", "", "bytes that are no UTF-8: save the file as UTF-8", false},
    {"incomplete UTF-8", "", "bytes that are no UTF-8: save the file as UTF-8", false},
    {"control characters are not allowed", "", "a control character: take it out", false},
};

static bool begins(const char *text, const char *front)
{
    return strncmp(text ? text : "", front, strlen(front)) == 0;
}

int fleet_yaml_refuse_parser(const yaml_parser_t *parser, const char *text, size_t size,
                             struct fleet_error *err)
{
    yaml_mark_t mark = parser->error == YAML_READER_ERROR
                           ? mark_of_byte(text, parser->problem_offset)
                           : parser->problem_mark;
    FLEET_AUTO_STRBUF struct fleet_strbuf words = {0};

    if (parser->error == YAML_SCANNER_ERROR && is_tab_at(text, size, parser->problem_mark.index))
        return fleet_yaml_refuse_at(mark, err, "a tab: indent with spaces", NULL);
    for (size_t i = 0; i < FLEET_COUNT(known_problems); i++)
        if (begins(parser->problem, known_problems[i].problem) &&
            begins(parser->context, known_problems[i].context))
            return fleet_yaml_refuse_at(known_problems[i].at_start ? parser->context_mark : mark,
                                        err, known_problems[i].words, NULL);
    fleet_strbuf_append(&words, parser->problem ? parser->problem : "not YAML");
    if (parser->context)
        fleet_strbuf_appendf(&words, " %s", parser->context);
    return fleet_yaml_refuse_at(mark, err, words.text, NULL);
}
