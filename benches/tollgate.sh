# tollgate's part of `benches/run`: two instances with one worker each, all filters on and none. Read by it, not run.

tollgate_config() { # file, port, tls port, admin port, database, further text
    cat >"$1" <<EOF
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
url = "sqlite:$5"

[[provider]]
name = "bench"
base_url = "http://127.0.0.1:$provider_port/v1"
api_key_env = "BENCH_PROVIDER_KEY"

[[model]]
id = "bench"
providers = [{ provider = "bench", model = "bench" }]
price = { input = "1", output = "2", request = "0" }

[limits.classes.free]
quota = 1000000000
window_secs = 60
burst = 1000000000
concurrent = 100000
$6
EOF
}

# The value of a member of a JSON object on standard input.
json_member() { sed -E 's/.*"'"$1"'" *: *"([^"]*)".*/\1/'; }

# Makes an account with credits and a key, whose secret it prints.
tollgate_key() { # configuration
    local account
    account=$("$tollgate" account create --config "$1" --json --email bench@example.com | json_member id)
    "$tollgate" credits grant --config "$1" --account "$account" --amount 1000000 --reference bench >&2
    "$tollgate" key create --config "$1" --json --account "$account" --name bench | json_member secret
}

measure_start() { say "start is not measured: there is no tollgate"; }

export BENCH_PROVIDER_KEY=provider-key
if [ -z "$tollgate" ] || ! "$tollgate" serve --help >/dev/null 2>&1; then
    say "tollgate is not measured: there is no binary that can serve"
else
    mkdir "$out/tollgate"
    tollgate_config "$out/tollgate.toml" "${ports[5]}" "${ports[6]}" "${ports[7]}" "$out/tollgate/books.db" ""
    key=$(tollgate_key "$out/tollgate.toml")
    start tollgate "${ports[5]}" "${gateway_core[@]}" "$tollgate" serve --config "$out/tollgate.toml"
    target tollgate "${ports[5]}" "${ports[6]}" "$key" "${pids[-1]}"

    mapfile -t bare_ports < <("$rig" ports 3)
    mkdir "$out/tollgate-bare"
    tollgate_config "$out/bare.toml" "${bare_ports[0]}" "${bare_ports[1]}" "${bare_ports[2]}" "$out/tollgate-bare/books.db" '
[[route]]
path = "/v1/chat/completions"
methods = ["POST"]
chain = []'
    if "$tollgate" check --config "$out/bare.toml" >"$out/bare.check" 2>&1; then
        start tollgate-bare "${bare_ports[0]}" "${gateway_core[@]}" "$tollgate" serve --config "$out/bare.toml"
        target "tollgate, no filters" "${bare_ports[0]}" "${bare_ports[1]}" "$key" "${pids[-1]}"
    else
        say "tollgate without filters is not measured: its settings do not allow an empty chain"
        sed 's/^/    /' "$out/bare.check" >&2
    fi
fi
