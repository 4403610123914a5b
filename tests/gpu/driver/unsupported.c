/* Functions that UCX links to and the checking driver does not emulate. They have no prototypes
 * here, because all of them ignore their arguments. */
enum { NOT_SUPPORTED = 801 };

static int refuse(void) { return NOT_SUPPORTED; }

#define REFUSE(name) int name(void) __attribute__((alias("refuse")));
REFUSE(cuMemAddressFree)
REFUSE(cuMemAddressReserve)
REFUSE(cuMemCreate)
REFUSE(cuMemExportToShareableHandle)
REFUSE(cuMemGetAllocationGranularity)
REFUSE(cuMemGetAllocationPropertiesFromHandle)
REFUSE(cuMemImportFromShareableHandle)
REFUSE(cuMemMap)
REFUSE(cuMemPoolDestroy)
REFUSE(cuMemPoolExportPointer)
REFUSE(cuMemPoolExportToShareableHandle)
REFUSE(cuMemPoolImportFromShareableHandle)
REFUSE(cuMemPoolImportPointer)
REFUSE(cuMemPoolSetAccess)
REFUSE(cuMemRelease)
REFUSE(cuMemRetainAllocationHandle)
REFUSE(cuMemSetAccess)
REFUSE(cuMemUnmap)
