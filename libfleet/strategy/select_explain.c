/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Notes about a selection: knobs that were accepted and have no effect, knobs that make the result
 * depend on the number of workers, and values that were chosen because the strategy left them open.
 */

#include "libfleet/base/assert.h"
#include "libfleet/strategy/choices.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/topology.h"
#include "libfleet/strategy/units.h"

/* ---- units without anything to do ------------------------------------------------------------ */

static void explain_exchange(const struct strategy *s, const struct topology *t,
                             struct select_result *out)
{
    static const enum unit exchanges[] = {UNIT_FP16_ALLREDUCE, UNIT_LOCALSGD,
                                          UNIT_ADAPTIVE_LOCALSGD, UNIT_DGC};

    if (t->degree[TOPOLOGY_DATA] * t->degree[TOPOLOGY_SHARDING] > 1)
        return;
    for (size_t i = 0; i < FLEET_COUNT(exchanges); i++)
        if (unit_is_on(s, exchanges[i]))
            select_note(&out->without_effect, unit_name(exchanges[i]), "%s",
                        t->world == 1 ? "one worker has no other to exchange with"
                                      : "no two ranks hold the same part of the model, so nothing "
                                        "is exchanged between replicas");
}

static void explain_idle_units(const struct strategy *s, const struct topology *t,
                               struct select_result *out)
{
    explain_exchange(s, t, out);
    if (s->sharding && t->degree[TOPOLOGY_SHARDING] == 1 && s->sharding_configs.stage > 1)
        select_note(&out->notes, "sharding_configs.stage",
                    "a sharding group of one rank divides no optimizer state; with stage %d "
                    "gradients are still added bucket by bucket in each micro-batch, over all "
                    "ranks%s",
                    s->sharding_configs.stage,
                    s->sharding_configs.stage > 2
                        ? ", and the parameters of each segment are copied before it"
                        : "");
    else if (s->sharding && t->degree[TOPOLOGY_SHARDING] == 1)
        select_note(&out->without_effect, "sharding",
                    "a sharding group of one rank divides nothing");
    if (s->pipeline && t->degree[TOPOLOGY_PIPELINE] == 1)
        select_note(&out->without_effect, "pipeline", "one stage is no pipeline");
    if (s->gradient_merge && s->gradient_merge_configs.k_steps <= 1)
        select_note(&out->without_effect, "gradient_merge",
                    "gradient_merge_configs.k_steps is 1, which is off");
}

/* ---- other knobs --------------------------------------------------------------------------- */

enum when {
    WHEN_SET,  /* mentioned at all */
    WHEN_TRUE, /* switched on */
};

static const char no_server[] = "a collective job has no parameter server";
static const char own_search[] = "it belongs to Paddle's own automatic parallelism";
static const char by_bytes[] = "gradients are bucketed by bytes, fuse_grad_size_in_MB";
static const char cudnn[] = "a hint to cuDNN, whose choice would change the bits of the result";
static const char one_order[] = "gradients are summed in one fixed order, whichever way they take";
static const char one_at_a_time[] =
    "exchanges run one after the other beside the kernels; an operator waits for those it reads";
static const char no_graph[] = "operators run in the order of the program, in one process a worker";
static const char always_so[] = "it is always so here";
static const char one_space[] = "all parameters lie in one flat space anyway";
static const char divided_once[] = "gradients are divided once, after their sum";
static const char early_buckets[] =
    "each bucket is exchanged as soon as it is complete, beside the rest of the last backward pass";
static const char same_parameters[] =
    "what ranks that share tensors have in common is equal from the first step on, bit by bit";
static const char known_shapes[] = "shapes of messages are known before the first step";

