/* A link between two network namespaces, emulated in one thread.
 *
 * The process makes two namespaces and opens a TUN device in each. The namespaces have no name: they
 * end with the process and with the programs that run in them, so that nothing remains of a test that
 * is killed. link.py starts the process, and enters the namespaces through /proc/PID/fd.
 *
 *   usage: emulator MTU            standard input: a Unix socket of type SOCK_SEQPACKET
 *
 * The process answers each request with one message, after the request has taken effect. It ends
 * when its peer closes the socket.
 *
 *   set KEY=VALUE ...              "ok"; keys that are absent keep their values
 *       delay=NS                   one way
 *       rate=BITS_PER_SECOND       of each direction, 0 for no limit
 *       loss=SHARE                 of the packets, at random, 0 to 1
 *       queue=BYTES                what may wait for the rate; the rest is dropped
 *       hole=0|1|2|3               drop everything to the server (1), to the client (2), both ways (3)
 *       path_mtu=BYTES             drop larger packets silently, 0 for no limit
 *       seed=N                     of the random loss
 *   forget                         "ok"; drop the packets of known TCP connections from now on
 *   stats                          a line of figures for each direction
 *   capture PATH | capture         "ok"; write a line for each packet to a file, or close it
 *
 * A line of a capture has the time of sending and of arrival (both in ns of CLOCK_MONOTONIC, 0 for a
 * packet that was dropped), the direction, both ports, the TCP flags, and the lengths of the payload
 * and of the packet in bytes.
 *
 * With segmentation offload, the kernel passes up to 64 KiB of a TCP stream at once. The emulator
 * treats each segment of it as a packet of its own: it counts, drops and delays it, and splits what
 * remains into pieces of at most PIECE_NS on the link. This carries several Gbit/s on one core.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { TO_SERVER, TO_CLIENT, DIRECTIONS };

#define SECOND 1000000000LL
#define PIECE_NS 500000
#define READS_IN_TURN 64 /* packets to read from a device before the other one has its turn */
#define LARGEST (sizeof(struct virtio_net_hdr) + 65536 + 512)
#define FLOWS (1u << 16)

typedef struct virtio_net_hdr offload_t;

typedef struct {
    uint8_t addresses[32]; /* the lower address and port come first, so both directions are equal */
    uint16_t ports[2];
} flow_key;

typedef struct {
    flow_key key;
    bool used;
    uint64_t generation; /* the number of "forget" requests when it was opened */
} flow_t;

/* What the emulator knows of a packet. For anything but TCP, the payload is all that follows IP. */
typedef struct {
    bool tcp;
    int version;
    size_t ip, headers, payload; /* the sizes of the IP header, of all headers, and of the payload */
    struct tcphdr *header;
    flow_key key;
} packet_t;

typedef struct piece {
    struct piece *next;
    int64_t sent, left; /* when it entered the link, and when its last bit had left the queue */
    size_t size;
    unsigned segments;
    uint8_t data[]; /* the offload header and the packet */
} piece_t;

typedef struct {
    int input, output;
    piece_t *first, **end;
    int64_t free_at; /* when the link has sent everything that waits */
    uint64_t packets, bytes, payload, lost, overflowed, holed, oversized, forgotten;
} direction_t;

static struct {
    int64_t delay;
    double rate, loss, queue;
    long hole, path_mtu;
} link_;

static direction_t directions[DIRECTIONS];
static flow_t flows[FLOWS];
static uint64_t generation;
static uint64_t random_state = 1;
static FILE *capture;

static void fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

/* xorshift64*: the next number from 0 to 1. */
static double next_random(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (double)((random_state * 0x2545f4914f6cdd1dULL) >> 11) / (double)(1ULL << 53);
}

/* --- packets ------------------------------------------------------------------------------------ */

static packet_t parse(uint8_t *data, size_t size)
{
    packet_t packet = {.version = data[0] >> 4};
    const uint8_t *source, *target;
    size_t width;
    uint8_t protocol;
    if (packet.version == 4 && size >= sizeof(struct iphdr)) {
        struct iphdr *ip = (struct iphdr *)data;
        packet.ip = ip->ihl * 4u;
        protocol = ip->protocol;
        source = (uint8_t *)&ip->saddr, target = (uint8_t *)&ip->daddr, width = 4;
    } else if (packet.version == 6 && size >= sizeof(struct ip6_hdr)) {
        struct ip6_hdr *ip = (struct ip6_hdr *)data;
        packet.ip = sizeof *ip;
        protocol = ip->ip6_nxt;
        source = ip->ip6_src.s6_addr, target = ip->ip6_dst.s6_addr, width = 16;
    } else {
        packet.headers = size;
        return packet;
    }
    packet.headers = packet.ip;
    if (protocol == IPPROTO_TCP && size >= packet.ip + sizeof(struct tcphdr)) {
        packet.tcp = true;
        packet.header = (struct tcphdr *)(data + packet.ip);
        packet.headers += packet.header->doff * 4u;
        int order = memcmp(source, target, width);
        if (!order) order = packet.header->source < packet.header->dest ? -1 : 1;
        bool swap = order > 0;
        memcpy(packet.key.addresses, swap ? target : source, width);
        memcpy(packet.key.addresses + 16, swap ? source : target, width);
        packet.key.ports[swap] = packet.header->source;
        packet.key.ports[!swap] = packet.header->dest;
    }
    packet.payload = size - packet.headers;
    return packet;
}

