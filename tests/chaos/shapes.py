# SPDX-License-Identifier: Apache-2.0
"""What chaos trains: every way of training that `fleetjob run` has, each with a tiny model."""

import dataclasses

STEPS, BATCH = 120, 12
ADAMW = "adamw, learningRate: 0.003, clip: {globalNorm: 0.5}"


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    strategy: str = ""  # fields of spec.strategy
    options: str = ""  # of spec.strategyOptions
    workers: tuple = (2, 3, 4)  # numbers of workers that it may have
    least: int = 1  # minReplicas
    processes: int = 1  # of each worker
    optimizer: str = ADAMW
    more: str = ""  # fields of spec.training
    policy: str = ""  # fields of spec.runPolicy
    merge: int = 1  # batches of an update
    # The strategy of the undisturbed job that has the same weights on `alone` workers. None: the
    # weights depend on workers and kills, so only the loss is compared.
    same: str | None = ""
    alone: int = 1


SHARDED = "sharding: true, "
STAGES = "pipeline: true, hybrid_configs: {pp_degree: 2}, "
MERGE = "gradient_merge: true, gradient_merge_configs: {k_steps: 4}, "
AMP = "amp: true, amp_configs: {init_loss_scaling: 1024}, "
TENSOR = "hybrid_configs: {mp_degree: 2}, "
MOMENTUM = "momentum, learningRate: 0.05"

SHAPES = (
    Shape("data parallel"),
    Shape("two processes a worker", processes=2, workers=(2,)),
    Shape("sums in two levels", "use_hierarchical_allreduce: true, "
          "hierarchical_allreduce_inter_nranks: 2", workers=(4,)),
    Shape("encrypted", policy="dataEncryption: AES-GCM"),
    Shape("several connections", "nccl_comm_num: 3"),
    Shape("recompute", "recompute: true"),
    Shape("sharding", SHARDED),
    Shape("sharding, greedy", SHARDED, "partition: greedy"),
    Shape("sharding of gradients", SHARDED + "sharding_configs: {stage: 2}"),
    Shape("sharding of parameters", SHARDED + "sharding_configs: {stage: 3}"),
    Shape("sharding in groups", SHARDED + "sharding_configs: {hybrid_dp: true, "
          "sharding_group_size: 2}", workers=(4,)),
    Shape("1F1B", STAGES, workers=(2, 4)),
    Shape("F-then-B", STAGES + "pipeline_configs: {schedule_mode: F-then-B}", workers=(2, 4)),
    Shape("zero bubble", STAGES, "pipelineSchedule: zeroBubble", workers=(2, 4)),
    Shape("interleaved", "pipeline: true, hybrid_configs: {pp_degree: 3}", "pipelineChunks: 2",
          workers=(3, 6)),
    Shape("tensor parallel", TENSOR, workers=(2, 4), same=TENSOR, alone=2),
    Shape("amp", AMP, same=AMP),
    Shape("amp, sharding", AMP + SHARDED, same=AMP),
    Shape("bf16", more="precision: bf16"),
    Shape("gradient merge", MERGE, merge=4, same=MERGE),
    Shape("gradient merge, sharding", MERGE + SHARDED, merge=4, same=MERGE),
    Shape("lamb", optimizer="lamb, learningRate: 0.01"),
    Shape("lars", "lars: true", optimizer=MOMENTUM, same="lars: true"),
    Shape("fp16 on the wire", "fp16_allreduce: true", same=None),
    Shape("localsgd", "localsgd: true, localsgd_configs: {k_steps: 4}", optimizer=MOMENTUM,
          same=None),
    Shape("adaptive localsgd", "adaptive_localsgd: true", optimizer=MOMENTUM, same=None),
    Shape("dgc", "dgc: true, dgc_configs: {rampup_begin_step: 10, sparsity: [0.75]}",
          optimizer=MOMENTUM, same=None),
)


def job(shape, folder, text, steps=STEPS, reference=False):
    """The job file of a shape; `reference`: of the undisturbed one that has the same weights."""
    divided = not reference or shape.same is None
    strategy = shape.strategy if divided else shape.same
    workers = max(shape.workers) if divided else shape.alone
    least, processes = (shape.least, shape.processes) if divided else (1, 1)
    return f"""apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {{name: chaos}}
spec:
  worker: {{replicas: {workers}, minReplicas: {least}, processesPerPod: {processes}}}
  runPolicy: {{restart: {{maxRestarts: 100000}}, {shape.policy}}}
  strategyOptions: {{{shape.options if divided else ""}}}
  strategy: {{{strategy}}}
  training:
    model: {{name: gpt, layers: 6, heads: 2, width: 32, context: 16}}
    data: {{path: {text}}}
    optimizer: {{name: {shape.optimizer}}}
    schedule: {{name: cosine, warmupSteps: 10}}
    globalBatchSize: {BATCH}
    microBatchSize: 1
    steps: {steps}
    checkpoint: {{path: {folder}, everySteps: 20}}
{"    " + shape.more if shape.more else ""}
"""
