"""Shares of a profile: synthetic events by hand, and the profile of a small program."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from benchmarks import trace
from benchmarks.trace import IDLE, PROGRAM
from jax.profiler import ProfileData

from largebatch import optim
from largebatch.errors import DataError

# Frames as XLA prints them: the parent's number is one too high, and 1 says that there is none.
HLO = """\
HloModule jit_step, is_scheduled=true

FileNames
1 "/home/me/largebatch/training/steps.py"
2 "/home/me/largebatch/models/batch_norm.py"
3 "/home/me/largebatch/optim/sgd.py"

FunctionNames
1 "step"
2 "BatchNorm.__call__"
3 "update"

FileLocations
1 {file_name_id=1 function_name_id=1 line=10 end_line=10 column=1 end_column=2}
2 {file_name_id=2 function_name_id=2 line=20 end_line=20 column=1 end_column=2}
3 {file_name_id=3 function_name_id=3 line=30 end_line=30 column=1 end_column=2}
4 {file_name_id=1 function_name_id=1 line=40 end_line=40 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=4 parent_frame_id=1}
4 {file_location_id=3 parent_frame_id=4}
5 {file_location_id=1 parent_frame_id=3}

%fused_norm (p.0: f32[8]) -> f32[8] {
  %p.0 = f32[8]{0} parameter(0)
  %m.1 = f32[8]{0} multiply(%p.0, %p.0), metadata={op_name="jit(step)/jvp()/mul" stack_frame_id=2}
  ROOT %a.1 = f32[8]{0} add(%m.1, %p.0)
}

%fused_move (p.1: f32[8]) -> f32[2,4] {
  %p.1 = f32[8]{0} parameter(0)
  %r.1 = f32[4,2]{1,0} reshape(%p.1)
  ROOT %t.1 = f32[2,4]{1,0} transpose(%r.1), dimensions={1,0}
}

%body (p.2: f32[8]) -> f32[8] {
  %p.2 = f32[8]{0} parameter(0)
  ROOT %sgd.1 = f32[8]{0} add(%p.2, %p.2), metadata={op_name="jit(step)/add" stack_frame_id=4}
}