static uint32_t sum(const void *data, size_t size)
{
    const uint8_t *bytes = data;
    uint32_t total = 0;
    for (size_t i = 0; i + 1 < size; i += 2) total += (uint32_t)(bytes[i] << 8 | bytes[i + 1]);
    return total;
}

static uint16_t fold(uint32_t total)
{
    while (total >> 16) total = (total & 0xffff) + (total >> 16);
    return htons((uint16_t)total);
}

/* Write the fields of a piece's headers that depend on its position in the packet. The kernel
 * finishes the checksum of TCP, which covers the payload, so it has that of the pseudo header. */
static void adjust_headers(uint8_t *data, const packet_t *packet, size_t offset, size_t payload,
                           unsigned first_segment, bool is_first, bool is_last)
{
    uint32_t pseudo = IPPROTO_TCP + (uint32_t)(packet->headers - packet->ip + payload);
    if (packet->version == 4) {
        struct iphdr *ip = (struct iphdr *)data;
        ip->tot_len = htons((uint16_t)(packet->headers + payload));
        ip->id = htons((uint16_t)(ntohs(ip->id) + first_segment));
        ip->check = 0;
        ip->check = (uint16_t)~fold(sum(ip, packet->ip));
        pseudo += sum(&ip->saddr, 8);
    } else {
        struct ip6_hdr *ip = (struct ip6_hdr *)data;
        ip->ip6_plen = htons((uint16_t)(packet->headers - packet->ip + payload));
        pseudo += sum(&ip->ip6_src, 32);
    }
    struct tcphdr *tcp = (struct tcphdr *)(data + packet->ip);
    tcp->seq = htonl(ntohl(tcp->seq) + (uint32_t)offset);
    if (!is_last) tcp->fin = tcp->psh = 0;
    if (!is_first) tcp->res2 &= 1; /* CWR is for the first segment alone */
    tcp->check = fold(pseudo);
}

/* --- a NAT's table of connections --------------------------------------------------------------- */

static flow_t *find_flow(const flow_key *key)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < sizeof *key; i++) hash = (hash ^ ((const uint8_t *)key)[i]) * 16777619u;
    for (uint32_t probe = 0; probe < FLOWS; probe++) {
        flow_t *flow = &flows[(hash + probe) % FLOWS];
        if (!flow->used || !memcmp(&flow->key, key, sizeof *key)) return flow;
    }
    memset(flows, 0, sizeof flows); /* full: every open connection counts as forgotten */
    return &flows[hash % FLOWS];
}

static bool is_forgotten(const packet_t *packet)
{
    if (!packet->tcp) return false;
    flow_t *flow = find_flow(&packet->key);
    if (packet->header->syn && !packet->header->ack) {
        *flow = (flow_t){.key = packet->key, .used = true, .generation = generation};
        return false;
    }
    return !flow->used || flow->generation != generation;
}

/* --- the link ----------------------------------------------------------------------------------- */

static void record(int direction, int64_t sent, int64_t arrived, uint8_t *data, size_t size)
{
    packet_t packet = parse(data, size);
    if (!capture || !packet.tcp) return;
    fprintf(capture, "%" PRId64 " %" PRId64 " %d %u %u %u %zu %zu\n", sent, arrived, direction,
            ntohs(packet.header->source), ntohs(packet.header->dest),
            ((uint8_t *)packet.header)[13], packet.payload, size);
}

