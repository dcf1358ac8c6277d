#!/bin/bash
# One process for each GPU under SLURM, requeued until the run is complete.
#
#   WORKDIR=/shared/runs/a sbatch --nodes=2 scripts/launch/slurm.sh --config=configs/fujitsu2019_81920.py --config.data.data_dir=/shared/data
#   WORKDIR=/shared/runs/seeds sbatch --array=0-4 scripts/launch/slurm.sh --config=configs/digits.py
#   SCRIPT=scripts/reproduce.py WORKDIR=/shared/runs sbatch --nodes=8 scripts/launch/slurm.sh fujitsu2019_81920 --out=/shared/records
#
# Submit from the checkout. What follows the script's name goes to SCRIPT (train.py). Options given to
# sbatch replace those below: adapt partition, account, GPUs and cores to the cluster.
# COPY=FROM:TO copies a folder to the disk of each node first, such as
# COPY=/shared/data/imagenet2012:/local/data/imagenet2012.
# Only train.py is requeued: it resumes, other scripts would begin again.
#SBATCH --job-name=largebatch
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --mem=0
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@150
#SBATCH --output=slurm-%x-%j.out

job="$SLURM_JOB_ID"
workdir="${WORKDIR:-runs/${SLURM_JOB_NAME:-largebatch}}"
options=("$@")
if [[ -n "${SLURM_ARRAY_TASK_ID:-}" ]]; then # one seed for each task of an array
  # One task has the array's number as its own, which squeue and scontrol take for all tasks.
  job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
  workdir="$workdir/seed_$SLURM_ARRAY_TASK_ID"
  options+=("--config.run.seed=$SLURM_ARRAY_TASK_ID")
fi
options+=("--workdir=$workdir")

# Since SLURM 22.05 srun does not take this over, and a process with one core starves its GPU.
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"
# NCCL's own guess may be a management network: name the right one here where it is wrong.
# export NCCL_SOCKET_IFNAME=ib0

# JAX gives the process of local number i the i-th GPU that it sees, so each must see all of its
# node. A process that fails is missed by the others, which save and end by themselves with a reason,
# within health.peer_timeout_s and the time of a checkpoint. srun kills one that does not, such as one
# that hangs in a driver; its exit code is the largest, then 137.
step=(srun --kill-on-bad-exit=0 --wait=120 --gpu-bind=none)
if [[ -n "${CONTAINER:-}" ]]; then # an image, where SLURM has pyxis
  step+=("--container-image=$CONTAINER" "--container-mounts=${MOUNTS:-$PWD:$PWD}")
  step+=("--container-workdir=$PWD")
fi
python="${PYTHON:-python}"
script="${SCRIPT:-train.py}"

told=0
pid=
for name in USR1 TERM; do
  # shellcheck disable=SC2064  # the name is this one's
  trap "told=1; [[ -z \"\$pid\" ]] || kill -$name \"\$pid\"" "$name"
done

run() { # a step of the job; sets code
  local woken now
  code=75
  ((told)) && return
  "$@" & # bash runs a trap only between commands
  pid=$!
  while true; do
    woken=$told
    wait "$pid"
    now=$?
    ((now == 127)) && break # ended while the trap ran, and waited for already
    code=$now
    ((told == woken)) && break
  done
  pid=
}

prepare() { # a step before the training: a signal ends it with no code of its own
  ((code == 0)) || return
  run "$@"
  if ((told)); then code=75; fi
}

code=0
began=0
if [[ -n "${COPY:-}" ]]; then # whole or not at all: a copy that was cut short has another name
  # shellcheck disable=SC2016  # expanded on each node
  copy='test -e "$2" || { rm -rf "$2.partial" && mkdir -p "$(dirname "$2")" &&
    cp -r "$1" "$2.partial" && mv "$2.partial" "$2"; }'
  nodes="${SLURM_JOB_NUM_NODES:-1}"
  prepare srun "--ntasks=$nodes" --ntasks-per-node=1 bash -c "$copy" copy "${COPY%%:*}" "${COPY#*:}"
fi
if ((code == 0)); then
  began=1
  run "${step[@]}" "$python" "$script" "${options[@]}"
fi

few=$((${SLURM_RESTART_COUNT:-0} < ${RESTARTS:-20}))
case "$code" in
  75) again=$((began || few)) ;; # told to stop, and saved; or stopped before the training
  69 | 70 | 134 | 137) again=$((began && few)) ;; # a host failed
  *) again=0 ;; # complete, a mistake, or a defect of the program
esac
[[ "$script" == train.py ]] || again=0
# A job that was cancelled is no longer running, and must not come back.
if ((again)) && [[ "$(squeue --noheader --jobs="$job" --format=%T)" == RUNNING ]]; then
  echo "exit code $code: requeued, the run resumes from its newest checkpoint"
  scontrol requeue "$job"
fi
exit "$code"
