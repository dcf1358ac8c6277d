"""The process that compiles: ``python -m largebatch.planning.compile_child FOLDER``.

It reads FOLDER/request.json and writes module.txt and answer.json there, or error.json with one
line for the user.
"""

import json
import resource
import sys
import types
from pathlib import Path
from typing import Any

import jax

from largebatch import parallel
from largebatch.config import Facts, freeze
from largebatch.config.plan import StagePlan, resolve
from largebatch.environment import versions
from largebatch.errors import UserError
from largebatch.parallel import Bucket, xla_options
from largebatch.parallel.mesh import part_size
from largebatch.planning.topologies import open_topology
from largebatch.training.description import peak_bytes
from largebatch.training.memory import GIB
from largebatch.training.stage import Stage, program_bytes
from largebatch.training.steps import Steps, steps_of
from largebatch.trees import flatten_paths

_PACKAGES = (
    "jax",
    "jaxlib",
    "jax-cuda12-pjrt",
    "jax-cuda13-pjrt",
    "nvidia-cuda-nvcc-cu12",
    "libtpu",
)


def compile_request(request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the compiled module's text, and the other fields of ``compile.Compiled``.

    Raises:
      UserError: the configuration does not suit the devices.
    """
    config = freeze(request["config"])
    facts = Facts(**request["facts"] | {"image_shape": tuple(request["facts"]["image_shape"])})
    devices = open_topology(request["topology"]).jax_devices()
    if len(devices) != facts.devices:
        raise UserError(f"the compiler has {len(devices)} devices, expected {facts.devices}")
    plan = resolve(config, facts, microbatch=request["microbatch"]).first_stage
    mesh = parallel.make_mesh(devices, plan.members)
    source = types.SimpleNamespace(mean=tuple(request["mean"]), std=tuple(request["std"]))
    steps = steps_of(plan, mesh, source)
    refused = xla_options.refused(devices[0], request["options"])
    options = {name: v for name, v in request["options"].items() if name not in refused}
    stage = Stage(steps, options)
    compiled = stage.finish
    if request["complete"]:
        side = config.data.evaluation_size
        _ = stage.init
        stage.prepare([(side, side) if side else facts.image_shape[:2]])
    analysis = compiled.memory_analysis()
    return compiled.as_text(), {
        "device_kind": devices[0].device_kind,
        "peak_bytes": program_bytes(compiled),
        "memory": {
            "arguments": analysis.argument_size_in_bytes,
            "results": analysis.output_size_in_bytes,
            "results in place of arguments": analysis.alias_size_in_bytes,
            "temporaries": analysis.temp_size_in_bytes,
            "code": analysis.generated_code_size_in_bytes,
        },
        "buckets": [_sent(bucket, plan) for bucket in steps.buckets],
        "totals": jax.eval_shape(steps.empty_carry).totals.shape[1],
        "head_flops": _head_flops(steps),
        "programs": stage.bytes,
        "compile_s": stage.compile_s,
        "compiler_gib": peak_bytes(resource.RUSAGE_SELF) / GIB,
        "versions": versions(_PACKAGES),
        "refused": refused,
    }


def _sent(bucket: Bucket, plan: StagePlan) -> int:
    """Return a bucket's elements on the wire; a sharded update pads each array to equal parts."""
    if plan.config.optimizer.update != "sharded":
        return bucket.size
    devices = plan.facts.devices
    return sum(devices * part_size(size, devices) for size in bucket.sizes)


def _head_flops(steps: Steps) -> float:
    """Count two FLOPs per multiply-add of a microbatch's images with the head's kernel."""
    params, _ = steps.model.shapes()
    (kernel,) = (leaf for leaf in flatten_paths(params).values() if len(leaf.shape) == 2)
    return 2.0 * steps.plan.local_images * kernel.size


def main(folder: Path) -> int:
    """Compile the request of a folder; return the exit code."""
    try:
        text, answer = compile_request(json.loads((folder / "request.json").read_text()))
    except Exception as error:
        lines = str(error).splitlines() or [""]
        name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        (folder / "error.json").write_text(json.dumps(name + lines[0]))
        if not isinstance(error, UserError):
            raise
        return 2
    (folder / "module.txt").write_text(text)
    (folder / "answer.json").write_text(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
