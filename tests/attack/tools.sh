# shellcheck shell=bash disable=SC2154
# The attack's tools, from PyPI and npm, for tests/run and tests/attack/run, which source this file after
# tests/services/services.sh. They are fetched once; later runs find them in the cache.

attack=$root/tests/attack
attack_python=$cache/attack-python-$(cksum <"$attack/requirements.txt" | cut -d ' ' -f 1)
attack_node=$cache/attack-node-$(cksum <"$attack/package-lock.json" | cut -d ' ' -f 1)

# Debian's names of the packages that the attack lacks.
attack_missing() {
    # In a package of its own, without which `venv` is there and fails.
    [ -x "$attack_python/bin/python" ] || python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    have node || echo nodejs
    [ -d "$attack_node" ] || have npm || echo npm
}

download_attack_python() {
    python3 -m venv "$1" &&
        "$1/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
            --requirement "$attack/requirements.txt" >&2
}

download_attack_node() {
    cp "$attack/package.json" "$attack/package-lock.json" "$1" &&
        (cd "$1" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
}

fetch_attack_tools() {
    # An update of the system's Python leaves a folder behind whose program is gone.
    if [ -d "$attack_python" ] && ! "$attack_python/bin/python" -c 'import schemathesis' 2>/dev/null; then
        rm -rf "$attack_python"
    fi
    if [ ! -d "$attack_python" ]; then
        say 'fetching schemathesis and openapi-python-client'
        make_whole "$attack_python" download_attack_python ||
            die 'the tools of tests/attack/requirements.txt cannot be fetched'
    fi
    if [ ! -d "$attack_node" ]; then
        say 'fetching openapi-typescript and redocly'
        make_whole "$attack_node" download_attack_node || die 'the tools of tests/attack/package.json cannot be fetched'
    fi
}