/* Append the segments from `first` to the one before `last` to the queue. */
static void enqueue(int number, uint8_t *frame, const packet_t *packet, unsigned first,
                    unsigned last, unsigned segments, int64_t sent)
{
    direction_t *direction = &directions[number];
    offload_t offload = *(offload_t *)frame;
    size_t step = offload.gso_size, offset = first * step;
    size_t end = last == segments ? packet->payload : last * step;
    size_t size = packet->headers + end - offset;
    piece_t *piece = malloc(sizeof *piece + sizeof offload + size);
    if (!piece) fail("malloc");
    if (segments > 1 && last - first == 1) {
        offload.gso_type = VIRTIO_NET_HDR_GSO_NONE;
        offload.gso_size = 0;
    }
    uint8_t *source = frame + sizeof offload, *target = piece->data + sizeof offload;
    memcpy(piece->data, &offload, sizeof offload);
    memcpy(target, source, packet->headers);
    memcpy(target + packet->headers, source + packet->headers + offset, end - offset);
    if (last - first < segments)
        adjust_headers(target, packet, offset, end - offset, first, first == 0, last == segments);
    piece->next = NULL;
    piece->sent = sent;
    piece->left = direction->free_at;
    piece->size = sizeof offload + size;
    piece->segments = last - first;
    *direction->end = piece;
    direction->end = &piece->next;
}

/* Pass a packet, which may have many segments, to the link. */
static void transmit(int number, uint8_t *frame, size_t size)
{
    direction_t *direction = &directions[number];
    offload_t *offload = (offload_t *)frame;
    packet_t packet = parse(frame + sizeof *offload, size - sizeof *offload);
    size_t step = offload->gso_type == VIRTIO_NET_HDR_GSO_NONE ? 0 : offload->gso_size;
    unsigned segments = step ? (unsigned)((packet.payload + step - 1) / step) : 1;
    int64_t time = now();
    if (direction->free_at < time) direction->free_at = time;

    unsigned first = 0; /* of the piece that is being collected */
    int64_t piece_begin = direction->free_at;
    bool forgotten = is_forgotten(&packet);
    for (unsigned segment = 0; segment < segments; segment++) {
        size_t payload = segment + 1 == segments ? packet.payload - segment * step : step;
        size_t bytes = packet.headers + payload;
        double waiting = (double)(direction->free_at - time) * link_.rate / 8e9;
        uint64_t *dropped = NULL;
        if (link_.hole & (1 << number)) dropped = &direction->holed;
        else if (forgotten) dropped = &direction->forgotten;
        else if (link_.path_mtu && bytes > (size_t)link_.path_mtu) dropped = &direction->oversized;
        else if (waiting + (double)bytes > link_.queue) dropped = &direction->overflowed;
        else {
            if (direction->free_at - piece_begin >= PIECE_NS && segment > first) {
                enqueue(number, frame, &packet, first, segment, segments, time);
                first = segment;
                piece_begin = direction->free_at;
            }
            if (link_.loss > 0 && next_random() < link_.loss) dropped = &direction->lost;
        }
        if (dropped) {
            ++*dropped;
            if (segment > first) enqueue(number, frame, &packet, first, segment, segments, time);
            first = segment + 1;
            if (capture) record(number, time, 0, frame + sizeof *offload, bytes);
        }
        /* What is lost on the way has used the link, what is dropped before it has not. */
        if ((!dropped || dropped == &direction->lost) && link_.rate > 0)
            direction->free_at += (int64_t)((double)bytes * 8e9 / link_.rate);
        if (dropped) piece_begin = direction->free_at;
    }
    if (segments > first) enqueue(number, frame, &packet, first, segments, segments, time);
}

/* Deliver what has arrived; return when the next piece will, or -1. */
static int64_t deliver(int number)
{
    direction_t *direction = &directions[number];
    for (piece_t *piece; (piece = direction->first);) {
        int64_t time = now(), due = piece->left + link_.delay;
        if (due > time) return due;
        direction->first = piece->next;
        if (!piece->next) direction->end = &direction->first;
        uint8_t *data = piece->data + sizeof(offload_t);
        size_t size = piece->size - sizeof(offload_t);
        if (link_.hole & (1 << number)) { /* what is under way is lost too */
            direction->holed += piece->segments;
            time = 0;
        } else if (write(direction->output, piece->data, piece->size) < 0) {
            if (errno == EAGAIN || errno == ENOBUFS) direction->overflowed += piece->segments;
            else if (errno != EIO) fail("write to a device"); /* EIO: the device is not up yet */
            time = 0;
        } else {
            packet_t packet = parse(data, size);
            direction->packets += piece->segments;
            direction->bytes += size + (piece->segments - 1) * packet.headers;
            if (packet.tcp) direction->payload += packet.payload;
        }
        record(number, piece->sent, time, data, size);
        free(piece);
    }
    return -1;
}

/* --- control ------------------------------------------------------------------------------------ */

