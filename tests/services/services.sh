# shellcheck shell=bash disable=SC2154
# Kafka and ClickHouse for tests/run, which sources this file and has `say`, `die`, `have`, `free_port`,
# `root`, and the run's folders `work` and `data`.
#
# Maven brings Kafka's jars and npm brings ClickHouse's library, once; later runs find them in the cache.

services=$root/tests/services
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mandate/services
kafka_version=$(sed -n '/kafka_2.13/,/version/ s|.*<version>\(.*\)</version>.*|\1|p' "$services/kafka/pom.xml")
clickhouse_version=$(sed -n 's|.*"@chdb/lib-linux-x64-gnu": "\(.*\)".*|\1|p' "$services/clickhouse/package.json")
kafka_libs=$cache/kafka-$kafka_version
clickhouse=$cache/clickhouse-$clickhouse_version
clickhouse_server=$clickhouse/server-$(cksum <"$services/clickhouse/server.c" | cut -d ' ' -f 1)
kafka='' clickhouse_process=''

java_is_new_enough() {
    local version
    version=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p') && [ "${version:-0}" -ge 17 ]
}

# Debian's names of the packages that Kafka and ClickHouse lack.
services_missing() {
    java_is_new_enough || echo default-jre-headless
    [ -d "$kafka_libs" ] || have mvn || echo maven
    [ -d "$clickhouse" ] || have node || echo nodejs
    [ -d "$clickhouse" ] || have npm || echo npm
}

# Makes the folder $1 with the command that follows, which gets a temporary one: whole or not at all.
make_whole() {
    local folder=$1 part
    shift
    mkdir -p "$cache"
    # Those of runs that were killed.
    find "$cache" -mindepth 1 -maxdepth 1 -name 'part.*' -mmin +120 -exec rm -rf {} +
    part=$(mktemp -d "$cache/part.XXXXXX")
    chmod 0755 "$part"
    # Another run may have made it meanwhile.
    if "$@" "$part" && { [ -d "$folder" ] || mv "$part" "$folder"; }; then
        rm -rf "$part"
        return
    fi
    rm -rf "$part"
    return 1
}

download_kafka() {
    mvn --batch-mode --quiet --file "$services/kafka/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory="$1" >&2
}

download_clickhouse() {
    cp "$services/clickhouse/package.json" "$services/clickhouse/package-lock.json" "$1" &&
        (cd "$1" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2) &&
        mv "$1/node_modules/@chdb/lib-linux-x64-gnu/libchdb.so" "$1" &&
        rm -rf "$1/node_modules"
}

fetch_services() {
    if [ ! -d "$kafka_libs" ]; then
        say "fetching Kafka $kafka_version"
        make_whole "$kafka_libs" download_kafka || without Kafka "${MANDATE_TEST_KAFKA:-}"
    fi
    if [ ! -d "$clickhouse" ]; then
        say "fetching ClickHouse $clickhouse_version"
        make_whole "$clickhouse" download_clickhouse || without ClickHouse "${MANDATE_TEST_CLICKHOUSE:-}"
    fi
    if [ -d "$clickhouse" ] && [ ! -x "$clickhouse_server" ]; then
        cc -O1 -o "$clickhouse_server.$$" "$services/clickhouse/server.c" -ldl -pthread ||
            die "cc cannot build tests/services/clickhouse/server.c"
        mv "$clickhouse_server.$$" "$clickhouse_server"
    fi
    export MANDATE_TEST_KAFKA_LIBS=$kafka_libs
    export MANDATE_TEST_CLICKHOUSE_SERVER=$clickhouse_server MANDATE_TEST_CLICKHOUSE_LIB=$clickhouse/libchdb.so
}

# Says what it means that $1 cannot be fetched; $2 is the server that the caller gave.
without() {
    local name
    name=MANDATE_TEST_$(printf '%s' "$1" | tr '[:lower:]' '[:upper:]')
    [ -n "$2" ] || die "$1 cannot be fetched, and without it no test of the permanent log through $1 can run:" \
        "reach the package registry once, or give the address of a server in $name"
    say "WARNING: $1 cannot be fetched. $2 serves the tests; those that start a $1 of their own will FAIL"
}

kafka_answers() {
    # It asks for the versions of the protocol (ApiVersions, version 0) and waits for the head of an answer.
    # shellcheck disable=SC2016 # the inner shell expands it
    [ "$(timeout 2 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" &&
        printf "\0\0\0\012\0\022\0\0\0\0\0\1\377\377" >&3 && head -c 8 <&3 | wc -c' bash "$1" 2>/dev/null)" = 8 ]
}

clickhouse_answers() {
    [ "$(curl --silent --max-time 2 "http://127.0.0.1:$1/ping")" = Ok. ]
}

launch_kafka() {
    kafka_port=$(free_port)
    "${tie[@]}" "$services/kafka/broker" "$data/kafka" "$kafka_port" "$(free_port)" >"$work/kafka.log" 2>&1 </dev/null &
    kafka=$!
}

launch_clickhouse() {
    clickhouse_port=$(free_port)
    mkdir -p "$data/clickhouse"
    "${tie[@]}" "$clickhouse_server" "$clickhouse/libchdb.so" "$data/clickhouse" "$clickhouse_port" \
        >"$work/clickhouse.log" 2>&1 </dev/null &
    clickhouse_process=$!
}

# Starts what the caller did not give; `await_services` waits for it.
launch_services() {
    # A server ends with this script, even when that is killed.
    tie=(env)
    ! setpriv --pdeathsig KILL true 2>/dev/null || tie=(setpriv --pdeathsig KILL)
    [ -n "${MANDATE_TEST_KAFKA:-}" ] || launch_kafka
    [ -n "${MANDATE_TEST_CLICKHOUSE:-}" ] || launch_clickhouse
}

await_services() {
    if [ -n "$kafka" ]; then
        await kafka kafka_port kafka
        export MANDATE_TEST_KAFKA=127.0.0.1:$kafka_port
    fi
    if [ -n "$clickhouse_process" ]; then
        await clickhouse clickhouse_port clickhouse_process
        export MANDATE_TEST_CLICKHOUSE=http://default@127.0.0.1:$clickhouse_port
    fi
}

# Waits until the server named $1 answers; $2 and $3 are the names of the variables with its port and its process.
# One that ended, because another program took its port, is started again.
await() {
    local try _
    for try in 1 2 3; do
        for _ in {1..600}; do
            # Whoever answers at the port is another one when the server has ended.
            kill -0 "${!3}" 2>/dev/null || break
            ! "$1_answers" "${!2}" || return 0
            sleep 0.1
        done
        say "$1 did not start (try $try)"
        cat "$work/$1.log" >&2
        end_server "${!3}"
        [ "$try" = 3 ] || "launch_$1"
    done
    die "$1 does not start"
}

# Without grace: nobody needs its data any more.
end_server() {
    kill -KILL "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

stop_services() {
    local process
    for process in $kafka $clickhouse_process; do
        end_server "$process"
    done
}
