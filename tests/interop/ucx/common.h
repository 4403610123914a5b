/* What both programs need: a context, a worker, waiting, and the end with a message. */
#include <arpa/inet.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

#define FAIL(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
#define CHECK(status, what) \
    do { ucs_status_t got_ = (status); \
         if (got_ != UCS_OK) FAIL("%s: %s", what, ucs_status_string(got_)); } while (0)

static ucp_context_h make_context(void)
{
    ucp_config_t *config;
    ucp_context_h context;
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                           .features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP |
                                       UCP_FEATURE_RMA};
    CHECK(ucp_config_read(NULL, NULL, &config), "ucp_config_read");
    CHECK(ucp_init(&params, config, &context), "ucp_init");
    ucp_config_release(config);
    return context;
}

static ucp_worker_h make_worker(ucp_context_h context)
{
    ucp_worker_h worker;
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    CHECK(ucp_worker_create(context, &params, &worker), "ucp_worker_create");
    return worker;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void finish(ucp_worker_h worker, ucs_status_ptr_t request, const char *what)
{
    double end = now() + 20;
    if (UCS_PTR_IS_ERR(request)) FAIL("%s: %s", what, ucs_status_string(UCS_PTR_STATUS(request)));
    if (request == NULL) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
        if (now() > end) FAIL("%s: no end", what);
        ucp_worker_progress(worker);
    }
    CHECK(ucp_request_check_status(request), what);
    ucp_request_free(request);
}

static struct sockaddr_in address_of(const char *host, const char *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) FAIL("no address: %s", host);
    return address;
}
