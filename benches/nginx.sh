# nginx's part of `benches/lib.sh`. Read by it, not run.

nginx_modules=/usr/lib/nginx/modules

start_nginx() { # name, port, tls port, configuration, program...
    local dir=$out/$1 name=$1 port=$2 tls=$3 conf=$4
    shift 4
    mkdir "$dir"
    local file
    for file in "$conf" common.conf; do
        sed -e "s|@DIR@|$dir|g; s|@CERT@|$out|g; s|@PORT@|$port|g; s|@TLS_PORT@|$tls|g" \
            -e "s|@PROVIDER@|$provider_port|g; s|@KEY@|$bench_key|g" "benches/nginx/$file" >"$dir/$file"
    done
    cp benches/nginx/gateway.lua "$dir"
    # Modules stand beside the configuration files, as they do for the system's own nginx.
    ln -s $nginx_modules "$dir/modules"
    chmod -R a+rX "$dir"
    start "$name" "$port" "${gateway_core[@]}" "$@" -p "$dir" -c "$dir/$conf" -e "$dir/error.log"
    target "$name" "$port" "$tls" "$bench_key" "${pids[-1]}"
}
