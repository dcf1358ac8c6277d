#!/bin/bash
# One process for each GPU under SLURM, requeued until the run is complete.
#
#   WORKDIR=runs/record sbatch --nodes=2 scripts/launch/slurm.sh --config=configs/fujitsu2019_81920.py
#   WORKDIR=runs/seeds sbatch --array=0-4 scripts/launch/slurm.sh --config=configs/digits.py
#
# Submit from the checkout; what follows the script's name goes to train.py. DOCTOR=1 looks at the
# hosts first and does not train if there is a problem. Options given to sbatch go before those here.
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
# node. A process that fails is missed by the others, which end by themselves with a reason.
step=(srun --kill-on-bad-exit=0 --wait=0 --gpu-bind=none)
if [[ -n "${CONTAINER:-}" ]]; then # an image, where SLURM has pyxis
  step+=("--container-image=$CONTAINER" "--container-mounts=${MOUNTS:-$PWD:$PWD}")
  step+=("--container-workdir=$PWD")
fi
python="${PYTHON:-python}"

if [[ -n "${DOCTOR:-}" ]]; then
  "${step[@]}" "$python" scripts/doctor.py "--devices=${SLURM_NTASKS:-0}" "${options[@]}" || exit
fi

"${step[@]}" "$python" train.py "${options[@]}" &
pid=$!
told=0
# bash runs a trap only between commands, so srun is in the background and waited for.
trap 'told=1; kill -USR1 "$pid"' USR1
trap 'told=1; kill -TERM "$pid"' TERM
code=0
while true; do
  wait "$pid"
  now=$?
  ((now == 127)) && break # ended while the trap ran, and waited for already
  code=$now
  ((told)) || break
  told=0
done

case "$code" in
  75) again=1 ;; # told to stop, and saved
  69 | 70 | 134 | 137) again=$((${SLURM_RESTART_COUNT:-0} < ${RESTARTS:-20})) ;; # a host failed
  *) again=0 ;;  # complete, a mistake, or a defect of the program
esac
# A job that was cancelled is no longer running, and must not come back.
if ((again)) && [[ "$(squeue --noheader --jobs="$job" --format=%T)" == RUNNING ]]; then
  echo "exit code $code: requeued, the run goes on where its newest checkpoint is"
  scontrol requeue "$job"
fi
exit "$code"