static const struct {
    const char *knob;
    enum when when;
    const char *because;
} idle_knobs[] = {
    {"a_sync", WHEN_SET, no_server},
    {"trainer_desc_configs", WHEN_SET, no_server},
    {"fs_client_param", WHEN_SET, no_server},
    {"heter_ccl_mode", WHEN_TRUE, "all workers of a job have the same kind of device"},
    {"split_data", WHEN_SET, own_search},
    {"downpour_table_param", WHEN_SET, no_server},
    {"sync_nccl_allreduce", WHEN_SET, one_at_a_time},
    {"fuse_grad_size_in_TFLOPS", WHEN_SET, by_bytes},
    {"fuse_grad_size_in_num", WHEN_SET, by_bytes},
    {"cudnn_exhaustive_search", WHEN_SET, cudnn},
    {"conv_workspace_size_limit", WHEN_SET, cudnn},
    {"cudnn_batchnorm_spatial_persistent", WHEN_SET, cudnn},
    {"find_unused_parameters", WHEN_TRUE, "a static program knows which parameters get a gradient"},
    {"recompute_configs.enable_tuning", WHEN_TRUE, own_search},
    {"recompute_configs.refined_ops_patterns", WHEN_SET, own_search},
    {"sharding_configs.enable_tuning", WHEN_TRUE, own_search},
    {"sharding_configs.optimize_cast", WHEN_TRUE,
     "a micro-batch casts the parameters where it reads them; 16-bit copies that outlive it would "
     "hold the same bits in more memory"},
    {"sharding_configs.use_calc_stream", WHEN_TRUE,
     "calc_comm_same_stream puts all exchanges into the queue of the kernels"},
    {"pipeline_configs.p2p_cache_shape", WHEN_SET, known_shapes},
    {"pipeline_configs.enable_partial_send_recv", WHEN_SET, known_shapes},
    {"amp_configs.use_fp16_guard", WHEN_SET, "no part of a model is marked with a guard"},
    {"gradient_scale_configs.scale_gradient", WHEN_TRUE, divided_once},
    {"hybrid_configs.mp_configs.sync_param", WHEN_SET, same_parameters},
    {"hybrid_configs.mp_configs.sync_grad", WHEN_SET, same_parameters},
    {"hybrid_configs.mp_configs.sync_moment", WHEN_SET, same_parameters},
    {"hybrid_configs.mp_configs.sync_mode", WHEN_SET, same_parameters},
    {"hybrid_configs.mp_configs.mp_async_allreduce", WHEN_SET,
     "one operator makes both gradients of a layer, so none is left to run beside the all-reduce"},
    {"hybrid_configs.mp_configs.mp_skip_c_identity", WHEN_SET,
     "programs have no identity operator"},
    {"hybrid_configs.mp_configs.mp_fused_linear_param_grad_add", WHEN_SET,
     "gradients of micro-batches are added along a fixed tree, not in the order of the products"},
    {"hybrid_configs.mp_configs.need_broadcast_data", WHEN_SET,
     "each rank reads the samples of its replica itself"},
    {"hybrid_configs.mp_configs.recompute_allgather", WHEN_SET,
     "recompute says what the backward pass makes again, exchanges among it"},
    {"hybrid_configs.pp_configs.dp_comm_overlap", WHEN_SET, early_buckets},
    {"hybrid_configs.pp_configs.sharding_comm_overlap", WHEN_SET, early_buckets},
    {"hybrid_configs.pp_configs.delay_scale_loss", WHEN_SET, divided_once},
    {"hybrid_configs.pp_configs.enable_timer", WHEN_SET,
     "the log has the bubble of every generation anyway"},
    {"hybrid_configs.pp_configs.profiling", WHEN_SET,
     "the log has the bubble, and fleetjob plan --print-schedule the order of the passes"},
    {"hybrid_configs.pp_configs.release_gradients", WHEN_SET,
     "the memory of gradients is planned once and is the same in each step"},
    {"hybrid_configs.pp_configs.overlap_p2p_comm", WHEN_SET,
     "the messages of a stage end before its next pass"},
    {"hybrid_configs.pp_configs.clear_every_step_cache", WHEN_SET, known_shapes},
    {"hybrid_configs.pp_configs.use_batch_p2p_comm", WHEN_SET,
     "messages in both directions are always posted together, else neighbours block each other"},
    {"hybrid_configs.sharding_configs.tensor_fusion", WHEN_SET, one_space},
    {"hybrid_configs.sharding_configs.fuse_optimizer", WHEN_SET, one_space},
    {"hybrid_configs.sharding_configs.accumulate_steps", WHEN_SET,
     "gradients are exchanged once an update; gradient_merge makes an update of several batches"},
    {"hybrid_configs.sharding_configs.comm_overlap", WHEN_SET, early_buckets},
    {"hybrid_configs.sharding_configs.split_param", WHEN_SET,
     "each tensor has one owner; strategyOptions.partition says how owners are chosen"},
    {"hybrid_configs.sharding_configs.use_reduce_avg", WHEN_SET, divided_once},
    {"fuse_grad_merge", WHEN_TRUE, "merged gradients lie in one flat space anyway"},
    {"without_graph_optimization", WHEN_SET, no_graph},
    {"execution_strategy", WHEN_SET, no_graph},
    {"elastic", WHEN_TRUE, "minReplicas and maxReplicas say it; the flag is checked against them"},
    {"build_strategy.enable_sequential_execution", WHEN_TRUE, always_so},
    {"build_strategy.enable_backward_optimizer_op_deps", WHEN_SET,
     "it is always true, as Paddle forces it: updates wait for the whole backward pass"},
    {"build_strategy.fuse_relu_depthwise_conv", WHEN_TRUE, "no model has a depthwise convolution"},
    {"build_strategy.fuse_broadcast_ops", WHEN_TRUE, one_space},
    {"build_strategy.fuse_all_optimizer_ops", WHEN_TRUE, one_space},
    {"build_strategy.enable_inplace", WHEN_TRUE, always_so},
    {"build_strategy.enable_addto", WHEN_TRUE, always_so},
    {"build_strategy.fix_op_run_order", WHEN_TRUE, always_so},
    {"build_strategy.cache_runtime_context", WHEN_TRUE, always_so},
    {"build_strategy.fuse_gemm_epilogue", WHEN_TRUE, always_so},
    {"build_strategy.fused_attention", WHEN_TRUE, always_so},
    {"build_strategy.fused_feedforward", WHEN_TRUE, always_so},
    {"build_strategy.fuse_dot_product_attention", WHEN_TRUE, always_so},
    {"build_strategy.fuse_resunit", WHEN_TRUE,
     "fuse_bn_add_act_ops fuses the end of a residual unit"},
    {"build_strategy.enable_auto_fusion", WHEN_TRUE,
     "fuse_elewise_add_act_ops, fuse_bn_act_ops and fuse_bn_add_act_ops name all that is fused"},
    {"build_strategy.allow_cuda_graph_capture", WHEN_TRUE,
     "a trainer on a GPU captures CUDA graphs anyway"},
    {"build_strategy.reduce_strategy", WHEN_SET, one_order},
    {"build_strategy.debug_graphviz_path", WHEN_SET, "fleetjob plan --program prints the program"},
};

