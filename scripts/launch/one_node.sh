#!/bin/bash
# One machine: one process with all its GPUs, or PROCESSES with as many each.
#
#   scripts/launch/one_node.sh --config=configs/imagenette_resnet50.py --workdir=runs/a
#   GPUS=8 PROCESSES=8 scripts/launch/one_node.sh --config=configs/imagenette_resnet50.py
#   SCRIPT=scripts/reproduce.py GPUS=8 PROCESSES=8 scripts/launch/one_node.sh fujitsu2019_81920 --out=records
#
# One process is the simpler, but its threads share an interpreter lock: use a process for each GPU
# to train on photographs. What follows the script's name goes to SCRIPT (train.py).
# When a process has failed, the others have WAIT_S seconds to save and end; a stopped one is killed
# at once. After a failure that another start may help, train.py is started again RESTARTS times (0).

python="${PYTHON:-python}"
script="${SCRIPT:-train.py}"
processes="${PROCESSES:-1}"
wait_s="${WAIT_S:-120}" # above health.peer_timeout_s and the time of a checkpoint
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

running=() # process → pid
told=0
for name in TERM USR1 INT; do
  # shellcheck disable=SC2064  # the name is this one's; a stopped process acts on no other signal
  trap "told=1; kill -$name \"\${running[@]}\"; kill -CONT \"\${running[@]}\"" "$name"
done

start() {
  local i ids
  for ((i = 0; i < processes; i++)); do
    ids="$(seq -s, $((i * each)) $((i * each + each - 1)))"
    JAX_PROCESS_ID=$i JAX_LOCAL_DEVICE_IDS=$ids "$python" "$script" "$@" &
    running[i]=$!
  done
}

is_stopped() { # by SIGSTOP
  [[ "$(ps -o state= -p "$1" 2>/dev/null || sed 's/.*) //' "/proc/$1/stat" 2>/dev/null)" == T* ]]
}

end() { # processes at once, with their children
  local pid
  for pid in "$@"; do
    pkill -KILL -P "$pid" 2>/dev/null
    kill -KILL "$pid"
  done
}

supervise() { # wait for all; first is the code of the process that failed first by itself
  local i pid code ended="" limit="" waiting=""
  first=0
  while ((${#running[@]})); do
    sleep 0.5 & # bash runs a trap only between commands
    wait $!
    for i in "${!running[@]}"; do
      pid="${running[i]}"
      if ! kill -0 "$pid" 2>/dev/null; then
        wait "$pid"
        code=$?
        unset "running[i]"
        ended="${ended:-process $i ended with exit code $code}"
        ((code)) || continue
        # 69 only says that another one failed, and the code of a signal nothing.
        if ((first == 0 || (first == 69 || first >= 128) && code != 69 && code < 128 || first >= 128 && code == 69)); then
          first=$code
        fi
        if [[ -z "$limit" ]]; then
          ended="process $i ended with exit code $code"
          limit=$((SECONDS + wait_s))
        fi
      elif [[ -n "$ended" ]] && is_stopped "$pid"; then
        echo "$ended; process $i (pid $pid) is stopped and is killed" >&2
        end "$pid"
      fi
    done
    [[ -n "$limit" ]] && ((${#running[@]})) || continue
    if ((SECONDS > limit + 10)); then # it waits for a disk or a network file system
      echo "$ended; process ${!running[*]} (pid ${running[*]}) does not end after SIGKILL" >&2
      running=()
    elif ((SECONDS > limit)); then
      echo "$ended; process ${!running[*]} did not end within $wait_s s and is killed" >&2
      end "${running[@]}"
    elif [[ -z "$waiting" ]] && ((SECONDS > limit - wait_s + 5)); then
      echo "$ended; waiting up to $((limit - SECONDS)) s for process ${!running[*]}" >&2
      waiting=1
    fi
  done
}

for ((attempt = 0; attempt <= ${RESTARTS:-0}; attempt++)); do
  if ((attempt)); then
    echo "exit code $first: started again, the run resumes from its newest checkpoint" >&2
  fi
  start "$@"
  supervise
  ((told)) && break
  [[ "$script" == train.py && "$first" =~ ^(69|70|134|137)$ ]] || break
done
exit "$first"
