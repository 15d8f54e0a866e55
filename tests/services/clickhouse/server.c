/*
 * Runs a ClickHouse server that answers HTTP on the loopback until SIGTERM or SIGINT ends it:
 *
 *   server LIBRARY FOLDER PORT
 *
 * LIBRARY is libchdb.so: the whole of ClickHouse as a library, with a function that is its command line. That one opens
 * the port and then reads standard input, a pipe to which nobody ever writes.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *(*command_line)(int, char **);
static char path[4096], port[64];

static void *run(void *unused) {
    char *arguments[] = {
        "clickhouse",
        path,
        port,
        "--listen_host=127.0.0.1",
        "--query=SYSTEM START LISTEN HTTP; SELECT * FROM file('/dev/stdin', TSV, 'line String') FORMAT Null",
        NULL,
    };
    (void)unused;
    command_line(sizeof arguments / sizeof *arguments - 1, arguments);
    /* It has written why: the port is in use, or another server has the folder. */
    fputs("the server has ended\n", stderr);
    _exit(1);
}

int main(int count, char **arguments) {
    sigset_t ends;
    pthread_t thread;
    void *library;
    int ends_of_pipe[2], signal;

    if (count != 4) {
        fprintf(stderr, "usage: %s LIBRARY FOLDER PORT\n", arguments[0]);
        return 2;
    }
    snprintf(path, sizeof path, "--path=%s", arguments[2]);
    snprintf(port, sizeof port, "--http_port=%s", arguments[3]);

    /* Before there are other threads, which inherit it: the signals are for the one that waits below. */
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    if (pthread_sigmask(SIG_BLOCK, &ends, NULL) != 0 || pipe(ends_of_pipe) != 0 || dup2(ends_of_pipe[0], 0) != 0) {
        perror("server");
        return 1;
    }
    library = dlopen(arguments[1], RTLD_NOW);
    if (library != NULL) *(void **)&command_line = dlsym(library, "chdb_query_cmdline");
    if (command_line == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    if (pthread_create(&thread, NULL, run, NULL) != 0 || sigwait(&ends, &signal) != 0) {
        perror("server");
        return 1;
    }
    /* What was acknowledged is in files already; to unload the library under its own threads crashes. */
    _exit(0);
}
