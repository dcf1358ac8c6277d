"""Where a trace says that the time went: a synthetic one by hand, and one of a small program."""

import gzip
import json

import jax
import jax.numpy as jnp
import pytest

from largebatch import optim
from largebatch.errors import DataError
from largebatch.tools.report import trace
from largebatch.tools.report.provenance import Program
from largebatch.tools.report.trace import IDLE, PROGRAM

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


def event(name, start, length, tid=1, pid=7, **arguments):
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start,
        "dur": length,
        "args": arguments,
    }


def named(pid, process, threads):
    rows = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process}}]
    for tid, name in threads.items():
        row = {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        rows.append(row)
    return rows


def gpu(*events):
    threads = {1: "Stream #13(Compute)", 2: "Stream #14(Compute)", 9: "XLA Ops"}
    return {
        "traceEvents": [*named(7, "/device:GPU:0", threads), *named(1, "/host:CPU", {}), *events]
    }


def kinds(profile):
    return {kernel.name: kernel.origin.kind for kernel in profile.kernels}


def test_each_kernel_has_the_class_of_its_instruction():
    profile = trace.profile(
        gpu(
            event("sm90_xmma_fprop_bf16", 0, 40, hlo_op="conv.1"),
            event("sm90_xmma_gemm_bf16", 40, 10, hlo_op="dot.1"),
            event("norm_fusion_1", 50, 20, hlo_op="norm_fusion.1"),
            event("move_fusion_1", 70, 5, hlo_op="move_fusion.1"),
            event("wrapped_add", 75, 5, hlo_op="pool.1"),
            event("ncclDevKernel_AllReduce", 80, 10, hlo_op="all-reduce.1"),
            event("add_1", 90, 10, hlo_op="sgd.1"),
            event("of the host", 0, 500, pid=1, hlo_op="conv.1"),
            event("summed up", 0, 500, tid=9, hlo_op="conv.1"),
        ),
        Program.parse(HLO),
        "a trace",
    )
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
    assert profile.shares == pytest.approx(
        {
            "convolution": 0.4,
            "norm, ReLU, add": 0.2,
            "matrix product": 0.1,
            "collective": 0.1,
            "optimizer": 0.1,
            "copy, transpose": 0.05,
            "pooling": 0.05,
            IDLE: 0.0,
        },
        abs=1e-12,
    )
    # The innermost frame; the fusion's own metadata are those within it.
    origins = {kernel.name: kernel.origin for kernel in profile.kernels}
    assert origins["norm_fusion.1"].source == "models/batch_norm.py:20 BatchNorm.__call__"
    assert origins["norm_fusion.1"].op_name == "jit(step)/jvp()/mul"
    assert origins["norm_fusion.1"].result == "f32[8]"
    assert origins["sgd.1"].source == "optim/sgd.py:30 update"
    # Its stack has one frame twice, as backward operations have: what comes after is meant.
    assert origins["pool.1"].source == "models/batch_norm.py:20 BatchNorm.__call__"


def test_what_the_program_does_not_explain_goes_by_its_name():
    profile = trace.profile(
        gpu(
            # In a graph: the instruction is that of the whole, the kernels are called after theirs.
            event("norm_fusion_1", 0, 1, hlo_op="call.1"),
            event("sm90_xmma_dgrad_implicit_gemm", 1, 1, hlo_op="call.1"),
            event("nvjet_tst_128x64", 2, 1),
            event("nchwToNhwcKernel", 3, 1),
            event("ncclKernel_AllReduce", 4, 1),
            event("something", 5, 1),
        ),
        Program.parse(HLO),
        "a trace",
    )
    assert kinds(profile) == {
        "norm_fusion_1": "norm, ReLU, add",
        "sm90_xmma_dgrad_implicit_gemm": "convolution",
        "nvjet_tst_128x64": "matrix product",
        "nchwToNhwcKernel": "copy, transpose",
        "ncclKernel_AllReduce": "collective",
        "something": "other",
    }


def test_idle_time_is_what_no_stream_uses_and_side_by_side_is_shared():
    # Stream 1: 0–40; stream 2: 20–60; nothing 60–80; stream 1: 80–100.
    profile = trace.profile(
        gpu(
            event("a", 0, 40, hlo_op="conv.1"),
            event("b", 20, 40, tid=2, hlo_op="all-reduce.1"),
            event("c", 80, 20, hlo_op="conv.1"),
        ),
        Program.parse(HLO),
        "a trace",
    )
    assert profile.busy_s == pytest.approx(80e-6, rel=1e-12)
    # 60 and 40 µs of kernels in 80 µs of 100.
    assert profile.shares == pytest.approx(
        {"convolution": 0.48, "collective": 0.32, IDLE: 0.2}, abs=1e-12
    )
    assert {kernel.name: kernel.count for kernel in profile.kernels} == {
        "conv.1": 2,
        "all-reduce.1": 1,
    }


def test_on_a_tpu_the_line_of_operations_counts_and_not_those_of_steps_and_modules():
    lines = {1: "Steps", 2: "XLA Modules", 3: "XLA Ops", 4: "Async XLA Ops", 5: "XLA TraceMe"}
    events = [
        event("7", 0, 100, tid=1),
        event("jit_step(123)", 0, 100, tid=2),
        event("conv.1", 0, 60, tid=3, hlo_op="conv.1"),
        event("all-reduce.1", 70, 20, tid=3, hlo_op="all-reduce.1"),
        event("copy-start.1", 0, 100, tid=4),
        event("waiting", 0, 100, tid=5),
    ]
    traced = {"traceEvents": named(7, "/device:TPU:0", lines) + events}
    profile = trace.profile(traced, Program.parse(HLO), "a trace")
    assert kinds(profile) == {"conv.1": "convolution", "all-reduce.1": "collective"}
    assert profile.window_s == pytest.approx(90e-6, rel=1e-12)
    # 60, 20 and 10 of 90 µs.
    assert profile.split == pytest.approx(
        {"convolution": 6 / 9, "collective, exposed": 2 / 9, IDLE: 1 / 9}, abs=1e-12
    )


def test_on_a_cpu_only_what_runs_an_instruction_counts_and_not_what_is_inside_it():
    rows = named(7, "/host:CPU", {1: "tf_XLAEigen/1", 2: "python"})
    events = [
        event("ThunkExecutor::Execute", 0, 100),
        event("call.1", 10, 60, hlo_op="call.1"),
        event("sgd.1", 20, 30, hlo_op="sgd.1"),
        event("conv.1", 70, 20, hlo_op="conv.1"),
        event("f", 0, 1000, tid=2),
    ]
    profile = trace.profile({"traceEvents": rows + events}, Program.parse(HLO), "a trace")
    spent = {kernel.name: kernel.seconds for kernel in profile.kernels}
    assert spent == pytest.approx({"call.1": 30e-6, "sgd.1": 30e-6, "conv.1": 20e-6}, rel=1e-12)
    assert profile.window_s == pytest.approx(80e-6, rel=1e-12)


def test_traces_that_are_none(tmp_path):
    with pytest.raises(DataError, match=r"make one with --config\.run\.profile=START:STOP"):
        trace.read(tmp_path)
    for nothing in (gpu(), gpu(event("a", 0, 0))):
        with pytest.raises(DataError, match="a trace holds no kernel"):
            trace.profile(nothing, Program.parse(HLO), "a trace")
    for events in (
        None,
        3,
        [1],
        [{"ph": "M"}],
        [{"ph": "X", "ts": "x"}],
        [event([], 0, 1, pid={})],
    ):
        with pytest.raises(DataError, match="a trace is no trace of jax"):
            trace.profile({"traceEvents": events}, Program.parse(HLO), "a trace")


def test_collectives_are_exposed_where_nothing_else_runs():
    # Device 7: 0–40 computes, 30–60 reduces, 80–100 computes. Device 8: 0–100 computes.
    rows = named(8, "/device:GPU:1", {1: "Stream #13(Compute)"})
    traced = gpu(
        event("a", 0, 40, hlo_op="conv.1"),
        event("b", 30, 30, tid=2, hlo_op="all-reduce.1"),
        event("c", 80, 20, hlo_op="norm_fusion.1"),
        event("d", 0, 100, pid=8, hlo_op="conv.1"),
    )
    traced["traceEvents"] += rows
    profile = trace.profile(traced, Program.parse(HLO), "a trace")
    # In the mean of both: (80 + 100) / 2 busy, (20 + 0) / 2 exposed, (10 + 0) / 2 hidden.
    found = (profile.window_s, profile.busy_s, profile.exposed_s, profile.hidden_s)
    assert found == pytest.approx((100e-6, 90e-6, 10e-6, 5e-6), rel=1e-12)
    # 80 µs of compute in 100, shared 140 : 20 by the kernels' times.
    assert profile.split == pytest.approx(
        {"convolution": 0.7, "norm, ReLU, add": 0.1, "collective, exposed": 0.1, IDLE: 0.1},
        abs=1e-12,
    )


def test_a_kernel_goes_by_the_program_that_it_belongs_to():
    other = HLO.replace("fusion(%dot.1)", "dot(%dot.1)")
    programs = {"jit_step": Program.parse(HLO), "jit_other": Program.parse(other)}
    profile = trace.profile(
        gpu(
            event("a", 0, 30, hlo_op="norm_fusion.1", hlo_module="jit_step"),
            event("b", 30, 20, hlo_op="norm_fusion.1", hlo_module="jit_other"),
            event("c", 50, 10, hlo_op="norm_fusion.1", hlo_module="jit_unknown"),
        ),
        programs,
        "a trace",
    )
    found = [(kernel.name, kernel.origin.kind) for kernel in profile.kernels]
    assert found == [
        ("norm_fusion.1", "norm, ReLU, add"),
        ("norm_fusion.1", "matrix product"),
        ("norm_fusion.1", "norm, ReLU, add"),  # by its name
    ]


def test_torn_files_are_told(tmp_path):
    place = tmp_path / "plugins" / "profile" / "now"
    place.mkdir(parents=True)
    (place / "host.trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}')[:-9])
    with pytest.raises(DataError, match="torn or no trace"):
        trace.read(tmp_path)
    (place / "host.trace.json.gz").write_bytes(gzip.compress(json.dumps(gpu()).encode()))
    (place / "host.xplane.pb").write_bytes(b"\x0a\x7f\x00")
    with pytest.raises(DataError, match="damaged or no profile"):
        trace.read(tmp_path)

    # A file that is whole, with a program that is none: plane, event metadata, statistic, HloProto.
    def field(number, content):
        return bytes([number << 3 | 2, len(content)]) + content

    proto = field(6, field(1, b"\xff\xff\xff no module"))
    metadata = field(2, b"jit_step(1)") + field(5, proto)
    plane = field(2, b"/host:metadata") + field(4, field(2, metadata))
    (place / "host.xplane.pb").write_bytes(field(1, plane))
    with pytest.raises(DataError, match="holds a program that is damaged or of another version"):
        trace.read(tmp_path)
    (place / "host.xplane.pb").write_bytes(b"\x08\x07")  # a number for the plane
    with pytest.raises(DataError, match="damaged or no profile"):
        trace.read(tmp_path)


def test_the_real_trace_of_a_small_program(tmp_path):
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

    # The profile brings its program along: it says the same as with the program's text beside it.
    brought = trace.read(tmp_path)
    (file,) = tmp_path.glob("plugins/profile/*/*.trace.json.gz")
    assert trace.read(file) == brought
    tmp_path.joinpath(PROGRAM).write_text(compiled.as_text())
    profile = trace.read(tmp_path)
    assert profile == brought
    assert sum(profile.split.values()) == pytest.approx(1, abs=1e-12)
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
    with gzip.open(file) as opened:
        assert json.load(opened)["traceEvents"]
