# Runs a Slurm script as Slurm does: as a file, by its own first line, once on each machine, with Slurm's variables and
# with the commands `srun` and `scontrol` in the PATH. The text is all three programs; its first argument says which:
#
#   bash -c TEXT NAME start INTERPRETER ARGUMENT INPUT COUNT PIECE... WORD...
#                                                   runs the script, COUNT pieces put together, with the words
#   . commands srun OPTIONS COMMAND...              starts the tasks of this machine, and waits for them
#   . commands scontrol show hostnames|hostlist|job ..., or: scontrol requeue JOB
#   . commands refuse COMMAND WHY                   fails the job: a script, or a program of it, called another command
#
# The table of srun's options has rows NAME:SHORT:VALUE:ANSWER, where VALUE is ! (none), = (one) or
# ? (only behind a =), and ANSWER is h (obeyed here), n (means nothing here) or r (refused).
srun_options="@SRUN_OPTIONS@"
# Rows COMMAND:WHY of commands that nothing is done for.
refused_commands=@REFUSED_COMMANDS@

complain() {
  printf '%s: error: %s\n' "$1" "$2" >&2
}

# ------------------------------------------------------------------------------------------------ the job

start() {
  local interpreter=$1 argument=$2 input=$3 count=$4 folder code=0
  shift 4
  for folder in "${TMPDIR:-/tmp}" /tmp /var/tmp /dev/shm; do
    WALRAS_SLURM=$(mktemp -d "$folder/walras-job-XXXXXXXX" 2>/dev/null) || continue
    forget_dead_jobs "$folder"
    place_files "${@:1:count}" && "$WALRAS_SLURM/bin/scontrol" ping && break
    rm -rf "$WALRAS_SLURM"
    WALRAS_SLURM=
  done
  if [ -z "$WALRAS_SLURM" ]; then
    complain walras "no folder for temporary programs: /tmp is full, or forbids to execute"
    return 126
  fi
  [[ $0 == /* ]] && WALRAS_SLURM_COMMAND=$0 || WALRAS_SLURM_COMMAND=$PWD/$0
  export WALRAS_SLURM WALRAS_SLURM_COMMAND PATH="$WALRAS_SLURM/bin:$PATH" WALRAS_SLURM_PORT=${MASTER_PORT:-}
  export WALRAS_BASH_ENV=${BASH_ENV:-} BASH_ENV=$WALRAS_SLURM/bash_env
  set_variables
  # No trap here or in srun: who stops a job signals its programs, and shells that have a trap as well.
  # The kernel gives an interpreter at most one argument.
  (
    echo $BASHPID > "$WALRAS_SLURM/process"
    exec "$interpreter" ${argument:+"$argument"} "$WALRAS_SLURM/slurm_script" "${@:count + 1}"
  ) < "$input" || code=$?
  if [ -e "$WALRAS_SLURM/requeue" ]; then
    code=85
  elif [ "$code" = 0 ] && [ -e "$WALRAS_SLURM/refused" ]; then
    complain walras "the script ended well, but this was not done: $(head -n1 "$WALRAS_SLURM/refused")"
    code=1
  fi
  rm -rf "$WALRAS_SLURM"
  return "$code"
}

# Removes what jobs of this user left that were killed.
forget_dead_jobs() {
  local file pid
  for file in "$1"/walras-job-*/process; do
    # Without a number it is being written.
    [ -O "$file" ] && read -r pid < "$file" && ! kill -0 "$pid" && rm -rf "${file%/process}"
  done 2> /dev/null
}

place_files() {
  local name why
  mkdir "$WALRAS_SLURM/bin" && printf '%s' "$@" > "$WALRAS_SLURM/slurm_script" || return
  printf '%s\n' "$BASH_EXECUTION_STRING" > "$WALRAS_SLURM/commands" || return
  cat > "$WALRAS_SLURM/bash_env" << 'END' || return
# Login shells (`#!/bin/bash -l`) begin with a PATH of their own, and scripts set one.
{
  [ -z "${WALRAS_BASH_ENV:-}" ] || . "$WALRAS_BASH_ENV"
  case ${PATH:-} in "$WALRAS_SLURM/bin:"*) ;; *) PATH=$WALRAS_SLURM/bin:${PATH:-} ;; esac
  command_not_found_handle() {
    case $1 in s*) [ ! -x "$WALRAS_SLURM/bin/$1" ] || exec "$WALRAS_SLURM/bin/$1" "${@:2}" ;; esac
    printf '%s: line %s: %s: command not found\n' "$0" "${BASH_LINENO[0]}" "$1" >&2
    return 127
  }
} 2> /dev/null
END
  for name in srun scontrol; do
    printf '#!%s\n. %q %s "$@"\n' "$BASH" "$WALRAS_SLURM/commands" "$name" > "$WALRAS_SLURM/bin/$name" || return
  done
  while IFS=: read -r name why; do
    [ -z "$name" ] || printf '#!%s\n. %q refuse %q %q\n' "$BASH" "$WALRAS_SLURM/commands" "$name" "$why" > "$WALRAS_SLURM/bin/$name" || return
  done <<< "$refused_commands"
  chmod 700 "$WALRAS_SLURM/slurm_script" "$WALRAS_SLURM/bin/"*
}

