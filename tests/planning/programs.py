"""Scheduled HLO modules written by hand, one function for each kind of instruction."""

HEAD = """HloModule jit_step, is_scheduled=true, entry_computation_layout={()->f32[]}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %both = f32[] add(%a, %b)
}

"""
FORWARD, BACKWARD = "jit(step)/jvp()/conv", "jit(step)/transpose(jvp())/conv"
WINDOW = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
ALL = "{'group','member'}"
IMAGE = "f32[2,8,8,4]{3,2,1,0:T(8,128)(2,1)S(1)}"


def conv(name, op_name=BACKWARD):
    """A 3×3 convolution of 4 to 4 features on 2 images of 8×8."""
    metadata = f', metadata={{op_name="{op_name}"}}' if op_name else ""
    return f"  %{name} = {IMAGE} convolution(%image, %kernel), {WINDOW}{metadata}"


def attributes(groups=ALL):
    """Of an all-reduce over the mesh."""
    return f"replica_groups=mesh['group'=2,'member'=2] {groups}, to_apply=%sum"


def reduce_(name, *operands, groups=ALL):
    """A synchronous all-reduce."""
    return _all_reduce("all-reduce", name, operands, groups)


def start(name, *operands, groups=ALL):
    """An asynchronous one's start."""
    return _all_reduce("all-reduce-start", name, operands, groups)


def done(name):
    """Its end."""
    return f"  %{name}.done = f32[1]{{0}} all-reduce-done(%{name})"


def _all_reduce(opcode, name, operands, groups):
    names = ", ".join(f"%{operand}" for operand in operands)
    return f"  %{name} = (f32[1]{{0}}, /*index=1*/f32[1]{{0}}) {opcode}({names}), " + attributes(
        groups
    )


def module(*lines, arrays=(), before=""):
    """A module whose entry holds an image, a kernel, ``arrays`` (name, type) and ``lines``."""
    given = [("image", IMAGE), ("kernel", "f32[3,3,4,4]{3,2,1,0}"), *arrays]
    parameters = [f"  %{n} = {t} parameter({i})" for i, (n, t) in enumerate(given)]
    signature = ", ".join(f"{n}: {t.partition('{')[0]}" for n, t in given)
    entry = [f"ENTRY %main ({signature}) -> f32[] {{", *parameters, *lines]
    return HEAD + before + "\n".join(entry) + "\n  ROOT %end = f32[] constant(0)\n}\n"
