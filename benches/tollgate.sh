# tollgate's part of `benches/lib.sh`: three instances with one worker each, all filters on, all but the cache, and none. Read by it, not run.

tollgate_config() { # file, port, tls port, admin port, folder, chain of the completion route or nothing for the built-in one
    local traces=
    [ -z "${otlp_url:-}" ] || traces="otlp_url = \"$otlp_url\""
    cat >"$1" <<EOF
[service]
base_url = "http://localhost:$2"

[server]
workers = 1

[[listener]]
address = "127.0.0.1:$2"

[[listener]]
address = "127.0.0.1:$3"
tls = [{ certificate = "$out/cert.pem", key = "$out/key.pem" }]

[admin]
address = "127.0.0.1:$4"

[store]
url = "sqlite:$5/books.db"

[telemetry]
access_log = "$5/access.log"
$traces

[[provider]]
name = "bench"
base_url = "http://127.0.0.1:$provider_port/v1"
api_key_env = "BENCH_PROVIDER_KEY"

[[model]]
id = "bench"
providers = [{ provider = "bench", model = "bench" }]
price = { input = "1", output = "2", request = "0" }

# Full after the first thousands, as it is in a gateway that has run for a while; until then every answer takes memory that is new to
# the process.
[cache]
max_bytes = 16777216

# Counted like any other, and never refused.
[limits.classes.free]
quota = 1000000
window_secs = 1
concurrent = 1000000
EOF
    if [ -n "$6" ]; then
        cat >>"$1" <<EOF

[[route]]
path = "/v1/chat/completions"
methods = ["POST"]
chain = $6
EOF
        case $6 in *auth*) echo 'scope = "api:chat"' >>"$1" ;; esac
    fi
}

tollgate_ports() { mapfile -t "$1" < <("$rig" ports 3); }

export BENCH_PROVIDER_KEY=provider-key
start_tollgate() { # name, port, tls port, admin port, chain or nothing, program...
    local dir=$out/$1 name=$1 port=$2 tls=$3 key
    mkdir "$dir"
    tollgate_config "$dir/tollgate.toml" "$2" "$3" "$4" "$dir" "$5"
    key=$("$rig" prepare --database "$dir/books.db")
    shift 5
    start "$name" "$port" "${gateway_core[@]}" "$@" --config "$dir/tollgate.toml"
    target "$name" "$port" "$tls" "$key" "${pids[-1]}"
}

start_tollgates() {
    # The program itself where there is one; otherwise the same gateway inside the rig.
    serve=("$rig" gateway)
    if [ -n "$tollgate" ] && "$tollgate" serve --help >/dev/null 2>&1; then
        serve=("$tollgate" serve)
    fi
    say "tollgate is run by: ${serve[*]}"
    local ports chain='["address-limit", "auth", "rate-limit", "completions", "idempotency", "meter"]'
    tollgate_ports ports
    start_tollgate tollgate "${ports[@]}" "" "${serve[@]}"
    tollgate_ports ports
    start_tollgate tollgate-no-cache "${ports[@]}" "$chain" "${serve[@]}"
    tollgate_ports ports
    start_tollgate tollgate-no-filters "${ports[@]}" '["pass"]' "$rig" gateway
}

measure_start() {
    local dir=$out/start ports key
    mkdir "$dir"
    tollgate_ports ports
    tollgate_config "$dir/tollgate.toml" "${ports[@]}" "$dir" ""
    say "making 100,000 accounts with keys and credits"
    key=$("$rig" prepare --database "$dir/books.db" --accounts 100000)
    printf '\n### Start with 100,000 accounts and keys\n\n'
    "$rig" start --address "127.0.0.1:${ports[0]}" --key "$key" -- "${serve[@]}" --config "$dir/tollgate.toml" 2>"$out/start.log"
}

# Two models: the first provider of one serves, that of the other refuses every connection and is never given up on.
measure_failover() {
    local dir=$out/failover ports key nowhere
    mkdir "$dir"
    tollgate_ports ports
    nowhere=$("$rig" ports 1)
    tollgate_config "$dir/tollgate.toml" "${ports[@]}" "$dir" ""
    cat >>"$dir/tollgate.toml" <<EOF

[upstream.budget]
percent = 100
per_sec = 1000
burst = 10000

[[provider]]
name = "nowhere"
base_url = "http://127.0.0.1:$nowhere/v1"
health = { failures = 1000 }

[[model]]
id = "bench-failover"
providers = [{ provider = "nowhere", weight = 1 }, { provider = "bench", model = "bench", weight = 0 }]
price = { input = "1", output = "2", request = "0" }
EOF
    key=$("$rig" prepare --database "$dir/books.db")
    start failover "${ports[0]}" "${gateway_core[@]}" "${serve[@]}" --config "$dir/tollgate.toml"
    load failover --address "127.0.0.1:${ports[0]}" --key "$key" --model bench-failover --requests $((2000 / scale))
}