/* Configs without their switch have no effect. This is noted, because users often forget the
 * switch. */
static const struct {
    const char *configs;
    const char *knob;
    bool merges; /* the knob may merge gradients though it does nothing else */
} switches[] = {
    {"recompute_configs", "recompute", false},
    {"amp_configs", "amp", false},
    {"localsgd_configs", "localsgd", false},
    {"gradient_merge_configs", "gradient_merge", false},
    {"dgc_configs", "dgc", false},
    {"pipeline_configs", "pipeline", false},
    {"lars_configs", "lars", false},
    {"lamb_configs", "lamb", false},
    {"adaptive_localsgd_configs", "adaptive_localsgd", false},
    {"sharding_configs", "sharding", true},
    {"tensor_parallel_configs", "tensor_parallel", false},
    {"qat_configs", "qat", false},
    {"hierarchical_allreduce_inter_nranks", "use_hierarchical_allreduce", false},
};

static bool is_set(const struct strategy *s, const char *path)
{
    const void *message;
    const struct knob_field *field = knobs_at(s, path, &message);

    return *knob_has(field, message) != 0;
}

static bool is_true(const struct strategy *s, const char *path)
{
    const void *message;
    const struct knob_field *field = knobs_at(s, path, &message);

    return *(const bool *)knob_value(field, message);
}

