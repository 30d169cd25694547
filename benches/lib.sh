# What `benches/run`, `benches/instructions` and `benches/pgo` share: programs started on loopback and ended, and tollgate's instances
# among them. Read by them, not run. They set `rig` (the program) and `tollgate` (the program, or nothing for the gateway inside the rig)
# before they start anything.

bench_key=sk-bench-0123456789abcdef
out=$(mktemp -d)
chmod 755 "$out"
pids=()
gateway_core=() load_core=()
listen_secs_max=10

say() { printf '%s\n' "$*" >&2; }

end_programs() {
    local pid
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    pids=()
}

finish() {
    end_programs
    if [ -n "${KEEP:-}" ]; then say "left in place: $out"; else rm -rf "$out"; fi
}
trap finish EXIT

wait_for() { # port, name
    local attempt
    for attempt in $(seq $((listen_secs_max * 20))); do
        (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return 0
        sleep 0.05
    done
    say "$2 does not listen; its output:"
    cat "$out/$2"/*.log "$out/$2.log" >&2 2>/dev/null || true
    exit 1
}

start() { # name, port, command...
    local name=$1 port=$2
    shift 2
    "$@" >"$out/$name.log" 2>&1 &
    pids+=($!)
    wait_for "$port" "$name"
}

targets=()
target() { # name, port, tls port or nothing, key, pid or nothing
    local tls=null pid=${5:-}
    [ -z "$3" ] || tls="\"127.0.0.1:$3\""
    targets+=("{\"name\":\"$1\",\"address\":\"127.0.0.1:$2\",\"tls_address\":$tls,\"ca_file\":\"$out/ca.pem\",\"key\":\"$4\",\"pids\":[$pid]}")
}

load() { "${load_core[@]}" "$rig" "$@"; }

start_provider() {
    provider_port=$("$rig" ports 1)
    "$rig" certificate "$out"
    start provider "$provider_port" "${load_core[@]}" "$rig" provider --port "$provider_port"
}

. benches/nginx.sh
. benches/tollgate.sh
