#!/bin/bash
# A TPU slice of several hosts, from request to removal.
#
#   export NAME=largebatch ZONE=us-east5-a TYPE=v5p-128 VERSION=v2-alpha-tpuv5 SOURCE=https://…/largebatch.git
#   scripts/launch/tpu_pod.sh create            # a queued resource; SPOT=1 for one that may be taken away
#   scripts/launch/tpu_pod.sh install           # clone or update, pip install and make /mnt/data on every host
#   scripts/launch/tpu_pod.sh run --config=configs/mlperf07_google_jax_64k.py --workdir=/shared/a
#   scripts/launch/tpu_pod.sh stop              # save and stop; run goes on
#   scripts/launch/tpu_pod.sh delete
#
# run … --dry_run checks the slice first. --workdir lies in a bucket, or on a file system that all hosts
# have mounted. run starts SCRIPT (train.py), such as SCRIPT=scripts/reproduce.py.
set -euo pipefail

: "${NAME:?}" "${ZONE:?}"
pidfile='~/.largebatch.pid' # of the user of each host, not in a shared folder

everywhere() { # the same command on every host; its exit code is that of the first that failed
  gcloud compute tpus tpu-vm ssh "$NAME" --zone="$ZONE" --worker=all --command="$1"
}

start() { # a script of the checkout with options
  local words
  printf -v words '%q ' "$@"
  # The shell becomes Python, so that the number is Python's and signals reach it.
  everywhere "cd largebatch && echo \$\$ > $pidfile && exec ${HOST_PYTHON:-.venv/bin/python} $words"
}

verb="${1:?create, install, run, stop or delete}"
shift
case "$verb" in
  create)
    gcloud compute tpus queued-resources create "$NAME" --node-id="$NAME" --zone="$ZONE" \
      --accelerator-type="${TYPE:?}" --runtime-version="${VERSION:?}" ${SPOT:+--spot}
    echo "wait until it is ACTIVE: gcloud compute tpus queued-resources describe $NAME --zone=$ZONE"
    ;;
  install)
    everywhere "if test -d largebatch; then git -C largebatch pull --ff-only ${SOURCE:?}
      else git clone $SOURCE largebatch; fi && python3 -m venv largebatch/.venv &&
      largebatch/.venv/bin/pip install -e 'largebatch[tpu,storage]' &&
      sudo mkdir -p /mnt/data && sudo chown \"\$(id -u)\" /mnt/data"
    ;;
  run) start "${SCRIPT:-train.py}" "$@" ;;
  # A stopped process acts on SIGTERM when it continues.
  stop) everywhere "kill -TERM \$(cat $pidfile) && kill -CONT \$(cat $pidfile)" ;;
  delete)
    gcloud compute tpus queued-resources delete "$NAME" --zone="$ZONE" --force
    ;;
  *)
    echo "error: $verb is none of create, install, run, stop, delete" >&2
    exit 2
    ;;
esac