ENTRY %main (x.1: f32[8]) -> f32[8] {
  %x.1 = f32[8]{0} parameter(0)
  %conv.1 = f32[8]{0} custom-call(%x.1), custom_call_target="__cudnn$convForward"
  %dot.1 = f32[8]{0} custom-call(%conv.1), custom_call_target="__cublas$gemm"
  %norm_fusion.1 = f32[8]{0} fusion(%dot.1), kind=kLoop, calls=%fused_norm
  %move_fusion.1 = f32[2,4]{1,0} fusion(%norm_fusion.1), kind=kLoop, calls=%fused_move
  %pool.1 = f32[8]{0} add(%x.1), metadata={op_name="jit(step)/jvp()/reduce_window" stack_frame_id=5}
  %all-reduce.1 = f32[8]{0} all-reduce(%norm_fusion.1), to_apply=%body
  ROOT %call.1 = f32[8]{0} call(%all-reduce.1), to_apply=%body
}
"""


STREAM, OTHER_STREAM = "Stream #13(Compute)", "Stream #14(Compute)"


def event(name, start, length, line=STREAM, plane="/device:GPU:0", **stats):
    return plane, line, name, 1000 * start, 1000 * length, stats


def written(path, *events):
    """Write a profile with events, given in µs, and the program beside it."""
    planes = {}
    for plane, line, *rest in events:
        planes.setdefault(plane, {}).setdefault(line, []).append(rest)
    text = ""
    for plane, lines in planes.items():
        ids, keys, number = "", "", itertools.count(1)
        text += f'planes {{ name: "{plane}" '
        for line, found in lines.items():
            text += f'lines {{ name: "{line}" timestamp_ns: 5000 '
            for name, start, length, stats in found:
                event_id = next(number)
                known = f'value {{ id: {event_id} name: "{name}" }}'
                ids += f"event_metadata {{ key: {event_id} {known} }} "
                text += f"events {{ metadata_id: {event_id} offset_ps: {1000 * start} "
                text += f"duration_ps: {1000 * length} "
                for key, value in stats.items():
                    stat = next(number)
                    known = f'value {{ id: {stat} name: "{key}" }}'
                    keys += f"stat_metadata {{ key: {stat} {known} }} "
                    text += f'stats {{ metadata_id: {stat} str_value: "{value}" }} '
                text += "} "
            text += "} "
        text += ids + keys + "} "
    place = path / "plugins" / "profile" / "now"
    place.mkdir(parents=True)
    found = ProfileData.text_proto_to_serialized_xspace(text)
    (place / "host.xplane.pb").write_bytes(found)
    (path / PROGRAM).write_text(HLO)
    return path


def kinds(profile):
    return {kernel.name: kernel.origin.kind for kernel in profile.kernels}


def test_each_kernel_has_the_class_of_its_instruction(tmp_path):
    folder = written(
        tmp_path,
        event("sm90_xmma_fprop_bf16", 0, 40, hlo_op="conv.1"),
        event("sm90_xmma_gemm_bf16", 40, 10, hlo_op="dot.1"),
        event("norm_fusion_1", 50, 20, hlo_op="norm_fusion.1"),
        event("move_fusion_1", 70, 5, hlo_op="move_fusion.1"),
        event("wrapped_add", 75, 5, hlo_op="pool.1"),
        event("ncclDevKernel_AllReduce", 80, 10, hlo_op="all-reduce.1"),
        event("add_1", 90, 10, hlo_op="sgd.1"),
        event("of the host", 0, 500, "python", "/host:CPU", hlo_op="conv.1"),
        event("summed up", 0, 500, "XLA Ops", hlo_op="conv.1"),
    )
    profile = trace.read(folder)
    assert kinds(profile) == {
        "conv.1": "convolution",
        "dot.1": "matrix product",
        "norm_fusion.1": "norm, ReLU, add",
        "move_fusion.1": "copy, transpose",
        "pool.1": "pooling",
        "all-reduce.1": "collective",
        "sgd.1": "optimizer",
    }
    assert profile.window_s == pytest.approx(100e-6, rel=1e-12)
    shares = {
        "convolution": 0.4,
        "norm, ReLU, add": 0.2,
        "matrix product": 0.1,
        "collective": 0.1,
        "optimizer": 0.1,
        "copy, transpose": 0.05,
        "pooling": 0.05,
        IDLE: 0.0,
    }
    assert profile.shares == pytest.approx(shares, abs=1e-12)
    # The innermost frame; a fusion has the metadata of what it contains.
    origins = {kernel.name: kernel.origin for kernel in profile.kernels}
    assert origins["norm_fusion.1"].source == "models/batch_norm.py:20 BatchNorm.__call__"
    assert origins["norm_fusion.1"].op_name == "jit(step)/jvp()/mul"
    assert origins["norm_fusion.1"].result == "f32[8]"
    assert origins["sgd.1"].source == "optim/sgd.py:30 update"
    # Its stack has one frame twice, as backward operations have: the one after it counts.
    assert origins["pool.1"].source == "models/batch_norm.py:20 BatchNorm.__call__"


def test_the_name_decides_where_the_program_has_no_instruction(tmp_path):
    folder = written(
        tmp_path,
        # In a GPU graph the instruction is that of the whole; the kernels have their own names.
        event("norm_fusion_7", 0, 1, hlo_op="call.1"),
        event("move_fusion_1", 1, 1, hlo_op="command_buffer_711", hlo_module="jit_step"),
        event(
            "sm90_xmma_dgrad_implicit_gemm", 1, 1, hlo_op="command_buffer_3", hlo_module="jit_step"
        ),
        event("nvjet_tst_128x64", 2, 1),
        event("nchwToNhwcKernel", 3, 1),
        event("ncclKernel_AllReduce", 4, 1),
        event("something", 5, 1),
        event("a", 6, 1, hlo_op="conv.1", hlo_module="jit_step"),
        event("b", 7, 1, hlo_op="norm_fusion.1", hlo_module="jit_other"),
    )
    profile = trace.read(folder)
    assert kinds(profile) == {
        "norm_fusion_7": "norm, ReLU, add",
        "move_fusion.1": "copy, transpose",
        "sm90_xmma_dgrad_implicit_gemm": "convolution",
        "nvjet_tst_128x64": "matrix product",
        "nchwToNhwcKernel": "copy, transpose",
        "ncclKernel_AllReduce": "collective",
        "something": "other",
        "conv.1": "convolution",
        "norm_fusion.1": "norm, ReLU, add",
    }
    assert {
        kernel.origin.source for kernel in profile.kernels if kernel.name == "norm_fusion.1"
    } == {""}


def test_kernels_side_by_side_share_their_time(tmp_path):
    # Device 0: 0–40 computes, 30–60 reduces, 80–100 computes. Device 1: 0–100 computes.
    folder = written(
        tmp_path,
        event("a", 0, 40, hlo_op="conv.1"),
        event("b", 30, 30, OTHER_STREAM, hlo_op="all-reduce.1"),
        event("c", 80, 20, hlo_op="norm_fusion.1"),
        event("d", 0, 100, plane="/device:GPU:1", hlo_op="conv.1"),
    )
    profile = trace.read(folder)
    # In the mean of both: (80 + 100) / 2 busy.
    assert (profile.window_s, profile.busy_s) == pytest.approx((100e-6, 90e-6), rel=1e-12)
    # 90 of 100, shared 140 : 30 : 20.
    assert profile.shares["collective"] == pytest.approx(0.9 * 30 / 190, rel=1e-12)
    assert {kernel.name: kernel.count for kernel in profile.kernels}["conv.1"] == 2


def test_on_a_tpu_the_line_of_operations_counts(tmp_path):
    tpu = "/device:TPU:0"
    folder = written(
        tmp_path,
        event("7", 0, 100, "Steps", tpu),
        event("jit_step(123)", 0, 100, "XLA Modules", tpu),
        event("%conv.1 = f32[8] custom-call(%x.1)", 0, 60, "XLA Ops", tpu),
        event("%all-reduce.1 = f32[8] all-reduce(%x.1)", 70, 20, "XLA Ops", tpu),
        event("copy-start.1", 0, 100, "Async XLA Ops", tpu),
    )
    profile = trace.read(folder)
    assert kinds(profile) == {"conv.1": "convolution", "all-reduce.1": "collective"}
    # 60, 20 and 10 of 90 µs.
    assert profile.shares == pytest.approx(
        {"convolution": 6 / 9, "collective": 2 / 9, IDLE: 1 / 9}, abs=1e-12
    )


def test_on_a_cpu_events_of_instructions_count_without_those_within_them(tmp_path):
    thread, cpu = "tf_XLAEigen/1", "/host:CPU"
    folder = written(
        tmp_path,
        event("ThunkExecutor::Execute", 0, 100, thread, cpu),
        event("call.1", 10, 60, thread, cpu, hlo_op="call.1"),
        event("sgd.1", 20, 30, thread, cpu, hlo_op="sgd.1"),
        event("conv.1", 70, 20, thread, cpu, hlo_op="conv.1"),
        event("f", 0, 1000, "python", cpu),
    )
    profile = trace.read(folder)
    spent = {kernel.name: kernel.seconds for kernel in profile.kernels}
    assert spent == pytest.approx({"call.1": 30e-6, "sgd.1": 30e-6, "conv.1": 20e-6}, rel=1e-12)
    assert profile.window_s == pytest.approx(80e-6, rel=1e-12)


def test_missing_and_damaged_profiles(tmp_path):
    with pytest.raises(DataError, match="--trace"):
        trace.read(tmp_path)
    with pytest.raises(DataError, match="contains no kernel"):
        trace.read(written(tmp_path / "empty", event("f", 0, 9, "python", "/host:CPU")))
    folder = written(tmp_path / "one", event("a", 0, 1, hlo_op="conv.1"))
    (folder / PROGRAM).write_text("nothing")
    with pytest.raises(DataError, match=r"hlo\.txt"):
        trace.read(folder)
    (file,) = folder.glob("plugins/profile/*/*.xplane.pb")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match="damaged"):
        trace.read(folder)


def test_the_profile_of_a_small_program(tmp_path):
    rule = optim.sgd()

    def forward(params, images):
        x = jax.lax.conv(images, params["kernel"], (1, 1), "SAME")
        x = jax.nn.relu(x - x.mean((0, 2, 3), keepdims=True))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return jnp.square(x.mean((2, 3)) @ params["head"]).sum()

    def step(state, images):
        params, optimizer = state
        gradients = jax.grad(forward)(params, images)
        updates, optimizer = rule.update(gradients, optimizer, params, rates=optim.Rates(0.1))
        return jax.tree.map(jnp.add, params, updates), optimizer

    draw = jax.random.normal
    params = {"kernel": draw(jax.random.key(0), (8, 3, 3, 3)), "head": jnp.ones((8, 5))}
    state, images = (params, rule.init(params)), draw(jax.random.key(1), (4, 3, 16, 16))
    compiled = jax.jit(step).lower(state, images).compile()
    jax.block_until_ready(compiled(state, images))
    with jax.profiler.trace(tmp_path):
        for _ in range(3):
            state = compiled(state, images)
        jax.block_until_ready(state)

    # The folder and the file are the same; without the program names decide.
    assert "optimizer" not in trace.read(tmp_path).shares
    tmp_path.joinpath(PROGRAM).write_text(compiled.as_text())
    profile = trace.read(tmp_path)
    (file,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    assert trace.read(file) == profile
    assert sum(profile.shares.values()) == pytest.approx(1, abs=1e-12)
    found = {}
    for kernel in profile.kernels:
        found.setdefault(kernel.origin.kind, []).append(kernel)
    assert {"convolution", "norm, ReLU, add", "pooling", "optimizer"} <= found.keys()
    # Forward and the kernel's gradient; each once in each of the three steps.
    assert sum(kernel.count for kernel in found["convolution"]) in (6, 9)
    assert all(kernel.count % 3 == 0 for kernel in profile.kernels)
    assert any("optim/" in kernel.origin.source for kernel in found["optimizer"])
    assert any(
        "test_trace.py" in kernel.origin.source
        and kernel.origin.op_name.endswith("conv_general_dilated")
        for kernel in found["convolution"]
    )
    assert sum(profile.shares.values()) == pytest.approx(1, abs=1e-12)
    assert 0 < profile.busy_s <= profile.window_s
