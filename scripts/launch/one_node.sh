#!/bin/bash
# One machine: one process with all its GPUs, or PROCESSES with as many each.
#
#   scripts/launch/one_node.sh --config=configs/imagenette_resnet50.py --workdir=runs/a
#   GPUS=8 PROCESSES=8 scripts/launch/one_node.sh --config=configs/imagenette_resnet50.py
#   SCRIPT=scripts/reproduce.py GPUS=8 PROCESSES=8 scripts/launch/one_node.sh fujitsu2019_81920 --out=records
#
# One process is the simpler and does as well until its interpreter is what is short (some 20,000
# images/s of input; docs/data.md). What follows the script's name goes to SCRIPT (train.py).

python="${PYTHON:-python}"
script="${SCRIPT:-train.py}"
processes="${PROCESSES:-1}"
if ((processes == 1)); then
  exec "$python" "$script" "$@"
fi
gpus="${GPUS:?how many this machine has}"
if ((gpus % processes)); then
  echo "error: GPUS=$gpus cannot be shared evenly by PROCESSES=$processes" >&2
  exit 2
fi
each=$((gpus / processes))
export JAX_COORDINATOR_ADDRESS="127.0.0.1:${PORT:-62831}" JAX_NUM_PROCESSES="$processes"
pids=()
for ((i = 0; i < processes; i++)); do
  ids="$(seq -s, $((i * each)) $((i * each + each - 1)))"
  JAX_PROCESS_ID=$i JAX_LOCAL_DEVICE_IDS=$ids "$python" "$script" "$@" &
  pids+=($!)
done
for name in TERM USR1 INT; do
  # shellcheck disable=SC2064  # the name is this one's
  trap "told=1; kill -$name \"\${pids[@]}\" 2>/dev/null" "$name"
done
worst=0
for pid in "${pids[@]}"; do
  code=0
  while true; do
    told=0
    wait "$pid"
    now=$?
    ((now == 127)) && break # ended while the trap ran, and waited for already
    code=$now
    ((told)) || break
  done
  # 69 only says that another one failed.
  if ((code && (worst == 0 || worst == 69))); then worst=$code; fi
done
exit "$worst"