/* Why gradients are summed in one level, or NULL. */
static const char *why_one_level(const struct strategy *asked, const struct topology *t,
                                 const struct select_result *out)
{
    const struct strategy *s = &out->final;
    int replicas = t->degree[TOPOLOGY_DATA] * t->degree[TOPOLOGY_SHARDING];
    int block = asked->hierarchical_allreduce_inter_nranks;

    if (t->world == 1)
        return "one worker has no other to exchange with";
    if (asked->sync_batch_norm)
        return "sync_batch_norm turns it off";
    if (s->localsgd || s->adaptive_localsgd)
        return "gradients stay with their rank, so none is summed";
    if (s->sharding && s->sharding_configs.stage > 1)
        return "divided gradients (sharding_configs.stage) go straight to their owners";
    if (block < 2 || block >= replicas || replicas % block != 0)
        return "a block must be smaller than the number of replicas, and divide it";
    return NULL;
}

static void explain_hierarchy(const struct strategy *asked, const struct topology *t,
                              struct select_result *out)
{
    const char *why = why_one_level(asked, t, out);

    if (why) {
        select_note(&out->without_effect, "use_hierarchical_allreduce", "%s", why);
        return;
    }
    if (t->degree[TOPOLOGY_DATA] * t->degree[TOPOLOGY_SHARDING] < t->world) {
        select_note(&out->notes, "use_hierarchical_allreduce",
                    "gradients are summed inside blocks of %d replicas, then by the first one of "
                    "each block",
                    (int)asked->hierarchical_allreduce_inter_nranks);
        select_note(&out->notes, "hierarchical_allreduce_inter_nranks",
                    "the replicas of a block, which should be those of one machine");
        return;
    }
    select_note(
        &out->notes, "use_hierarchical_allreduce",
        "gradients are summed inside blocks of %d workers, then by the first worker of each "
        "block",
        (int)asked->hierarchical_allreduce_inter_nranks);
    select_note(&out->notes, "hierarchical_allreduce_inter_nranks",
                "the workers of a block, which should be those of one machine");
}

/* Knobs of the exchange without a more specific reason. */
static void explain_lonely_knobs(const struct strategy *asked, const struct topology *t,
                                 struct select_result *out)
{
    static const char *const knobs[] = {"fuse_all_reduce_ops", "fuse_grad_size_in_MB",
                                        "last_comm_group_size_MB"};

    for (size_t i = 0; i < FLEET_COUNT(knobs) && t->world == 1; i++)
        if (is_set(asked, knobs[i]))
            select_note(&out->without_effect, knobs[i], "one worker has no other to exchange with");
    if (t->world == 1 && choices_scale(asked) != CHOICES_SCALE_AVERAGE)
        select_note(&out->without_effect, "gradient_scale_configs.scale_strategy",
                    "one worker has no other to average with");
    if (asked->nccl_comm_num > 1 && (t->world == 1 || asked->sync_batch_norm))
        select_note(&out->without_effect, "nccl_comm_num", "%s",
                    t->world == 1 ? "one worker has no other to exchange with"
                                  : "sync_batch_norm uses one communicator");
    if (asked->use_hierarchical_allreduce)
        explain_hierarchy(asked, t, out);
    if (asked->calc_comm_same_stream && t->world == 1)
        select_note(&out->without_effect, "calc_comm_same_stream",
                    "one worker has no other to exchange with");
}

/* a_sync sets the interval to 0 itself: the user did not set that value. */
static bool has_server_configs(const struct strategy *asked)
{
    const struct knob_field *field = knobs_find(knobs_root(), "a_sync_configs", NULL);
    STRATEGY_AUTO struct strategy alone = {0};

    strategy_init(&alone);
    strategy_set_a_sync(&alone, asked->a_sync);
    return asked->has_a_sync_configs &&
           (!asked->has_a_sync ||
            !knob_equal(field, &asked->a_sync_configs, &alone.a_sync_configs));
}

