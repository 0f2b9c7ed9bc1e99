/* Memory of Vulkan or another API: aliases of 0 bytes. */
#include <stdlib.h>

#include "address_space.h"
#include "allocation.h"
#include "context.h"
#include "driver.h"

struct external_memory {
    uint64_t bytes;
    struct context *context;
};

DRIVER_API(cuImportExternalMemory)(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
    struct context *context;
    CUresult result = driver_enter_context(&context);
    if (result != CUDA_SUCCESS)
        return result;
    struct external_memory *imported = driver_record(sizeof *imported);
    *imported = (struct external_memory){.bytes = description->size_bytes, .context = context};
    *memory = imported;
    driver_leave();
    return CUDA_SUCCESS;
}

DRIVER_API(cuExternalMemoryGetMappedBuffer)(
    CUdeviceptr *address, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *buffer)
{
    CUresult result = driver_enter();
    if (result != CUDA_SUCCESS)
        return result;
    struct allocation alias = {
        .kind = ALLOCATION_EXTERNAL_ALIAS, .bytes = buffer->size_bytes, .device = memory->context->device,
        .context = memory->context, .block_bytes = round_up(buffer->size_bytes, GRANULE_BYTES)};
    bool fits = buffer->offset_bytes <= memory->bytes && buffer->size_bytes <= memory->bytes - buffer->offset_bytes;
    alias.address = fits && buffer->size_bytes ? address_space_take(alias.block_bytes, GRANULE_BYTES) : 0;
    if (alias.address) {
        allocation_insert(&alias);
        *address = alias.address;
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    driver_leave();
    return result;
}

DRIVER_API(cuDestroyExternalMemory)(CUexternalMemory memory)
{
    CUresult result = driver_check();
    if (result == CUDA_SUCCESS)
        free(memory);
    return result;
}
