# Varnish's part of `benches/run`: one instance that keeps no log, one whose requests are logged. Read by it, not run.

start_varnish() { # name, port
    local dir=$out/$1
    mkdir "$dir"
    sed -e "s|@PROVIDER@|$provider_port|g; s|@KEY@|$bench_key|g" benches/varnish/hits.vcl >"$dir/hits.vcl"
    start "$1" "$2" "${gateway_core[@]}" varnishd -F -n "$dir/work" -f "$dir/hits.vcl" -a "127.0.0.1:$2" -s malloc,64m \
        -p thread_pools=1 -p thread_pool_min=100 -p timeout_idle=600
}

mapfile -t varnish_ports < <("$rig" ports 2)
tollgate_target=
for one in "${targets[@]}"; do
    case $one in *'"name":"tollgate",'*) tollgate_target=$one ;; esac
done
targets=()
start_varnish varnish "${varnish_ports[0]}"
target varnish "${varnish_ports[0]}" "" "$bench_key" "${pids[-1]}"
start_varnish varnish-log "${varnish_ports[1]}"
varnish_pid=${pids[-1]}
"${gateway_core[@]}" varnishncsa -n "$out/varnish-log/work" -w "$out/varnish-log/access.log" 2>"$out/varnishncsa.log" &
pids+=($!)
target varnish-log "${varnish_ports[1]}" "" "$bench_key" "$varnish_pid,${pids[-1]}"
targets+=("$tollgate_target")
(IFS=,; printf '[%s]\n' "${targets[*]}") >"$out/hits.json"

measure_hits() {
    varnishd -V 2>&1 | head -1
    load compare --targets "$out/hits.json" --workload hits --rounds "$rounds" --requests $((40000 / scale)) \
        --in-flight "$in_flight" --base varnish
}
