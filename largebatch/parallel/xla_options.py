"""XLA options: the table with reasons, and what a run gives to the compiler.

By default XLA merges neighbouring all-reduces, and with them all gradients into one after backward.
Options are passed with each program (``compiler_options``); an unknown name in the environment's
``XLA_FLAGS`` would end the process. The compiler of this process is asked first: an option that it
refuses is left out with a warning. All processes have the same versions and environment
(``training.agreement``), so that all leave out the same.
"""

import os
from collections.abc import Callable, Mapping, Sequence

import jax
from jax.sharding import SingleDeviceSharding

from largebatch.config import Config
from largebatch.config.registries import SCHEMES
from largebatch.errors import ConfigError, one_line
from largebatch.parallel.clusters import hardware_of

_ENVIRONMENT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")

# TPUs whose SparseCores can reduce while the TensorCore computes.
_SPARSECORE = {
    # Reduces on the SparseCores beside backward; by default all all-reduces are synchronous.
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": "True",
    # Keeps the buckets apart before they are assigned to the SparseCores.
    "xla_jf_crs_combiner_threshold_in_bytes": "0",
    # Keeps them apart after it.
    "xla_tpu_enable_async_collective_merger": "False",
    # Leaves the arrays in the TensorCore's layout.
    "xla_tpu_use_tc_device_shape_on_sc": "True",
    # Gives an all-reduce to the SparseCores of a chip as a whole.
    "xla_sc_disable_megacore_partitioning": "True",
    # Schedules again once the all-reduces are asynchronous; without it most are not overlapped.
    "xla_tpu_rerun_latency_hiding_scheduler_post_sc_assignment": "True",
    # Expects a slower all-reduce, and leaves more convolutions between its start and end.
    "xla_tpu_sparse_core_all_reduce_latency_multiplier": "4",
}

# TPUs that can fuse an all-reduce with the convolutions beside it, which carry it forward.
_FUSION = {
    # Keeps the buckets apart before they are fused.
    "xla_jf_crs_combiner_threshold_in_bytes": "0",
    # Allows asynchronous all-reduces.
    "xla_enable_async_all_reduce": "True",
    # Fuses asynchronous collectives with convolutions.
    "xla_tpu_enable_async_collective_fusion": "True",
    # Fuses all-reduces too.
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "True",
    # Lets several convolutions carry one all-reduce.
    "xla_tpu_enable_async_collective_fusion_multiple_steps": "True",
    # Computes and reduces on the TensorCore at the same time.
    "xla_tpu_overlap_compute_collective_tc": "True",
}

TABLE: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("cuda", "always"): {
        # Moves computation between an all-reduce's start and its end; off by default on a V100.
        "xla_gpu_enable_latency_hiding_scheduler": "True",
        # Rounds activations to their dtype; else XLA keeps float32 copies of them in memory.
        "xla_allow_excess_precision": "False",
    },
    ("cuda", "separate"): {
        # Keeps the buckets apart; by default they are merged up to 30 MB and wait for the last.
        "xla_gpu_all_reduce_combine_threshold_bytes": "1",
        # Keeps those of optimizer.update=sharded apart.
        "xla_gpu_reduce_scatter_combine_threshold_bytes": "1",
    },
    ("cuda", "deterministic"): {
        # Only kernels that give the same bits every time, and none chosen by timing them: another
        # start may measure otherwise and choose another.
        "xla_gpu_deterministic_ops": "True",
        # Matrix products by cuBLAS: Triton's have no kernel to fall back on if none is timed.
        "xla_gpu_enable_triton_gemm": "False",
    },
    ("tpu", "separate"): {
        # Keeps the buckets apart; by default they are merged and wait for the last.
        "xla_jf_crs_combiner_threshold_count": "1",
    },
    ("tpu:v5e", "separate"): _FUSION,
    ("tpu:v5p", "separate"): _SPARSECORE,
    ("tpu:v6e", "separate"): _SPARSECORE,
    # The CPU's compiler always merges all-reduces, and has one thread for all work.
    ("cpu", "always"): {
        # YNNPACK for matrix products alone; by default it also computes sums over pixels and
        # convolutions, and weight gradients copy their operands for it.
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT",
    },
}
"""(platform, use): name → value.

Platforms are named as by `platform_of`; a TPU has the options of all TPUs and of its generation.
``separate`` is for values of ``comm.allreduce`` with separate reductions, ``deterministic`` for
``run.deterministic``. rocm, untested, has none.
"""


