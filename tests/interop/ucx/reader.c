/* A reader in plain UCP: HOST PORT REQUEST TICKET MODE [REGION FREE], an Arrow IPC stream to
 * standard output.
 *
 * MODE is the error handling: peer or none. With the tags REGION and FREE, bodies of type 1 are
 * read from the server's memory and freed; REQUEST is then the tag that asks for such. Whether a message has a body is not looked up in its
 * metadata: every message but the schema of these streams has one. */
#include "common.h"

struct message { unsigned char *data; size_t length; };

static struct message *messages;
static size_t room, have; /* have: metadata messages that came, the end not counted */
static int64_t total = -1;
static ucp_worker_h worker;
static const char *lost;

static uint32_t u32(const unsigned char *p)
{
    return p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
}

static void keep(unsigned char *data, size_t length)
{
    if (length < 5) FAIL("a metadata message of %zu bytes", length);
    uint32_t sequence = u32(data + 1);
    if (data[0] == 2) FAIL("the stream failed: %.*s", (int)length - 5, data + 5);
    if (data[0] == 0) {
        if (length != 5) FAIL("an end of stream of %zu bytes", length);
        total = sequence;
        return;
    }
    if (data[0] != 1) FAIL("a message of type %d", data[0]);
    while (sequence >= room) {
        messages = realloc(messages, (room + 1024) * sizeof *messages);
        memset(messages + room, 0, 1024 * sizeof *messages);
        room += 1024;
    }
    if (messages[sequence].data == NULL) have++;
    messages[sequence] = (struct message){data, length};
}

static ucs_status_t on_metadata(void *arg, const void *header, size_t header_length, void *data,
                                size_t length, const ucp_am_recv_param_t *param)
{
    unsigned char *copy = malloc(length ? length : 1);
    if (header_length) FAIL("a header of %zu bytes", header_length);
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) FAIL("metadata by rendezvous");
    memcpy(copy, data, length);
    keep(copy, length);
    return UCS_OK;
}

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status) { lost = ucs_status_string(status); }

static void put(const void *data, size_t length)
{
    if (fwrite(data, 1, length, stdout) != length) FAIL("cannot write");
}

static ucp_ep_h ep;
static ucp_rkey_h rkey;
static uint64_t region, region_size, region_tag, free_tag;

/* Receive a tagged message that was probed for. */
static unsigned char *receive(ucp_tag_message_h message, size_t length)
{
    ucp_request_param_t plain = {0};
    unsigned char *data = malloc(length ? length : 1);
    finish(worker, ucp_tag_msg_recv_nbx(worker, data, length, message, &plain), "a tagged message");
    return data;
}

/* Take what hands a region over, if it has come. */
static void look_for_region(void)
{
    ucp_tag_recv_info_t info;
    ucp_tag_message_h message;
    if (!region_tag) return;
    while ((message = ucp_tag_probe_nb(worker, region_tag, -1, 1, &info)) != NULL) {
        unsigned char *data = receive(message, info.length);
        if (rkey != NULL) ucp_rkey_destroy(rkey);
        memcpy(&region, data, 8);
        memcpy(&region_size, data + 8, 8);
        CHECK(ucp_ep_rkey_unpack(ep, data + 16, &rkey), "ucp_ep_rkey_unpack");
        free(data);
    }
}

/* Read a body of type 1, whose buffers lie one behind the other, and free it. */
static unsigned char *read_remote(unsigned char *list, size_t *length)
{
    ucp_request_param_t plain = {0};
    uint64_t *pairs = (uint64_t *)list, count = pairs[1], first = -1, end = 0, offsets[256], n = 0;
    if (rkey == NULL) FAIL("a body of type 1 before any region");
    if (*length != 16 + 16 * count || count > 256) FAIL("a body of type 1 of %zu bytes", *length);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t offset = pairs[2 + 2 * i], size = pairs[3 + 2 * i];
        if (size == 0) continue;
        if (offset + size > region_size) FAIL("a buffer outside of the region");
        if (offset < first) first = offset;
        if (offset + size > end) end = offset + size;
        offsets[n++] = offset;
    }
    *length = n ? (end - first + 7) & ~7ull : 0; /* as the bodies of these streams are padded */
    unsigned char *body = calloc(*length ? *length : 1, 1);
    if (n) {
        finish(worker, ucp_get_nbx(ep, body, end - first, region + first, rkey, &plain), "ucp_get");
        finish(worker, ucp_tag_send_nbx(ep, offsets, 8 * n, free_tag, &plain), "free_data");
    }
    free(list);
    return body;
}

int main(int argc, char **argv)
{
    if (argc != 6 && argc != 8)
        FAIL("usage: reader HOST PORT REQUEST TICKET peer|none [REGION FREE]");
    if (argc == 8) {
        region_tag = strtoull(argv[6], NULL, 0);
        free_tag = strtoull(argv[7], NULL, 0);
    }
    struct sockaddr_in address = address_of(argv[1], argv[2]);
    worker = make_worker(make_context());
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id = 0, .cb = on_metadata};
    CHECK(ucp_worker_set_am_recv_handler(worker, &handler), "ucp_worker_set_am_recv_handler");
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        .err_mode = strcmp(argv[5], "peer") ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER,
        .err_handler.cb = on_error,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {(struct sockaddr *)&address, sizeof address}};
    ucp_request_param_t plain = {0};
    CHECK(ucp_ep_create(worker, &params, &ep), "ucp_ep_create");
    finish(worker, ucp_tag_send_nbx(ep, argv[4], strlen(argv[4]), strtoull(argv[3], NULL, 0), &plain),
           "want_data");

    double end = now() + 20;
    for (uint32_t next = 0; total < 0 || next < total;) {
        if (lost != NULL) FAIL("the connection is lost: %s", lost);
        if (now() > end) FAIL("message %u never came", next);
        ucp_worker_progress(worker);
        if (next >= room || messages[next].data == NULL) continue;
        /* Encapsulated: continuation, length, metadata, padding to 8 bytes, body. */
        uint32_t length = messages[next].length - 5, padded = (length + 7) & ~7u;
        uint32_t prefix[2] = {0xFFFFFFFF, padded};
        put(prefix, sizeof prefix);
        put(messages[next].data + 5, length);
        put("\0\0\0\0\0\0\0", padded - length);
        if (next > 0) {
            ucp_tag_recv_info_t info;
            ucp_tag_message_h message;
            /* Where requests have tags of their own, these are told apart by the reserved bits. */
            uint64_t mask = region_tag ? 0x00FFFFFFFFFFFFFF : 0xFFFFFFFF;
            while ((message = ucp_tag_probe_nb(worker, next, mask, 1, &info)) == NULL) {
                if (lost != NULL) FAIL("the connection is lost: %s", lost);
                if (now() > end) FAIL("body %u never came", next);
                ucp_worker_progress(worker);
            }
            if (info.sender_tag & 0x00FFFFFF00000000) FAIL("reserved bits in a tag");
            int type = info.sender_tag >> 56;
            if (type != 0 && (type != 1 || !region_tag)) FAIL("a body of type %d", type);
            size_t size = info.length;
            unsigned char *body = receive(message, size);
            look_for_region();
            if (type == 1) body = read_remote(body, &size);
            put(body, size);
            free(body);
        }
        next++;
    }
    uint32_t last[2] = {0xFFFFFFFF, 0};
    put(last, sizeof last);
    if ((int64_t)have != total) FAIL("%zu messages came, %lld were sent", have, (long long)total);
    return fflush(stdout) == 0 ? 0 : 1;
}
