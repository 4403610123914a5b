/* libnvidia-ml.so.1, without which UCX loads no CUDA module. Every call fails. */
enum { DRIVER_NOT_LOADED = 9 };

int nvmlInit_v2(void) { return DRIVER_NOT_LOADED; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) {
  (void)code;
  return "the checking driver has no NVML";
}