static void explain_idle_knobs(const struct strategy *asked, const struct topology *t,
                               struct select_result *out)
{
    for (size_t i = 0; i < FLEET_COUNT(idle_knobs); i++)
        if (is_set(asked, idle_knobs[i].knob) &&
            (idle_knobs[i].when == WHEN_SET || is_true(asked, idle_knobs[i].knob)))
            select_note(&out->without_effect, idle_knobs[i].knob, "%s", idle_knobs[i].because);
    if (has_server_configs(asked))
        select_note(&out->without_effect, "a_sync_configs", "%s", no_server);
    if (asked->mode != STRATEGY_COLLECTIVE)
        select_note(&out->without_effect, "mode", "every job here is collective");
    if (asked->auto_ && strategy_count_set(asked) > 1)
        select_note(&out->without_effect, "auto",
                    "it chooses only when no other field is set, and others are");
    explain_lonely_knobs(asked, t, out);
}

/* Sharding merges gradients also where it divides nothing. */
static bool sharding_merges(const struct strategy *s)
{
    return s->sharding && s->sharding_configs.gradient_merge_acc_step > 1;
}

/* Configs of a knob that is off, or that is on without effect. */
static void explain_configs(const struct strategy *asked, const struct strategy *s,
                            struct select_result *out)
{
    for (size_t i = 0; i < FLEET_COUNT(switches); i++) {
        const char *configs = switches[i].configs, *knob = switches[i].knob;

        if (!is_set(asked, configs))
            continue;
        if (select_has_note(&out->dropped, knob))
            select_note(&out->without_effect, configs, "%s is dropped", knob);
        else if (!is_true(asked, knob) && !is_true(s, knob))
            select_note(&out->without_effect, configs, "%s is off", knob);
        else if (select_has_note(&out->without_effect, knob) &&
                 !(switches[i].merges && sharding_merges(s)))
            select_note(&out->without_effect, configs, "%s has nothing to do", knob);
    }
}

static void explain_batch_norm(const struct strategy *asked, const struct select_options *options,
                               const struct topology *t, struct select_result *out)
{
    if (!asked->sync_batch_norm)
        return;
    if (options->lacks_batch_norm)
        select_note(&out->without_effect, "sync_batch_norm",
                    "the model has no batch normalization");
    else if (t->degree[TOPOLOGY_DATA] * t->degree[TOPOLOGY_SHARDING] == 1)
        select_note(&out->without_effect, "sync_batch_norm",
                    "one replica has no other to share statistics with");
}

/* A single checkpoint is the last one, which is kept. Checkpoints that a pass chooses are counted
 * when the program is built. */
static void explain_offload(const struct strategy *s, struct select_result *out)
{
    const struct strategy_recompute_config *r = &s->recompute_configs;

    if (s->recompute && r->enable_offload && r->checkpoints.count == 1)
        select_note(&out->without_effect, "recompute_configs.enable_offload",
                    "the last checkpoint is never moved, and there is only one");
}

static void note_merge(const struct strategy *s, struct select_result *out)
{
    int steps = s->sharding_configs.gradient_merge_acc_step;

    if (sharding_merges(s))
        select_note(&out->notes, "sharding_configs.gradient_merge_acc_step",
                    "merges the gradients of %d batches, as gradient_merge with k_steps %d does",
                    steps, steps);
}

/* sharding_group_size has no effect while the whole world is one group. */
static void explain_group_size(const struct strategy *s, struct select_result *out)
{
    const struct strategy_sharding_config *g = &s->sharding_configs;

    if (s->sharding && g->has_sharding_group_size && !g->hybrid_dp && !g->has_mp_degree &&
        !g->has_pp_degree && !g->has_dp_degree)
        select_note(&out->without_effect,
                    g->has_sharding_group_size == KNOB_BY_ALIAS
                        ? "sharding_configs.sharding_degree"
                        : "sharding_configs.sharding_group_size",
                    "without hybrid_dp there is one sharding group, all ranks that are left");
}

/* What sharding_configs asks for beside the degrees. */
static void explain_sharding(const struct strategy *s, const struct topology *t,
                             struct select_result *out)
{
    static const char knob[] = "sharding_configs._dp_as_optimizer_sharding";

    if (!s->sharding || !s->sharding_configs.dp_as_optimizer_sharding)
        return;
    if (t->data_is_sharded)
        select_note(&out->notes, knob, "the %d ranks of data parallelism are the sharding group",
                    t->degree[TOPOLOGY_SHARDING]);
    else if (t->degree[TOPOLOGY_SHARDING] > 1)
        select_note(&out->without_effect, knob,
                    "it is for a sharding group of one rank, and this one has %d",
                    t->degree[TOPOLOGY_SHARDING]);
    else
        select_note(&out->without_effect, knob, "there are no ranks of data parallelism");
}

