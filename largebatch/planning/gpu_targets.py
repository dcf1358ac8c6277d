"""GPUs as XLA's compiler wants them described where none is present (``GpuTargetConfigProto``).

Sources: tables of technical specifications by compute capability in NVIDIA's CUDA C++ programming
guide (threads, registers, shared memory of a multiprocessor), and the architecture white papers of
Volta, Ampere and Hopper (multiprocessors, FP32 units, L2 cache, boost clock) for the SXM boards.
Memory and its bandwidth are those of ``hardware.HARDWARE``.
"""

import dataclasses

from largebatch.parallel.hardware import HARDWARE

_KIB, _MIB = 2**10, 2**20


@dataclasses.dataclass(frozen=True)
class Target:
    """What distinguishes one GPU from another for the compiler."""

    board: str
    capability: tuple[int, int]
    multiprocessors: int
    fp32_units: int
    """Of a multiprocessor."""
    shared_kib: int
    """Shared memory of a multiprocessor, KiB; a block may ask for 1 KiB less from Ampere on."""
    l2_mib: int
    clock_ghz: float


_TARGETS = {
    "v100": Target("Tesla V100-SXM2-16GB", (7, 0), 80, 64, 96, 6, 1.53),
    "a100": Target("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 164, 40, 1.41),
    "h100": Target("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 228, 50, 1.98),
    "h200": Target("NVIDIA H200", (9, 0), 132, 128, 228, 50, 1.98),
}
NAMES = tuple(_TARGETS)


def target_config(name: str) -> str:
    """The textproto of a GPU, such as ``v100``."""
    target, hardware = _TARGETS[name], HARDWARE[name]
    major, minor = target.capability
    reserved = _KIB if major >= 8 else 0
    # Kernels for Hopper use the instructions that only sm_90a has.
    features = " feature_extension: ACCELERATED_FEATURES" if major == 9 else ""
    return f"""
        gpu_device_info {{
          cuda_compute_capability {{ major: {major} minor: {minor}{features} }}
          core_count: {target.multiprocessors}
          fpus_per_core: {target.fp32_units}
          clock_rate_ghz: {target.clock_ghz}
          threads_per_warp: 32
          threads_per_block_limit: 1024
          threads_per_core_limit: 2048
          thread_dim_limit_x: 1024
          thread_dim_limit_y: 1024
          thread_dim_limit_z: 64
          block_dim_limit_x: {2**31 - 1}
          block_dim_limit_y: {2**16 - 1}
          block_dim_limit_z: {2**16 - 1}
          registers_per_core_limit: {2**16}
          registers_per_block_limit: {2**16}
          shared_memory_per_core: {target.shared_kib * _KIB}
          shared_memory_per_block: {48 * _KIB}
          shared_memory_per_block_optin: {target.shared_kib * _KIB - reserved}
          l2_cache_size: {target.l2_mib * _MIB}
          device_memory_size: {int(hardware.memory)}
          memory_bandwidth: {int(hardware.bandwidth)}
          runtime_version: "12.9.0"
          compile_time_toolkit_version: "12.9.0"
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 10 }}
        device_description_str: "{target.board}"
    """