# What depends on the script alone (SLURM_NTASKS, SLURM_CPUS_PER_TASK) came with the job's variables.
set_variables() {
  local nodes=${WALRAS_NODE_ADDRESSES:-} rank=${WALRAS_NODE_RANK:-0} count=${WALRAS_NUM_NODES:-1} each gpus
  if [ -z "$nodes" ]; then
    nodes=${MASTER_ADDR:-127.0.0.1}
    for ((each = 1; each < count; each++)); do nodes+=",node-$each"; done
  fi
  IFS=, read -ra each <<< "$nodes"
  gpus=$(seq -s, 0 $((${WALRAS_GPUS_PER_NODE:-1} - 1)))
  [[ ${CUDA_VISIBLE_DEVICES:-} =~ ^[0-9]+(,[0-9]+)*$ ]] && gpus=$CUDA_VISIBLE_DEVICES
  export SLURM_JOB_ID=$WALRAS_JOB_ID SLURM_JOBID=$WALRAS_JOB_ID SLURM_JOB_NAME=$WALRAS_JOB_NAME
  export SLURM_JOB_NODELIST=$nodes SLURM_NODELIST=$nodes SLURMD_NODENAME=${each[rank]}
  export SLURM_NNODES=$count SLURM_JOB_NUM_NODES=$count SLURM_NODEID=$rank SLURM_PROCID=$rank SLURM_LOCALID=0
  export SLURM_GTIDS=$rank SLURM_TASK_PID=$$ SLURM_CLUSTER_NAME=walras
  export SLURM_GPUS_ON_NODE=${WALRAS_GPUS_PER_NODE:-1} SLURM_JOB_GPUS=$gpus
  export TMPDIR=${TMPDIR:-/tmp} SLURM_SUBMIT_DIR=$PWD SLURM_SUBMIT_HOST=${HOSTNAME:-localhost}
  export SLURM_JOB_USER=${USER:-$(id -un)} SLURM_JOB_UID=$UID SLURM_JOB_GID=${GROUPS[0]}
  export SLURM_TASKS_PER_NODE=${SLURM_TASKS_PER_NODE:-1} SLURM_CPUS_ON_NODE=${SLURM_CPUS_ON_NODE:-1}
  export SLURM_JOB_CPUS_PER_NODE=$SLURM_CPUS_ON_NODE
  if [ "$count" -gt 1 ]; then
    SLURM_TASKS_PER_NODE+="(x$count)" SLURM_JOB_CPUS_PER_NODE+="(x$count)"
  fi
  if [ "${WALRAS_ATTEMPT:-1}" -gt 1 ]; then
    export SLURM_RESTART_COUNT=$((WALRAS_ATTEMPT - 1))
  fi
  if [ -n "${WALRAS_ARRAY_INDEX:-}" ]; then
    export SLURM_ARRAY_JOB_ID=${WALRAS_ARRAY_ID:-$WALRAS_JOB_ID} SLURM_ARRAY_TASK_ID=$WALRAS_ARRAY_INDEX
    export SLURM_ARRAY_TASK_COUNT=$WALRAS_ARRAY_COUNT
    export SLURM_ARRAY_TASK_MIN=$WALRAS_ARRAY_MIN SLURM_ARRAY_TASK_MAX=$WALRAS_ARRAY_MAX
  fi
}

# The job fails if this was not done, also where the script looks at no exit code (`srun ... | tee log`).
refuse() {
  complain "$1" "$2"
  [ -z "${WALRAS_SLURM:-}" ] || printf '%s: %s\n' "$1" "$2" >> "$WALRAS_SLURM/refused"
  exit 1
}

# ------------------------------------------------------------------------------------------------ srun

declare -A given=()
declare -a pids=() claimed=() held=() filters=()
opened=

# Sets `option` to NAME:SHORT:VALUE:ANSWER of a long name or an unambiguous beginning of one.
find_long() {
  local row found=()
  for row in $srun_options; do
    case $row in
      "$1":*) option=$row && return ;;
      "$1"*) found+=("$row") ;;
    esac
  done
  [ ${#found[@]} = 1 ] || refuse srun "option '--$1' is unknown or ambiguous"
  option=${found[0]}
}

find_short() {
  local row
  for row in $srun_options; do
    case $row in *:"$1":*:*) option=$row && return ;; esac
  done
  refuse srun "invalid option -- '$1'"
}

take() {
  local name=${option%%:*}
  case ${option##*:} in
    r) refuse srun "--$name is not obeyed here" ;;
    h) given[$name]=$1 ;;
  esac
}

