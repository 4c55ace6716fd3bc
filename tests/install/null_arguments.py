# SPDX-License-Identifier: Apache-2.0
"""Write a C++ program that calls every function of the installed headers with NULL and 0, and with
NULL and -1, without and with a world. Each call has a process of its own: it must end, and each
error must have its code and one sentence. Usage: null_arguments.py INCLUDE_FOLDER >program.cc"""
import glob
import os
import re
import sys

HEAD = r"""
#include <cstdio>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

static fleet_error err;
static int bad;

template <class F> static void go(const char *name, bool world, bool has_error, F call)
{
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        if (world && fleet_env_init(&err) < 0)
            _exit(2);
        std::memset(&err, 0, sizeof(err));
        const long rc = call();
        if (has_error && rc < 0 &&
            (err.code != rc || !err.text[0] || std::strchr(err.text, '\n'))) {
            std::printf("%s: result %ld, code %d, text \"%s\"\n", name, rc, err.code, err.text);
            std::fflush(stdout);
            _exit(3);
        }
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) {
        std::printf("%s%s: status %d\n", name, world ? " in a world" : "", status);
        bad = 1;
    }
}
"""


def arguments(text):
    """Split at the commas outside of parentheses."""
    out, depth = [""], 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            out.append("")
        else:
            out[-1] += c
    return [] if text.strip() == "void" else [one.strip() for one in out]


def prototypes(path):
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M)
    text = re.sub(r"(struct|enum) \w+ \{.*?\n\};|typedef.*?;", "", text, flags=re.S)
    nested = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
    for kind, name, given in re.findall(r"([\w\s*]+?)\b(fleet_\w+)(" + nested + ");", text):
        yield kind.strip(), name, arguments(" ".join(given[1:-1].split()))


def value(argument, number):
    if re.match(r"struct fleet_error \*\w+$", argument):
        return "&err"
    if "*" in argument or "[" in argument or argument.startswith(("fleet_spawn_f", "fleet_rpc_f")):
        return "nullptr"
    enum = re.match(r"enum (\w+)", argument)
    if enum:
        return f"static_cast<{enum[1]}>({number})"
    return "false" if "bool" in argument else number


headers = sorted(glob.glob(os.path.join(sys.argv[1], "fleet", "*.h")))
print("".join(f"#include <fleet/{os.path.basename(h)}>\n" for h in headers), HEAD, "int main()\n{")
for header in headers:
    for kind, name, given in prototypes(header):
        has_error = bool(given) and "fleet_error" in given[-1]
        for number in ("0", "-1"):
            call = f"{name}({', '.join(value(one, number) for one in given)})"
            body = f"{call}; return 0L;" if kind == "void" or "*" in kind else f"return {call};"
            for world in ("false", "true"):
                print(f'    go("{name} with {number}", {world}, '
                      f'{"true" if has_error else "false"}, []() -> long {{ {body} }});')
print("    return bad;\n}")
