# Sourced by `run` and `pay-x402`: what the lists beside this file pin, installed once into ${XDG_CACHE_HOME:-~/.cache}/tollgate/clients.

cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/tollgate/clients

# installed NAME FILE... COMMAND : a folder for these files' contents, made by COMMAND (which gets the folder) the first time.
installed() {
    local folder
    folder=$cache/$1-$(cat "${@:2:$#-2}" | sha256sum | cut -c1-16)
    if [ ! -e "$folder/complete" ]; then
        echo "installing the client for $1" >&2
        rm -rf "$folder"
        mkdir -p "$folder"
        # The shell's `-e` does not reach a function that is called for its output.
        if ! "${!#}" "$folder" >&2; then
            rm -rf "$folder"
            echo "could not install the client for $1" >&2
            return 1
        fi
        touch "$folder/complete"
    fi
    echo "$folder"
}

install_python() {
    python3 -m venv "$1" &&
        "$1/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement python/requirements.txt
}

install_node() {
    cp node/package.json node/package-lock.json node/.npmrc "$1" &&
        (cd "$1" && npm ci --no-audit --no-fund --loglevel=error)
}

# node_clients : the folder of the npm packages, with the programs beside them: Node looks for packages beside the file that names them.
node_clients() {
    local folder
    folder=$(installed node node/package.json node/package-lock.json install_node) || return
    cp node/*.mjs node/*.sol "$folder"
    echo "$folder"
}
