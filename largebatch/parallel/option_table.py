"""The table of XLA options by platform, each with its reason.

``compiler`` chooses from it and tries the choice. The options of a TPU's generation (``tpu:v5p``)
come in addition to those of all TPUs.
"""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of XLA and its reason."""

    name: str
    value: str
    why: str
    separates: bool = False
    """Only for values of ``comm.allreduce`` with separate reductions."""
    deterministic: bool = False
    """Only for ``run.deterministic``."""
    overlaps: bool = False
    """Whether all-reduces are synchronous without it (``compiler.overlaps``)."""


# TPUs whose SparseCores can reduce while the TensorCore computes.
_SPARSECORE = (
    Option(
        "xla_tpu_enable_sparse_core_collective_offload_all_reduce",
        "True",
        "reduces on the SparseCores beside backward; by default all all-reduces are synchronous",
        separates=True,
        overlaps=True,
    ),
    Option(
        "xla_jf_crs_combiner_threshold_in_bytes",
        "0",
        "keeps the buckets apart before they are assigned to the SparseCores",
        separates=True,
    ),
    Option(
        "xla_tpu_enable_async_collective_merger",
        "False",
        "the same after it",
        separates=True,
    ),
    Option(
        "xla_tpu_use_tc_device_shape_on_sc",
        "True",
        "leaves the arrays in the TensorCore's layout",
        separates=True,
    ),
    Option(
        "xla_sc_disable_megacore_partitioning",
        "True",
        "gives an all-reduce to the SparseCores of a chip as a whole",
        separates=True,
    ),
    Option(
        "xla_tpu_rerun_latency_hiding_scheduler_post_sc_assignment",
        "True",
        "schedules again once the all-reduces are asynchronous; without it most are not overlapped",
        separates=True,
    ),
    Option(
        "xla_tpu_sparse_core_all_reduce_latency_multiplier",
        "4",
        "expects a slower all-reduce, and leaves more convolutions between its start and end",
        separates=True,
    ),
)

# TPUs that can fuse an all-reduce with the convolutions beside it, which carry it forward.
_FUSION = (
    Option(
        "xla_jf_crs_combiner_threshold_in_bytes",
        "0",
        "keeps the buckets apart before they are fused",
        separates=True,
    ),
    Option(
        "xla_enable_async_all_reduce",
        "True",
        "allows asynchronous all-reduces",
        separates=True,
        overlaps=True,
    ),
    Option(
        "xla_tpu_enable_async_collective_fusion",
        "True",
        "fuses asynchronous collectives with convolutions",
        separates=True,
        overlaps=True,
    ),
    Option(
        "xla_tpu_enable_async_collective_fusion_fuse_all_reduce",
        "True",
        "the same for all-reduces",
        separates=True,
        overlaps=True,
    ),
    Option(
        "xla_tpu_enable_async_collective_fusion_multiple_steps",
        "True",
        "lets several convolutions carry one all-reduce",
        separates=True,
    ),
    Option(
        "xla_tpu_overlap_compute_collective_tc",
        "True",
        "computes and reduces on the TensorCore at the same time",
        separates=True,
    ),
)

TABLE: Mapping[str, tuple[Option, ...]] = {
    "cuda": (
        Option(
            "xla_gpu_all_reduce_combine_threshold_bytes",
            "1",
            "keeps the buckets apart; by default they are merged up to 30 MB and wait for the last",
            separates=True,
        ),
        Option(
            "xla_gpu_reduce_scatter_combine_threshold_bytes",
            "1",
            "the same for optimizer.update=sharded",
            separates=True,
        ),
        Option(
            "xla_gpu_enable_latency_hiding_scheduler",
            "True",
            "moves computation between an all-reduce's start and its end; off by default on a V100",
        ),
        Option(
            "xla_allow_excess_precision",
            "False",
            "rounds activations to their dtype; else XLA keeps float32 copies of them in memory",
        ),
        Option(
            "xla_gpu_deterministic_ops",
            "True",
            "only kernels that give the same bits every time, and none chosen by timing them: "
            "another start may measure otherwise and choose another",
            deterministic=True,
        ),
        Option(
            "xla_gpu_enable_triton_gemm",
            "False",
            "matrix products by cuBLAS: Triton's have no kernel to fall back on if none is timed",
            deterministic=True,
        ),
    ),
    "tpu": (
        Option(
            "xla_jf_crs_combiner_threshold_count",
            "1",
            "keeps the buckets apart; by default they are merged and wait for the last",
            separates=True,
        ),
    ),
    "tpu:v5e": _FUSION,
    "tpu:v5p": _SPARSECORE,
    "tpu:v6e": _SPARSECORE,
    # The CPU's compiler always merges all-reduces, and has one thread for all work.
    "cpu": (
        Option(
            "xla_cpu_experimental_ynn_fusion_type",
            "LIBRARY_FUSION_TYPE_DOT",
            "YNNPACK for matrix products alone; by default it also computes sums over pixels and "
            "convolutions, and weight gradients copy their operands for it",
        ),
    ),
    # Untested.
    "rocm": (),
}