static const char *set(char *words)
{
    char *rest = NULL;
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        if (!value) return "error: expected KEY=VALUE";
        *value++ = 0;
        if (!strcmp(word, "delay")) link_.delay = atoll(value);
        else if (!strcmp(word, "rate")) link_.rate = atof(value);
        else if (!strcmp(word, "loss")) link_.loss = atof(value);
        else if (!strcmp(word, "queue")) link_.queue = atof(value);
        else if (!strcmp(word, "hole")) link_.hole = atol(value);
        else if (!strcmp(word, "path_mtu")) link_.path_mtu = atol(value);
        else if (!strcmp(word, "seed")) random_state = strtoull(value, NULL, 10) * 2 + 1;
        else return "error: unknown key";
    }
    return "ok";
}

static const char *start_capture(const char *path)
{
    if (capture) fclose(capture);
    capture = NULL;
    if (*path && !(capture = fopen(path, "w"))) return "error: cannot write the file";
    return "ok";
}

static const char *stats(void)
{
    static char text[1024];
    int length = 0;
    for (int i = 0; i < DIRECTIONS; i++) {
        direction_t *d = &directions[i];
        length += snprintf(text + length, sizeof text - (size_t)length,
                           "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64
                           " %" PRIu64 " %" PRIu64 "\n",
                           d->packets, d->bytes, d->payload, d->lost, d->overflowed, d->holed,
                           d->oversized, d->forgotten);
    }
    return text;
}

static void answer_request(void)
{
    char request[4096];
    ssize_t size = recv(STDIN_FILENO, request, sizeof request - 1, 0);
    if (size <= 0) exit(0);
    request[size] = 0;
    const char *answer = "error: unknown request";
    if (!strncmp(request, "set ", 4)) answer = set(request + 4);
    else if (!strcmp(request, "stats")) answer = stats();
    else if (!strcmp(request, "forget")) generation++, answer = "ok";
    else if (!strcmp(request, "capture")) answer = start_capture("");
    else if (!strncmp(request, "capture ", 8)) answer = start_capture(request + 8);
    if (send(STDIN_FILENO, answer, strlen(answer), MSG_NOSIGNAL) < 0) exit(0);
}

/* --- devices ------------------------------------------------------------------------------------ */

/* Enter a new namespace and open its device; return the device's descriptor. */
static int open_device(int mtu, int *name_space)
{
    if (unshare(CLONE_NEWNET)) fail("a network namespace");
    *name_space = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (*name_space < 0 || device < 0) fail("/dev/net/tun");
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR, .ifr_name = "link0"};
    if (ioctl(device, TUNSETIFF, &request)) fail("a TUN device");
    if (ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6))
        fail("segmentation offload of a TUN device");
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    request.ifr_mtu = mtu;
    if (any < 0 || ioctl(any, SIOCSIFMTU, &request)) fail("the MTU");
    close(any);
    return device;
}

int main(int count, char **arguments)
{
    if (count != 2) return fprintf(stderr, "usage: emulator MTU\n"), 2;
    int devices[2], spaces[2];
    for (int i = 0; i < 2; i++) devices[i] = open_device(atoi(arguments[1]), &spaces[i]);
    for (int i = 0; i < DIRECTIONS; i++) {
        direction_t *direction = &directions[i];
        direction->input = devices[i == TO_SERVER];
        direction->output = devices[i != TO_SERVER];
        direction->end = &direction->first;
    }
    link_.queue = 1e9;
    prctl(PR_SET_TIMERSLACK, 1UL);
    char ready[64];
    snprintf(ready, sizeof ready, "%d %d", spaces[0], spaces[1]);
    if (send(STDIN_FILENO, ready, strlen(ready), MSG_NOSIGNAL) < 0) return 0;

    static uint8_t frame[LARGEST];
    struct pollfd waiting[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                               {.fd = directions[TO_SERVER].input, .events = POLLIN},
                               {.fd = directions[TO_CLIENT].input, .events = POLLIN}};
    for (;;) {
        int64_t next = -1;
        for (int i = 0; i < DIRECTIONS; i++) {
            int64_t due = deliver(i);
            if (due >= 0 && (next < 0 || due < next)) next = due;
        }
        struct timespec timeout = {0};
        if (next >= 0) {
            int64_t left = next - now();
            if (left > 0) timeout = (struct timespec){left / SECOND, left % SECOND};
        }
        if (ppoll(waiting, 3, next < 0 ? NULL : &timeout, NULL) < 0 && errno != EINTR)
            fail("ppoll");
        if (waiting[0].revents) answer_request();
        for (int i = 0; i < DIRECTIONS; i++) {
            if (!(waiting[1 + i].revents & POLLIN)) continue;
            for (int turn = 0; turn < READS_IN_TURN; turn++) {
                ssize_t size = read(directions[i].input, frame, sizeof frame);
                if (size <= (ssize_t)sizeof(offload_t)) break;
                transmit(i, frame, (size_t)size);
            }
        }
    }
}