# Sets `given`, and `command` to what is left behind the options.
read_options() {
  local word name rest value
  while [ $# -gt 0 ]; do
    word=$1
    case $word in
      --) shift && break ;;
      --*)
        shift
        name=${word#--} && name=${name%%=*}
        find_long "$name"
        value=${option%:*} && value=${value##*:}
        if [[ $word == *=* ]]; then
          [ "$value" != '!' ] || refuse srun "option '--$name' doesn't allow an argument"
          take "${word#*=}"
        elif [ "$value" = '=' ]; then
          [ $# -gt 0 ] || refuse srun "option '--$name' requires an argument"
          take "$1" && shift
        else
          take yes
        fi
        ;;
      -?*)
        shift
        rest=${word#-}
        while [ -n "$rest" ]; do
          find_short "${rest:0:1}"
          rest=${rest:1}
          value=${option%:*} && value=${value##*:}
          if [ "$value" = '!' ]; then
            take yes
          elif [ -n "$rest" ]; then
            take "$rest" && rest=
          elif [ "$value" = '?' ]; then
            take yes
          else
            [ $# -gt 0 ] || refuse srun "option '-${word: -1}' requires an argument"
            take "$1" && shift
          fi
        done
        ;;
      *) break ;;
    esac
  done
  command=("$@")
}

number() {
  local text=${given[$1]:-$2}
  [[ $text =~ ^[0-9]{1,6}(-[0-9]{1,6})?$ ]] || refuse srun "--$1=$text is no number"
  echo $((10#${text%%-*}))
}

# Sets the machines of the step, the number of its tasks, and which of them are this machine's.
lay_out() {
  local all chosen=() hosts=() each want index per=${given[ntasks-per-node]:-}
  mapfile -t all < <(expand "$SLURM_JOB_NODELIST")
  nodes=$(number nodes "${SLURM_NNODES:-${#all[@]}}") || exit
  if [ -n "${given[ntasks]:-}" ]; then
    tasks=$(number ntasks 1) || exit
  elif [ -n "${SLURM_NTASKS:-${SLURM_NPROCS:-}}" ]; then
    tasks=${SLURM_NTASKS:-$SLURM_NPROCS}
    [ -z "$per" ] || [ "$tasks" = $((per * nodes)) ] ||
      echo "srun: Warning: can't honor --ntasks-per-node=$per: the job has $tasks tasks; give --ntasks too" >&2
  else
    tasks=$(($(number ntasks-per-node 1) * nodes)) || exit
  fi
  if [ "$tasks" -lt "$nodes" ]; then
    [ "$nodes" = "${SLURM_NNODES:-1}" ] && [ -z "${given[nodes]:-}" ] &&
      echo "srun: Warning: can't run $tasks processes on $nodes nodes, setting nnodes to $tasks" >&2
    nodes=$tasks
  fi
  [ "$nodes" -le ${#all[@]} ] || refuse srun "the job has ${#all[@]} machines, and the step asks for $nodes"
  [ "$nodes" = "$tasks" ] || [ "$nodes" = 1 ] || [[ ! ${given[distribution]:-} =~ ^(cyclic|plane|arbitrary) ]] ||
    refuse srun "--distribution=${given[distribution]} is not obeyed here: machines have blocks of tasks"
  # Machines are told apart by their numbers: several agents of one machine have one address.
  for want in $(expand "${given[nodelist]:-}") ''; do
    each=
    for ((index = $(number relative 0); index < ${#all[@]}; index++)); do
      [[ -n $want && ${all[index]} != "$want" || " ${chosen[*]} " == *" $index "* ]] && continue
      expand "${given[exclude]:-}" | grep -qxF -- "${all[index]}" && continue
      [ ${#chosen[@]} -ge "$nodes" ] || chosen+=("$index")
      each=$want
      [ -z "$want" ] || break
    done
    [ "$each" = "$want" ] || refuse srun "machine $want is none of the job's: ${all[*]}"
  done
  [ ${#chosen[@]} = "$nodes" ] || refuse srun "the step asks for $nodes machines, and ${#chosen[@]} are left to it"
  mapfile -t chosen < <(printf '%s\n' "${chosen[@]}" | sort -n)
  first_task=0 here=0 node=-1
  for index in "${chosen[@]}"; do hosts+=("${all[index]}"); done
  for ((index = 0; index < ${#chosen[@]}; index++)); do
    here=$((tasks / nodes + (index < tasks % nodes)))
    node=$index
    [ "${chosen[index]}" = "${WALRAS_NODE_RANK:-0}" ] && break
    first_task=$((first_task + here))
    node=-1 here=0
  done
  step_hosts=$(IFS=, && echo "${hosts[*]}")
  tasks_per_node=$(repeated $((tasks / nodes + 1)) $((tasks % nodes))),$(repeated $((tasks / nodes)) $((nodes - tasks % nodes)))
  tasks_per_node=${tasks_per_node#,}
}

# Prints VALUE COUNT as 2(x3); nothing for none.
repeated() {
  case $2 in 0) ;; 1) echo "$1" ;; *) echo "$1(x$2)" ;; esac
}

# Other machines learn an address of the step's machine where they would start it (`srun -w HEAD hostname -I`).
answer_from_afar() {
  [ "$nodes" = 1 ] && [ "${command[0]##*/}" = hostname ] && echo "$step_hosts"
  exit 0
}

step_number() {
  local number=0
  until (set -C && : > "$WALRAS_SLURM/step.$number") 2>/dev/null; do number=$((number + 1)); done
  echo "$number"
}

# Sets `gpus_here`: how many of the machine's accelerators the step asks for; empty: it has them all.
ask_for_gpus() {
  local text=${given[gres]:-} per=1
  gpus_here=
  if [[ ,$text == *,gpu* ]]; then
    text=${text#*gpu} && text=${text%%,*} && text=${text##*:} && gpus_here=${text:-1}
    [[ $gpus_here =~ ^[0-9]+$ ]] || gpus_here=1
  elif [ -n "${given[gpus-per-node]:-}" ]; then
    gpus_here=${given[gpus-per-node]##*:}
  elif [ -n "${given[gpus]:-}" ]; then
    gpus_here=$((${given[gpus]##*:} / nodes))
  elif [ -n "${given[gpus-per-task]:-}" ]; then
    gpus_here=$((${given[gpus-per-task]##*:} * here))
  elif [ "$text" = none ]; then
    gpus_here=0
  fi
}

# claim KIND WANTED TOTAL: waits until so many are free of other steps, and makes them this step's: `claimed`.
claim() {
  local index file told= born own
  birth $$ && own=$WALRAS_SLURM/holder.$$.$born
  echo "$$.$born" > "$own" || refuse srun "$own cannot be written"
  while :; do
    claimed=()
    for ((index = 0; index < $3 && ${#claimed[@]} < $2; index++)); do
      file=$WALRAS_SLURM/$1.$index
      hold "$file" && claimed+=("$index") && held+=("$file")
    done
    [ ${#claimed[@]} -lt "$2" ] || return 0
    give_back # so that two steps that wait never hold each other's
    [ -n "$told" ] || echo "srun: Job $SLURM_JOB_ID step creation temporarily disabled, retrying (Requested nodes are busy)" >&2
    told=yes
    sleep 0.2
  done
}

# Makes a file this step's unless a living one has it. What a dead HOLDER left is removed by who holds FILE.HOLDER alone:
# otherwise a step removes what another has claimed since.
hold() {
  local holder
  if { read -r holder < "$1"; } 2> /dev/null; then
    birth "${holder%.*}"
    [ "$born" != "${holder#*.}" ] && hold "$1.$holder" && [ "$(< "$1")" = "$holder" ] && rm -f "$1" || return
  fi 2> /dev/null
  ln "$own" "$1" 2> /dev/null
}

# Sets `born` to the instant at which a process began, which tells it from a later one of its number; "" if it has ended.
birth() {
  local stat words
  born=
  { read -r stat < "/proc/$1/stat"; } 2> /dev/null || return 0
  read -ra words <<< "${stat##*) }"
  [ "${words[0]}" = Z ] || born=${words[19]}
}

give_back() {
  [ ${#held[@]} = 0 ] || rm -f "${held[@]}"
  held=()
}

# A step has all cores of the job's machine to itself, with --exact those that it asks for. Steps that ask for
# accelerators wait for these alone. On several machines two steps might each have won one of them.
claim_cores() {
  local total=$SLURM_CPUS_ON_NODE wanted
  [ -z "$gpus_here${given[overlap]:-}" ] && [ "$SLURM_JOB_NUM_NODES" = 1 ] &&
    [ -n "${SLURM_NTASKS:-}${SLURM_CPUS_PER_TASK:-}" ] || return 0
  wanted=$((here * ${given[cpus-per-task]:-${SLURM_CPUS_PER_TASK:-1}}))
  [ -n "${given[exact]:-}${given[exclusive]:-}" ] && [ "$wanted" -lt "$total" ] || wanted=$total
  claim core "$wanted" "$total"
}

claim_gpus() {
  local total=$SLURM_GPUS_ON_NODE wanted=$1 index all mine=()
  [ -n "$wanted" ] && [ -z "${given[overlap]:-}" ] || return 0
  [[ $wanted =~ ^[0-9]{1,4}$ ]] && [ "$wanted" -le "$total" ] ||
    refuse srun "Unable to create step for job $SLURM_JOB_ID: Invalid generic resource (gres) specification"
  IFS=, read -ra all <<< "${CUDA_VISIBLE_DEVICES:-}"
  [ "$wanted" = 0 ] || [ ${#all[@]} = 0 ] || [ ${#all[@]} -ge "$total" ] ||
    refuse srun "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES leaves out some of the $total accelerators that steps share"
  claim gpu "$wanted" "$total"
  [ ${#all[@]} = 0 ] && return
  for index in "${claimed[@]}"; do mine+=("${all[index]}"); done
  export CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${mine[*]}")
}

# Options that a variable gives where the command line does not.
read_variables() {
  local pair name value
  for pair in label=SLURM_LABELIO wait=SLURM_WAIT kill-on-bad-exit=SLURM_KILL_BAD_EXIT export=SLURM_EXPORT_ENV \
    export=SRUN_EXPORT_ENV overlap=SLURM_OVERLAP exact=SLURM_EXACT gpu-bind=SLURM_GPU_BIND \
    cpus-per-task=SRUN_CPUS_PER_TASK gpus-per-task=SLURM_GPUS_PER_TASK; do
    name=${pair%=*} value=${pair#*=} && value=${!value:-0}
    [ "$value" = 0 ] || [ -n "${given[$name]:-}" ] || given[$name]=$value
  done
}

srun() {
  local nodes tasks here node first_task step_hosts tasks_per_node step gpus_here input=/dev/stdin local_id code=0 worst=0 option command
  read_options "$@"
  read_variables
  [ ${#command[@]} -gt 0 ] || { echo "srun: fatal: No command given to execute." >&2 && exit 1; }
  [[ ${given[jobid]:-$SLURM_JOB_ID} == "$SLURM_JOB_ID" ]] ||
    refuse srun "Unable to confirm allocation for job ${given[jobid]}: it is another job"
  lay_out
  [ "$node" -ge 0 ] || answer_from_afar
  # Where the script says how many tasks there are, the job has no more cores than these need.
  [ -n "${given[overcommit]:-}${SLURM_OVERCOMMIT:-}" ] || [ -z "${SLURM_NTASKS:-}" ] ||
    [ $((here * 10#${given[cpus-per-task]:-1})) -le "$SLURM_CPUS_ON_NODE" ] ||
    refuse srun "Unable to create step for job $SLURM_JOB_ID: More processors requested than permitted"
  step=$(step_number)
  ask_for_gpus
  claim_cores
  claim_gpus "$gpus_here"
  case ${given[input]:-} in
    none | /dev/null) input=/dev/null ;;
    '' | all | [0-9]*) ;;
    *) input=$(file_name "${given[input]}" 0) ;;
  esac
  # Each task reads the whole input, and a step leaves none of it to what comes after it (`while read ...; done < list`).
  if [ "$input" = /dev/stdin ] && [ "$(readlink /proc/self/fd/0)" != /dev/null ] &&
    { [ "$here" -gt 1 ] || { [ -f /dev/stdin ] && [ "$(stat -Lc %s /dev/stdin)" -lt 1000000 ]; }; }; then
    input=$WALRAS_SLURM/input.$step
    cat > "$input"
  fi
  if [ "$here" = 1 ] && [ -z "${given[label]:-}${given[output]:-}${given[error]:-}" ]; then
    local_id=0
    [ "$input" = /dev/stdin ] || exec < "$input"
    task # srun becomes the command
  fi
  for signal in INT HUP USR1 USR2; do trap 'pass_on '$signal $signal; done
  exec 3<&0
  for ((local_id = 0; local_id < here; local_id++)); do
    [ "$input" = /dev/stdin ] || exec 3< "$input"
    [[ ! ${given[input]:-} =~ ^[0-9]+$ || ${given[input]} = $((first_task + local_id)) ]] || exec 3< /dev/null
    open_streams $((first_task + local_id))
    task <&3 >&4 2>&5 3<&- 4>&- 5>&- &
    pids+=($!)
  done
  exec 3<&- 4>&- 5>&-
  wait_for_tasks
  [ ${#filters[@]} = 0 ] || wait "${filters[@]}"
  give_back
  rm -f "$WALRAS_SLURM/input.$step"
  exit "$worst"
}

# Opens 4 and 5 for the output and the errors of a task: --output, --error, --label. What a relative file gets is in the
# job's log as well, because the folder goes when the job ends.
open_streams() {
  local id=$1 last=$((tasks - 1)) label= out=${given[output]:-all} err=${given[error]:-}
  [ -z "${given[label]:-}" ] || label=$(printf '%*d: ' ${#last} "$id")
  open_stream 4 1 "$out" "$label" "$id"
  case $err in
    '') if [[ $out == all || $out =~ ^[0-9]+$ ]]; then open_stream 5 2 all "$label" "$id"; else exec 5>&4; fi ;;
    *) open_stream 5 2 "$err" "$label" "$id" ;;
  esac
}

# open_stream DESCRIPTOR OWN FILE LABEL TASK
open_stream() {
  local file=$3 label=$4 keep=cat before=
  case $file in
    none) file=/dev/null ;;
    *[!0-9]*) [ "$file" = all ] && file= || file=$(file_name "$file" "$5") ;;
    *) [ "$file" = "$5" ] && file= || file=/dev/null ;;
  esac
  if [ -n "$file" ]; then
    # Tasks that share a file all append to it; the step began it anew.
    case ${given[open-mode]:-t}:$opened in a*:* | *:*"|$file|"*) ;; *) : > "$file" || exit 1 ;; esac
    opened+="|$file|"
    [[ $file == /* ]] && keep='cat >> "$file"' || keep='tee -a -- "$file"'
  elif [ -z "$4" ]; then
    eval "exec $1>&$2"
    return
  fi
  [ -z "$4" ] || before='sed -u "s/^/$label/" | '
  eval "exec $1> >(trap '' TERM INT HUP; exec >&$2; $before$keep)" && filters+=($!)
}

pass_on() {
  [ ${#pids[@]} = 0 ] || kill -s "$1" "${pids[@]}" 2>/dev/null
}

# Sets `worst` to the highest exit code, which is srun's own.
wait_for_tasks() {
  local index code left=${#pids[@]} seconds=${given[wait]:-0} clock=
  if [ "$seconds" != 0 ]; then
    until some_task_ended; do wait -n; done
    (sleep "$seconds" && pass_on KILL) > /dev/null 2>&1 & # else who reads the step's output waits for its sleep
    clock=$!
  fi
  if [[ ${given[kill-on-bad-exit]:-0} != 0 ]]; then
    while [ "$left" -gt 0 ] && wait -n; do left=$((left - 1)); done
    [ "$left" = 0 ] || pass_on TERM
  fi
  for index in "${!pids[@]}"; do
    wait "${pids[index]}" && code=0 || code=$?
    while kill -0 "${pids[index]}" 2>/dev/null; do # a signal ended the wait, and not the task
      wait "${pids[index]}" && code=0 || code=$?
    done
    [ "$code" = 0 ] && continue
    echo "srun: error: $SLURMD_NODENAME: task $((first_task + index)): Exited with exit code $code" >&2
    [ "$code" -gt "$worst" ] && worst=$code
  done
  [ -z "$clock" ] || kill "$clock" 2>/dev/null
}

some_task_ended() {
  local pid
  for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null || return 0; done
  return 1
}

# %j job, %s step, %J both, %t task, %n and %N machine, %x name, %u user
file_name() {
  local text=$1 made= digits value
  while [[ $text =~ ^([^%]*)%([0-9]{0,2})(.)(.*)$ ]]; do
    made+=${BASH_REMATCH[1]} digits=${BASH_REMATCH[2]} text=${BASH_REMATCH[4]}
    case ${BASH_REMATCH[3]} in
      j | A) value=$SLURM_JOB_ID ;;
      a) value=${SLURM_ARRAY_TASK_ID:-4294967294} ;;
      s) value=$step ;;
      J) value=$SLURM_JOB_ID.$step ;;
      t) value=$2 ;;
      n) value=$node ;;
      N) value=$SLURMD_NODENAME ;;
      x) value=$SLURM_JOB_NAME ;;
      u) value=$SLURM_JOB_USER ;;
      %) value=% ;;
      *) value=%$digits${BASH_REMATCH[3]} ;;
    esac
    [[ -n $digits && $value =~ ^[0-9]+$ ]] && value=$(printf '%0*d' "$((10#$digits))" "$value")
    made+=$value
  done
  echo "$made$text"
}

# One task, in a process of its own that becomes the command.
task() {
  local id=$((first_task + local_id))
  trap - INT HUP USR1 USR2
  # A launcher (torchrun) is started once on a machine with several accelerators, and has no rank itself.
  if [ "$here" -gt 1 ] || [ "$SLURM_GPUS_ON_NODE" -le 1 ]; then
    export RANK=$id LOCAL_RANK=$local_id WORLD_SIZE=$tasks LOCAL_WORLD_SIZE=$here
  fi
  # Machines that each chose an address or a port would never meet.
  [ "$SLURM_JOB_NUM_NODES" = 1 ] || export MASTER_ADDR=$WALRAS_MASTER_ADDR MASTER_PORT=$WALRAS_SLURM_PORT
  [ -n "${MASTER_ADDR:-}" ] || export MASTER_ADDR=$WALRAS_MASTER_ADDR
  bind_gpus
  export SLURM_PROCID=$id SLURM_LOCALID=$local_id SLURM_NODEID=$node SLURM_STEP_ID=$step SLURM_STEPID=$step
  export SLURM_NTASKS=$tasks SLURM_NPROCS=$tasks SLURM_NNODES=$nodes
  export SLURM_STEP_NUM_TASKS=$tasks SLURM_STEP_NUM_NODES=$nodes SLURM_STEP_NODELIST=$step_hosts
  export SLURM_TASKS_PER_NODE=$tasks_per_node SLURM_GTIDS=$(seq -s, "$first_task" $((first_task + here - 1)))
  [ -z "$gpus_here" ] || export SLURM_GPUS_ON_NODE=$gpus_here
  export SLURM_STEP_TASKS_PER_NODE=$SLURM_TASKS_PER_NODE SLURM_TASK_PID=$BASHPID SLURM_LAUNCH_NODE_IPADDR=$WALRAS_MASTER_ADDR
  [ -z "${given[cpus-per-task]:-}" ] || export SLURM_CPUS_PER_TASK=${given[cpus-per-task]}
  [ -z "${given[job-name]:-}" ] || export SLURM_JOB_NAME=${given[job-name]}
  set_exported
  if [ -n "${given[chdir]:-}" ]; then
    cd "${given[chdir]}" || exit 1
  fi
  # What is not in the PATH may be in the step's folder.
  [[ ${command[0]} != */* && -f ${command[0]} && -x ${command[0]} ]] && ! type -P -- "${command[0]}" > /dev/null &&
    command[0]=./${command[0]}
  if [ -n "${given[time]:-}" ]; then
    command=(timeout "$(seconds_of "${given[time]}")" "${command[@]}")
  fi
  if [ -z "$(type -P -- "${command[0]}")" ]; then
    [ -e "${command[0]}" ] && complain srun "execve(): ${command[0]}: Permission denied" && exit 13
    complain srun "execve(): ${command[0]}: No such file or directory" && exit 2
  fi
  exec -- "${command[@]}"
}

# Leaves a task the accelerators that are bound to it: --gpu-bind, or what --gpus-per-task or --ntasks-per-gpu implies.
bind_gpus() {
  local per=${given[gpus-per-task]:-} bind=${given[gpu-bind]:-} number='0*([1-9][0-9]{0,3})$' all map
  IFS=, read -ra all <<< "${CUDA_VISIBLE_DEVICES:-}"
  [ ${#all[@]} -gt 0 ] || return 0
  bind=${bind#v,} bind=${bind#verbose,}
  [[ -z $bind || $bind == closest ]] && [ -n "$per" ] && bind=per_task:${per##*:}
  [ -n "$bind" ] || [ -z "${SLURM_NTASKS_PER_GPU:-}" ] || bind=single:$SLURM_NTASKS_PER_GPU
  if [[ $bind =~ ^per_task:$number ]]; then
    all=("${all[@]:local_id * BASH_REMATCH[1]:BASH_REMATCH[1]}")
  elif [[ $bind =~ ^single:$number ]]; then
    all=("${all[local_id / BASH_REMATCH[1] % ${#all[@]}]}")
  elif [[ $bind =~ ^map_gpu:([0-9]{1,4}(,[0-9]{1,4})*)$ ]]; then
    IFS=, read -ra map <<< "${BASH_REMATCH[1]}" && all=("${all[10#${map[local_id % ${#map[@]}]}]}")
  elif [[ $bind == map_gpu* || -n $bind && $bind != none && $here -gt 1 && ${#all[@]} -gt 1 ]]; then
    refuse srun "--gpu-bind=$bind is not obeyed here"
  fi
  [ -n "${all[*]}" ] || refuse srun "--gpu-bind=$bind leaves task $((first_task + local_id)) no accelerator"
  export CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${all[*]}")
}

# --export=NONE, ALL, ALL,NAME=VALUE, NAME,NAME=VALUE; a comma in quotes separates nothing
set_exported() {
  local names=() name rest=${given[export]:-} part="^(([^,'\"]|'[^']*'|\"[^\"]*\")+),*"
  [ -n "$rest" ] || return 0
  while [[ $rest =~ $part ]]; do
    names+=("${BASH_REMATCH[1]}")
    rest=${rest#"${BASH_REMATCH[0]}"}
  done
  [ -z "$rest" ] || refuse srun "--export=${given[export]}: a quotation mark is never closed"
  case ,${given[export]}, in
    *,ALL,*) ;;
    *)
      for name in $(compgen -e); do
        case $name in
          SLURM_* | SLURMD_* | WALRAS_* | CUDA_* | MASTER_* | *RANK | *WORLD_SIZE) ;;
          *) [[ ",${given[export]}," == *",$name,"* ]] || export -n "$name" ;;
        esac
      done
      ;;
  esac
  for name in "${names[@]}"; do
    [[ $name != *=* ]] || export "$name"
  done
}

seconds_of() {
  local days=0 text=$1 parts
  [[ $text =~ ^([0-9]+-)?[0-9]+(:[0-9]+){0,2}$ ]] || refuse srun "Invalid --time specification"
  [[ $text == *-* ]] && days=${text%%-*} && text=${text#*-}
  IFS=: read -ra parts <<< "$text"
  if [[ $1 == *-* ]] || [ ${#parts[@]} = 3 ]; then
    echo $((((10#$days * 24 + 10#${parts[0]}) * 60 + 10#${parts[1]:-0}) * 60 + 10#${parts[2]:-0}))
  else
    echo $((10#${parts[0]} * 60 + 10#${parts[1]:-0}))
  fi
}

# ------------------------------------------------------------------------------------------------ scontrol

scontrol() {
  local words=() word
  for word in "$@"; do [[ $word == -* ]] || words+=("$word"); done
  case ${words[0]:-} in
    ping) ;;
    show)
      case ${words[1]:-} in
        hostname | hostnames) expand "${words[2]-$SLURM_JOB_NODELIST}" ;;
        hostlist) fold "${words[2]:-}" ;;
        hostlistsorted) fold "$(expand "${words[2]:-}" | sort -V | paste -sd,)" ;;
        job | jobs | jobid)
          [[ " $* " =~ \ (-o|--oneliner)\  ]] && word=' ' || word='\n'
          show_job "${words[2]:-$SLURM_JOB_ID}" | paste -sd "$word"
          ;;
        *) refuse scontrol "\`scontrol show ${words[1]:-}\` is not known here" ;;
      esac
      ;;
    requeue)
      [ "${words[1]:-}" = "$SLURM_JOB_ID" ] || refuse scontrol "only a job itself can be queued again from within"
      : > "$WALRAS_SLURM/requeue"
      kill -TERM "$(cat "$WALRAS_SLURM/process")"
      ;;
    *) refuse scontrol "\`scontrol ${words[0]:-}\` is not known here" ;;
  esac
}

# Prints the names of n[1-3,05],x7,rack[1-2]n[1-2], one a line.
expand() {
  local list=$1
  while [[ $list =~ ^(([^][,]|\[[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*\])*)(,(.*))?$ ]]; do
    list=${BASH_REMATCH[7]}
    expand_name "${BASH_REMATCH[1]}"
    [ -n "$list" ] || return 0
  done
  refuse scontrol "Invalid hostlist: $1"
}

expand_name() {
  local range index number
  if [[ ! $1 =~ ^([^[]*)\[([0-9,-]+)\](.*)$ ]]; then
    [ -z "$1" ] || echo "$1"
    return
  fi
  local before=${BASH_REMATCH[1]} ranges=${BASH_REMATCH[2]} behind=${BASH_REMATCH[3]}
  for range in ${ranges//,/ }; do
    [ $((10#${range%-*})) -le $((10#${range#*-})) ] || refuse scontrol "Invalid hostlist: $1"
    for ((index = 10#${range%-*}; index <= 10#${range#*-}; index++)); do
      number=${range%-*}
      printf -v number '%0*d' ${#number} "$index"
      expand_name "$before$number$behind"
    done
  done
}

# Prints a1,a2,a5,b as a[1-2,5],b.
fold() {
  local name stem number before= first= last= ranges= made=()
  for name in $(expand "$1") ,; do
    stem=$name number=
    [[ $name =~ ^(.*[^0-9])([0-9]+)$ ]] && stem=${BASH_REMATCH[1]} number=${BASH_REMATCH[2]}
    if [ -n "$last" ] && [ -n "$number" ] && [ "$stem" = "$before" ] &&
      [ "$(printf '%0*d' ${#last} $((10#$number)))" = "$number" ]; then
      if [ $((10#$number)) = $((10#$last + 1)) ]; then
        last=$number
        continue
      fi
      ranges+=$(span "$first" "$last"),
    else
      [[ -n $ranges || $first != "$last" ]] && first="[$ranges$(span "$first" "$last")]"
      [ -z "$before" ] || made+=("$before$first")
      ranges=
    fi
    before=$stem first=$number last=$number
  done
  (IFS=, && echo "${made[*]}")
}

span() {
  [ "$1" = "$2" ] && echo "$1" || echo "$1-$2"
}

show_job() {
  [ "${1%%_*}" = "$SLURM_JOB_ID" ] || [ "${1%%_*}" = "${SLURM_ARRAY_JOB_ID:-}" ] || refuse scontrol "job $1 is another job"
  cat << END
JobId=$SLURM_JOB_ID JobName=$SLURM_JOB_NAME
   UserId=$SLURM_JOB_USER($SLURM_JOB_UID) GroupId=$(id -gn)($SLURM_JOB_GID)
   Account=${SLURM_JOB_ACCOUNT:-(null)} QOS=${SLURM_JOB_QOS:-(null)}
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=${SLURM_RESTART_COUNT:-0} BatchFlag=1 Reboot=0 ExitCode=0:0
   Partition=${SLURM_JOB_PARTITION:-(null)}
   NodeList=$SLURM_JOB_NODELIST
   BatchHost=$(expand "$SLURM_JOB_NODELIST" | head -n1)
   NumNodes=$SLURM_JOB_NUM_NODES NumTasks=${SLURM_NTASKS:-$SLURM_JOB_NUM_NODES} CPUs/Task=${SLURM_CPUS_PER_TASK:-1}
   Command=$WALRAS_SLURM_COMMAND
   WorkDir=$SLURM_SUBMIT_DIR
END
}

"$@"
