# SPDX-License-Identifier: Apache-2.0
"""Paddle reads each field of a strategy that fleetjob and this Paddle know, with its value.

    strategy_fields.py FLEETJOB

`fleetjob convert` prints the text that a trainer finds in FLEET_STRATEGY_FILE. The last line is
"ok …", or an error ends this program.
"""

import json
import re
import subprocess
import sys

import paddle
from google.protobuf import text_format
from paddle.distributed.fleet.proto import distributed_strategy_pb2 as messages

fleetjob = sys.argv[1]
DEPTH_MAX = 4  # messages contain themselves


def expect(condition, words):
    if not condition:
        raise SystemExit(f"strategy fields: {words}")


def is_list(field):
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == 3


def other_value(field):
    """Not the default."""
    if field.cpp_type == field.CPPTYPE_ENUM:
        value = field.enum_type.values[-1].name
    elif field.cpp_type == field.CPPTYPE_STRING:
        value = "word"
    elif field.cpp_type == field.CPPTYPE_BOOL:
        value = not field.default_value
    else:
        is_float = field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE)
        value = (0 if is_list(field) else field.default_value) + (0.25 if is_float else 1)
    return [value] if is_list(field) else value


def every_field(message, unknown, path=""):
    """A strategy with all fields whose path is not in `unknown`."""
    found = {}
    for field in message.fields:
        here = path + field.name
        if here in unknown or path.count(".") >= DEPTH_MAX:
            continue
        if field.cpp_type != field.CPPTYPE_MESSAGE:
            found[field.name] = other_value(field)
            continue
        inner = every_field(field.message_type, unknown, here + ("[0]." if is_list(field) else "."))
        if inner:
            found[field.name] = [inner] if is_list(field) else inner
    return found


def convert(strategy):
    done = subprocess.run([fleetjob, "convert", "-", "--to", "prototxt"], check=False,
                          input=json.dumps(strategy), capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def compare(message, strategy, path=""):
    """The number of values, which must be those of `strategy`."""
    count = 0
    for name, value in strategy.items():
        field, read = message.DESCRIPTOR.fields_by_name[name], getattr(message, name)
        if field.cpp_type == field.CPPTYPE_MESSAGE:
            one, other = (read[0], value[0]) if is_list(field) else (read, value)
            count += compare(one, other, f"{path}{name}.")
            continue
        if field.cpp_type == field.CPPTYPE_ENUM:
            read = field.enum_type.values_by_number[read].name
        pairs = zip(read, value, strict=True) if is_list(field) else [(read, value)]
        for one, other in pairs:
            same = abs(one - other) < 1e-5 if isinstance(other, float) else one == other
            expect(same, f"{path}{name}: Paddle has read {one}, not {other}")
        count += 1
    return count


unknown = set()
while True:
    strategy = every_field(messages.DistributedStrategy.DESCRIPTOR, unknown)
    code, text, errors = convert(strategy)
    if code == 0:
        break
    paths = set(re.findall(r"([\w.\[\]]+): is not a field", errors))
    expect(paths - unknown, f"fleetjob convert: {errors}")
    unknown |= paths
found = messages.DistributedStrategy()
text_format.Parse(text, found)
count = compare(found, strategy)
expect(count > 200, f"only {count} fields are known to both")
print(f"ok    strategy fields: Paddle {paddle.__version__} reads {count} with their values; "
      f"fleetjob does not know {len(unknown)} of its fields")