def platform_of(device: jax.Device) -> str:
    """The table's name for a device's platform: cuda, rocm, tpu, tpu:v5p (a known one), or cpu."""
    if device.platform == "tpu":
        known = hardware_of(device.device_kind)
        return known.name if known else "tpu"
    if device.platform != "gpu":
        return device.platform
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"


def options_for(platform: str, allreduce: str, *, deterministic: bool = False) -> dict[str, str]:
    """Return our options for ``comm.allreduce`` and ``run.deterministic``, name to value."""
    uses = {"always": True, "separate": SCHEMES[allreduce].separate, "deterministic": deterministic}
    family = platform.partition(":")[0]
    return {
        name: value
        for (of, use), options in TABLE.items()
        if of in (family, platform) and uses[use]
        for name, value in options.items()
    }


def parse_options(texts: Sequence[str]) -> dict[str, str]:
    """Parse ``comm.xla_options``.

    A value may be empty: ``xla_gpu_enable_command_buffer=`` switches CUDA graphs off.

    Raises:
      ConfigError: a text is not ``name=value``.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().removeprefix("--")
        if not equals or not name.startswith("xla_"):
            raise ConfigError(
                f"comm.xla_options: expected xla_name=value with commas between, got {text!r}"
            )
        # XLA reads booleans as they are written in Python.
        found[name] = {"true": "True", "false": "False"}.get(value.strip(), value.strip())
    return found


def wanted(platform: str, config: Config) -> dict[str, str]:
    """Return the options for the programs of a configuration, name to value.

    These are ours, unless the environment sets the same name, updated by ``comm.xla_options``.

    Args:
      platform: as ``platform_of`` names it.
      config: the configuration.

    Raises:
      ConfigError: see ``parse_options``.
    """
    asked = parse_options(config.comm.xla_options)
    words = " ".join(os.environ.get(name, "") for name in _ENVIRONMENT).split()
    taken = {word.lstrip("-").partition("=")[0] for word in words}
    ours = options_for(platform, config.comm.allreduce, deterministic=config.run.deterministic)
    found = {name: value for name, value in ours.items() if name not in taken} | asked
    return dict(sorted(found.items()))


def refused(device: jax.Device, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the compiler of a device does not take, and its reasons.

    Args:
      device: present, or of the description of absent ones.
      options: name to value.
    """
    number = jax.ShapeDtypeStruct((), "float32", sharding=SingleDeviceSharding(device))
    program = jax.jit(lambda x: x + 1).lower(number)

    def reason(some: Mapping[str, str]) -> str:
        try:
            program.compile(compiler_options=dict(some))
        except jax.errors.JaxRuntimeError as error:  # INVALID_ARGUMENT
            return one_line(error)
        return ""

    if not options or not reason(options):
        return {}
    reasons = {name: reason({name: value}) for name, value in options.items()}
    return {name: why for name, why in reasons.items() if why}


def program_options(
    device: jax.Device, config: Config, warn: Callable[[str], None]
) -> dict[str, str]:
    """Return the options that every process compiles its programs with, name to value.

    Args:
      device: one of the mesh.
      config: the configuration.
      warn: called with a line for each option that the compiler refuses, which is left out.

    Raises:
      ConfigError: see ``parse_options``.
    """
    options = wanted(platform_of(device), config)
    reasons = refused(device, options)
    for name, why in reasons.items():
        warn(f"the compiler refuses {name}, which is left out: {why}")
    return {name: value for name, value in options.items() if name not in reasons}
