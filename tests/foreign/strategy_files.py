# SPDX-License-Identifier: Apache-2.0
"""MindSpore reads the strategy and group files of a FleetJob, and a FleetJob reads what MindSpore
makes of them.

    strategy_files.py FLEETJOB FOLDER

The last line is "ok …", or an error ends this program.
"""

import json
import pathlib
import subprocess
import sys

import mindspore
from mindspore.parallel import _parallel_serialization as serialization
from mindspore.train import node_strategy_pb2 as messages

fleetjob, folder = sys.argv[1], pathlib.Path(sys.argv[2])

JOB = """apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {{name: strategies}}
spec:
  worker: {{replicas: 4}}
  autoParallel: {{parallel_mode: semi_auto_parallel, gradients_mean: true, {files}}}
  training:
    model: {{name: gpt, layers: 2, heads: 4, width: 32, context: 32, vocabulary: 16}}
    data: {{tokenizer: synthetic-markov, symbols: 16}}
    optimizer: {{name: adamw, learningRate: 1.0e-3}}
    globalBatchSize: 8
    microBatchSize: 1
    steps: 2
    operatorStrategies: [{operators}]
"""
GIVEN = '{operator: "h.*.mlp.c_fc", in: [[2, 1, 1], [1, 2]]}'


def expect(condition, words):
    if not condition:
        raise SystemExit(f"strategy files: {words}")


def command(name, files, operators=""):
    path = folder / "job.yaml"
    path.write_text(JOB.format(files=files, operators=operators))
    done = subprocess.run([fleetjob, name, path], capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"fleetjob {name} with {files}: {done.stdout}{done.stderr}")
    return done.stdout


def layout(path, parameter):
    """Device matrix, map of the tensor, and uneven parts, as MindSpore's loaders see them."""
    items = serialization._convert_to_list(serialization._build_searched_strategy(str(path)))
    return items[parameter][:3]


for suffix in "json", "ckpt":
    command("run", f"strategy_ckpt_save_file: saved.{suffix}, group_ckpt_save_file: groups.ckpt",
            GIVEN)
for suffix in "json", "ckpt":
    path = folder / f"saved.{suffix}"
    expect(layout(path, "h.0.mlp.c_fc.weight") == [[2, 2], [-1, 0], []], "columns")
    expect(layout(path, "h.1.mlp.c_proj.weight") == [[2, 2], [0, -1], []], "rows")
    expect(layout(path, "h.0.ln_1.weight") == [[2, 2], [-1], []], "a whole parameter")
    expect(layout(path, "wte.weight") == [[2, 2], [0, -1], []], "the table")
binary = messages.ParallelStrategyMap()
binary.ParseFromString((folder / "saved.ckpt").read_bytes())
expect(binary.IsInitialized() and binary.current_stage == 1, "a message that is complete")
tuples = {item.node_name: [list(t.dim) for t in item.parallel_strategys.parallel_strategy]
          for item in binary.parallel_strategy_item}
expect(tuples["h.0.mlp.c_fc"] == [[2, 1, 1], [1, 2], [2]], f"tuples: {tuples['h.0.mlp.c_fc']}")
in_json = json.loads((folder / "saved.json").read_text())["parallel_strategy_item"]
expect(tuples == {name: item["parallel_strategy"] for name, item in in_json.items()}, "two forms")

groups = messages.ParallelGroupMap()
groups.ParseFromString((folder / "groups.ckpt").read_bytes())
found = {g.group_name: list(g.parallel_group_ranks.dim) for g in groups.parallel_group_item}
expect(found == {"model": [0, 1], "data": [0, 2]}, f"groups: {found}")
expect(mindspore.restore_group_info_list(str(folder / "groups.ckpt")) == [0, 2],
       "ranks to restore from")

# What MindSpore writes, of ours and by itself.
sources = folder / "sources"
sources.mkdir()
(sources / "first.ckpt").write_bytes((folder / "saved.ckpt").read_bytes())
mindspore.merge_pipeline_strategys(str(sources), str(folder / "merged.ckpt"))
(folder / "again.ckpt").write_bytes(binary.SerializeToString())
made = messages.ParallelStrategyMap(current_stage=1)
item = made.parallel_strategy_item.add(node_name="h.1.mlp.c_proj")
item.parallel_strategys.stage = 0
for parts in [2, 1, 2], [2, 1]:
    item.parallel_strategys.parallel_strategy.add().dim.extend(parts)
(folder / "made.ckpt").write_bytes(made.SerializeToString())
for name in "merged.ckpt", "again.ckpt", "made.ckpt", "saved.json":
    plan = command("plan", f"strategy_ckpt_load_file: {name}")
    expect("data 2, model 2" in plan, f"{name} has the degrees that were saved: {plan}")

print(f"ok    strategy files: both forms and groups are read by MindSpore {mindspore.__version__}, "
      f"and 3 of its own by fleetjob")
