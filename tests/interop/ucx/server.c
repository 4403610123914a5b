/* A server in plain UCP: WANT_DATA TICKET FILE MODE. It serves one reader the frames of FILE.
 *
 * FILE holds, for each message: u8 tagged, u64 tag, u64 length, bytes. MODE says how a server
 * that a reader has connected to treats errors: peer, or any for what the reader chose. The port
 * goes to standard output. It ends when the reader has left. */
#include "common.h"

static ucp_conn_request_h waiting;
static int gone;

static void on_request(ucp_conn_request_h request, void *arg) { waiting = request; }
static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status) { gone = 1; }

int main(int argc, char **argv)
{
    if (argc != 5) FAIL("usage: server WANT_DATA TICKET FILE peer|any");
    uint64_t want_data = strtoull(argv[1], NULL, 0);
    ucp_context_h context = make_context();
    ucp_worker_h listening = make_worker(context), worker = make_worker(context);
    struct sockaddr_in address = address_of("127.0.0.1", "0");
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {(struct sockaddr *)&address, sizeof address},
        .conn_handler = {on_request, NULL}};
    ucp_listener_h listener;
    CHECK(ucp_listener_create(listening, &params, &listener), "ucp_listener_create");
    ucp_listener_attr_t attributes = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    CHECK(ucp_listener_query(listener, &attributes), "ucp_listener_query");
    printf("%d\n", ntohs(((struct sockaddr_in *)&attributes.sockaddr)->sin_port));
    fflush(stdout);

    double end = now() + 20;
    while (waiting == NULL) {
        if (now() > end) FAIL("nobody came");
        ucp_worker_progress(listening);
    }
    ucp_ep_params_t accepted = {
        .field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .conn_request = waiting, .err_handler.cb = on_error};
    if (strcmp(argv[4], "peer") == 0) {
        accepted.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
        accepted.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    }
    ucp_ep_h ep;
    CHECK(ucp_ep_create(worker, &accepted, &ep), "ucp_ep_create");

    ucp_tag_recv_info_t info;
    ucp_tag_message_h message;
    ucp_request_param_t plain = {0};
    while ((message = ucp_tag_probe_nb(worker, want_data, UINT64_MAX, 1, &info)) == NULL) {
        if (now() > end) FAIL("no want_data came");
        ucp_worker_progress(worker);
    }
    char ticket[256] = "";
    if (info.length >= sizeof ticket) FAIL("a ticket of %zu bytes", info.length);
    finish(worker, ucp_tag_msg_recv_nbx(worker, ticket, info.length, message, &plain), "ticket");
    if (strcmp(ticket, argv[2])) FAIL("the ticket is %s", ticket);

    FILE *file = fopen(argv[3], "rb");
    unsigned char head[17];
    if (file == NULL) FAIL("no file %s", argv[3]);
    while (fread(head, sizeof head, 1, file) == 1) {
        uint64_t tag, length;
        memcpy(&tag, head + 1, 8);
        memcpy(&length, head + 9, 8);
        unsigned char *data = malloc(length ? length : 1);
        if (length && fread(data, length, 1, file) != 1) FAIL("the file ends early");
        finish(worker, head[0] ? ucp_tag_send_nbx(ep, data, length, tag, &plain)
                               : ucp_am_send_nbx(ep, 0, NULL, 0, data, length, &plain), "send");
        free(data);
    }
    while (!gone) {
        if (now() > end) FAIL("the reader did not leave");
        ucp_worker_progress(worker);
    }
    return 0;
}
