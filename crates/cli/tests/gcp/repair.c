/* A TCP connection that moves between network namespaces, as a checkpoint tool moves it: TCP_REPAIR.
 *
 *   repair client ADDRESS PORT   connects
 *   repair pod PORT              accepts one connection
 *   repair clone STATE           goes on with a connection that "!freeze" described
 *
 * Each prints "connected", then copies lines between its standard streams and the connection. The line "!freeze" makes it print the
 * connection's state and end without a packet. */
#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Kinds of TCP options (RFC 9293, 7323, 2018). */
enum { MAXSEG = 2, WINDOW = 3, SACK_PERMITTED = 4, TIMESTAMP = 8 };

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void set(int fd, int option, const void *value, socklen_t size, const char *what) {
    if (setsockopt(fd, IPPROTO_TCP, option, value, size) != 0) die(what);
}

static void get(int fd, int option, void *value, socklen_t size, const char *what) {
    if (getsockopt(fd, IPPROTO_TCP, option, value, &size) != 0) die(what);
}

static void repair(int fd, int on) { set(fd, TCP_REPAIR, &on, sizeof on, "TCP_REPAIR"); }

static uint32_t sequence(int fd, int queue) {
    uint32_t at;
    set(fd, TCP_REPAIR_QUEUE, &queue, sizeof queue, "TCP_REPAIR_QUEUE");
    get(fd, TCP_QUEUE_SEQ, &at, sizeof at, "TCP_QUEUE_SEQ");
    return at;
}

static void set_sequence(int fd, int queue, uint32_t at) {
    set(fd, TCP_REPAIR_QUEUE, &queue, sizeof queue, "TCP_REPAIR_QUEUE");
    set(fd, TCP_QUEUE_SEQ, &at, sizeof at, "TCP_QUEUE_SEQ");
}

static void freeze(int fd) {
    struct sockaddr_in own, peer;
    socklen_t size = sizeof own;
    struct tcp_info info;
    struct tcp_repair_window window;
    uint32_t mss, time;
    memset(&info, 0, sizeof info);
    repair(fd, 1);
    if (getsockname(fd, (struct sockaddr *)&own, &size) != 0) die("getsockname");
    size = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &size) != 0) die("getpeername");
    get(fd, TCP_INFO, &info, sizeof info, "TCP_INFO");
    get(fd, TCP_MAXSEG, &mss, sizeof mss, "TCP_MAXSEG");
    get(fd, TCP_TIMESTAMP, &time, sizeof time, "TCP_TIMESTAMP");
    get(fd, TCP_REPAIR_WINDOW, &window, sizeof window, "TCP_REPAIR_WINDOW");
    printf("%u,%u,%u,%u,%u,%u,%u,%u,%u,%u,%u,%u,%u,%u,%u,%u\n", own.sin_addr.s_addr, own.sin_port,
           peer.sin_addr.s_addr, peer.sin_port, sequence(fd, TCP_SEND_QUEUE), sequence(fd, TCP_RECV_QUEUE), mss,
           info.tcpi_options, info.tcpi_snd_wscale, info.tcpi_rcv_wscale, time, window.snd_wl1, window.snd_wnd,
           window.max_window, window.rcv_wnd, window.rcv_wup);
    fflush(stdout);
    close(fd); /* in repair mode: neither FIN nor RST */
    exit(0);
}