/* ---- ties to the number of workers, choices -------------------------------------------------- */

static void list_dependencies(const struct strategy *s, const struct select_options *options,
                              const struct topology *t, struct select_names *names)
{
    if (s->localsgd)
        select_name(names, "localsgd");
    if (s->adaptive_localsgd)
        select_name(names, "adaptive_localsgd");
    if (s->dgc)
        select_name(names, "dgc");
    if (s->fp16_allreduce)
        select_name(names, "fp16_allreduce");
    if (s->sync_batch_norm && !options->lacks_batch_norm)
        select_name(names, "sync_batch_norm");
    if (t->degree[TOPOLOGY_MODEL] > 1)
        select_name(names, "tensor_parallel");
    if (t->degree[TOPOLOGY_SEQUENCE] > 1)
        select_name(names, "hybrid_configs.sep_degree");
    if (choices_scale(s) == CHOICES_SCALE_SUM)
        select_name(names, "gradient_scale_configs");
}

/* Paddle's pure mode stores parameters in 16 bits; the flat spaces here are fp32. */
static void note_pure(const struct strategy *s, const char *knob, bool is_on,
                      struct select_result *out)
{
    if (s->amp && is_on)
        select_note(&out->notes, knob,
                    "the built-in runtime stores parameters and gradients in fp32, not in 16 bits "
                    "beside fp32 master weights: operators read parameters rounded to 16 bits, "
                    "gradients of parameters are not rounded");
}

static void note_choices(const struct strategy *s, const struct topology *t,
                         struct select_result *out)
{
    bool stages_given = s->hybrid_configs.has_pp_degree || s->sharding_configs.has_pp_degree;

    if (s->calc_comm_same_stream && t->world > 1)
        select_note(&out->notes, "calc_comm_same_stream",
                    "exchanges run between the kernels, not beside them: none of their time is "
                    "hidden");
    if (s->nccl_comm_num > 1 && t->world > 1 && !s->sync_batch_norm)
        select_note(&out->notes, "nccl_comm_num",
                    "two workers on different machines send each other large messages over %d "
                    "connections at the same time",
                    (int)s->nccl_comm_num);
    if (choices_scale(s) == CHOICES_SCALE_SUM && t->world > 1)
        select_note(&out->notes, "gradient_scale_configs.scale_strategy",
                    "the mean gradients of the workers are added and not divided by their number: "
                    "more workers make larger updates");
    note_pure(s, "amp_configs.use_pure_fp16", s->amp_configs.use_pure_fp16, out);
    note_pure(s, "amp_configs.use_pure_bf16", s->amp_configs.use_pure_bf16, out);
    if (s->recompute && s->recompute_configs.checkpoints.count == 0)
        select_note(&out->notes, "recompute",
                    "no checkpoints are given: one per layer nearest to √n segments is chosen");
    if (s->pipeline && !stages_given && t->degree[TOPOLOGY_PIPELINE] > 1)
        select_note(&out->notes, "pipeline",
                    "no pp_degree is given: %d stages are chosen for %d workers",
                    t->degree[TOPOLOGY_PIPELINE], t->world);
}

void select_explain(const struct strategy *asked, const struct select_options *options,
                    const struct topology *topology, struct select_result *out)
{
    const struct strategy *s = &out->final;

    if (options->policy ==
        STRATEGY_FULL) /* Paddle's candidates are the units that have an effect */
        explain_idle_units(s, topology, out);
    if (s->tensor_parallel && topology->degree[TOPOLOGY_MODEL] == 1)
        select_note(&out->without_effect, "tensor_parallel", "its degree is 1");
    explain_idle_knobs(asked, topology, out);
    explain_configs(asked, s, out);
    explain_batch_norm(asked, options, topology, out);
    note_merge(s, out);
    explain_group_size(s, out);
    explain_sharding(s, topology, out);
    explain_offload(s, out);
    list_dependencies(s, options, topology, &out->depends_on_workers);
    note_choices(s, topology, out);
}
