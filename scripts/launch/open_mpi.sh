#!/bin/bash
# One process for each GPU under Open MPI, versions 4 and 5.
#
#   HOSTFILE=hosts GPUS=8 scripts/launch/open_mpi.sh --config=configs/fujitsu2019_81920.py --workdir=runs/a
#
# HOSTFILE has a line for each host; its first is where process 0 runs and coordinates, at PORT.
# The checkout and --workdir are at the same path on all hosts. What follows the script's name goes to
# SCRIPT (train.py; scripts/reproduce.py). mpirun starts this script again on each
# host, where it sets the variables of its process. Only train.py is started again after a failure.

python="${PYTHON:-python}"
script="${SCRIPT:-train.py}"

if [[ -n "${OMPI_COMM_WORLD_RANK:-}" ]]; then
  # Version 5 has not the variable by which JAX would find the coordinator, so it is told.
  export JAX_COORDINATOR_ADDRESS="${LARGEBATCH_COORDINATOR:?}"
  export JAX_NUM_PROCESSES="${OMPI_COMM_WORLD_SIZE:?}"
  export JAX_PROCESS_ID="$OMPI_COMM_WORLD_RANK"
  export JAX_LOCAL_DEVICE_IDS="${OMPI_COMM_WORLD_LOCAL_RANK:?}"
  exec "$python" "$script" "$@"
fi

hosts="${HOSTFILE:?a file with a line for each host}"
gpus="${GPUS:-8}"
read -r first _ < <(grep -v '^[[:space:]]*\(#\|$\)' "$hosts")
count="$(grep -cv '^[[:space:]]*\(#\|$\)' "$hosts")"
export PYTHON="$python" SCRIPT="$script"
export LARGEBATCH_COORDINATOR="${COORDINATOR:-$first}:${PORT:-62831}"

# mpirun gives process 0 a terminal even where it has none itself: a log is to have plain lines.
[[ -t 1 ]] || export TERM=dumb

told=0
for ((attempt = 0; attempt <= ${RESTARTS:-3}; attempt++)); do
  mpirun -np "$((count * gpus))" --hostfile "$hosts" --map-by "ppr:$gpus:node" --bind-to none \
    -x LARGEBATCH_COORDINATOR -x PATH -x PYTHON -x SCRIPT -x TERM "$0" "$@" &
  pid=$!
  # On SIGTERM mpirun kills all within a second; SIGUSR1 it passes on, which saves and stops, too.
  trap 'told=1; kill -USR1 "$pid"' USR1 TERM INT
  code=0
  while true; do
    woken=$told
    wait "$pid"
    now=$?
    ((now == 127)) && break # ended while the trap ran, and waited for already
    code=$now
    ((told == woken)) && break
  done
  case "$code" in
    69 | 70 | 134 | 137) # a host failed: all start again
      ((told)) && break
      [[ "$script" == train.py ]] || break
      ;;
    *) break ;;
  esac
  echo "exit code $code: started again, the run resumes from its newest checkpoint" >&2
done
exit "$code"