static int thaw(const char *state) {
    struct sockaddr_in own, peer;
    struct tcp_repair_window window;
    struct tcp_repair_opt options[4];
    unsigned v[16], count = 0;
    int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (sscanf(state, "%u,%u,%u,%u,%u,%u,%u,%u,%u,%u,%u,%u,%u,%u,%u,%u", v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6,
               v + 7, v + 8, v + 9, v + 10, v + 11, v + 12, v + 13, v + 14, v + 15) != 16) {
        fprintf(stderr, "the state can't be read: %s\n", state);
        exit(1);
    }
    memset(&own, 0, sizeof own);
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = v[0];
    own.sin_port = (in_port_t)v[1];
    peer = own;
    peer.sin_addr.s_addr = v[2];
    peer.sin_port = (in_port_t)v[3];
    repair(fd, 1);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    set_sequence(fd, TCP_SEND_QUEUE, v[4]);
    set_sequence(fd, TCP_RECV_QUEUE, v[5]);
    if (bind(fd, (struct sockaddr *)&own, sizeof own) != 0) die("bind");
    if (connect(fd, (struct sockaddr *)&peer, sizeof peer) != 0) die("connect");
    options[count].opt_code = MAXSEG;
    options[count++].opt_val = v[6];
    if (v[7] & TCPI_OPT_WSCALE) {
        options[count].opt_code = WINDOW;
        options[count++].opt_val = v[8] | (v[9] << 16);
    }
    if (v[7] & TCPI_OPT_SACK) {
        options[count].opt_code = SACK_PERMITTED;
        options[count++].opt_val = 0;
    }
    if (v[7] & TCPI_OPT_TIMESTAMPS) {
        options[count].opt_code = TIMESTAMP;
        options[count++].opt_val = 0;
    }
    set(fd, TCP_REPAIR_OPTIONS, options, count * sizeof options[0], "TCP_REPAIR_OPTIONS");
    set(fd, TCP_TIMESTAMP, &v[10], sizeof v[10], "TCP_TIMESTAMP");
    window.snd_wl1 = v[11];
    window.snd_wnd = v[12];
    window.max_window = v[13];
    window.rcv_wnd = v[14];
    window.rcv_wup = v[15];
    set(fd, TCP_REPAIR_WINDOW, &window, sizeof window, "TCP_REPAIR_WINDOW");
    repair(fd, 0);
    return fd;
}

static int connected(const char *address, int port) {
    struct sockaddr_in peer;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&peer, 0, sizeof peer);
    peer.sin_family = AF_INET;
    peer.sin_port = htons((uint16_t)port);
    if (inet_pton(AF_INET, address, &peer.sin_addr) != 1) die("address");
    if (connect(fd, (struct sockaddr *)&peer, sizeof peer) != 0) die("connect");
    return fd;
}

static int accepted(int port) {
    struct sockaddr_in own;
    int on = 1, fd, listener = socket(AF_INET, SOCK_STREAM, 0);
    memset(&own, 0, sizeof own);
    own.sin_family = AF_INET;
    own.sin_port = htons((uint16_t)port);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&own, sizeof own) != 0) die("bind");
    if (listen(listener, 1) != 0) die("listen");
    puts("listening");
    fflush(stdout);
    fd = accept(listener, NULL, NULL);
    if (fd < 0) die("accept");
    close(listener);
    return fd;
}

int main(int argc, char **argv) {
    char text[4096];
    struct pollfd ends[2];
    int fd;
    if (argc == 4 && !strcmp(argv[1], "client")) fd = connected(argv[2], atoi(argv[3]));
    else if (argc == 3 && !strcmp(argv[1], "pod")) fd = accepted(atoi(argv[2]));
    else if (argc == 3 && !strcmp(argv[1], "clone")) fd = thaw(argv[2]);
    else return 2;
    puts("connected");
    fflush(stdout);
    ends[0].fd = 0;
    ends[1].fd = fd;
    ends[0].events = ends[1].events = POLLIN;
    for (;;) {
        ssize_t count;
        if (poll(ends, 2, -1) < 0) die("poll");
        if (ends[0].revents) {
            count = read(0, text, sizeof text - 1);
            if (count <= 0) return 0;
            text[count] = 0;
            if (!strncmp(text, "!freeze", 7)) freeze(fd);
            if (write(fd, text, (size_t)count) != count) die("write");
        }
        if (ends[1].revents) {
            count = read(fd, text, sizeof text);
            if (count < 0) die("read");
            if (count == 0) {
                puts("closed");
                return 1;
            }
            if (write(1, text, (size_t)count) != count) die("write");
        }
    }
}
