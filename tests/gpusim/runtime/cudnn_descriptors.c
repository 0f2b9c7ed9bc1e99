/* cuDNN's descriptors: blocks of memory, in which tensors and filters store their settings. */
#include "cudnn.h"
#include "stand_in.h"

#include <stdlib.h>
#include <string.h>

/* Space for the largest descriptor. */
union descriptor {
    struct tensor tensor;
    struct recurrent_network network;
};

static status create(union descriptor **descriptor)
{
    *descriptor = calloc(1, sizeof **descriptor);
    return *descriptor ? SUCCESS : ALLOCATION_FAILED;
}

#define DESCRIPTOR(kind)                                                                                               \
    EXPORT status cudnnCreate##kind##Descriptor(union descriptor **descriptor)                                         \
    {                                                                                                                  \
        return create(descriptor);                                                                                     \
    }                                                                                                                  \
    EXPORT status cudnnDestroy##kind##Descriptor(union descriptor *descriptor)                                         \
    {                                                                                                                  \
        free(descriptor);                                                                                              \
        return SUCCESS;                                                                                                \
    }

DESCRIPTOR(Activation)
DESCRIPTOR(CTCLoss)
DESCRIPTOR(Convolution)
DESCRIPTOR(Dropout)
DESCRIPTOR(Filter)
DESCRIPTOR(Pooling)
DESCRIPTOR(RNN)
DESCRIPTOR(RNNData)
DESCRIPTOR(SpatialTransformer)
DESCRIPTOR(Tensor)

size_t cudnn_element_bytes(int type)
{
    switch (type) {
    case TYPE_DOUBLE:
        return 8;
    case TYPE_FLOAT:
        return 4;
    default:
        return 2;
    }
}

static int clamp_count(int count)
{
    return count < MAX_DIMENSIONS ? count : MAX_DIMENSIONS;
}

EXPORT status cudnnSetTensorNdDescriptor(struct tensor *tensor, int type, int count, const int *lengths,
                                         const int *strides)
{
    const int kept = clamp_count(count);
    tensor->type = type;
    tensor->dimension_count = kept;
    memcpy(tensor->lengths, lengths, sizeof(int) * (size_t)kept);
    memcpy(tensor->strides, strides, sizeof(int) * (size_t)kept);
    return SUCCESS;
}

EXPORT status cudnnGetTensorNdDescriptor(const struct tensor *tensor, int wanted, int *type, int *count, int *lengths,
                                         int *strides)
{
    const int given = wanted < tensor->dimension_count ? wanted : tensor->dimension_count;
    *type = tensor->type;
    *count = tensor->dimension_count;
    memcpy(lengths, tensor->lengths, sizeof(int) * (size_t)given);
    memcpy(strides, tensor->strides, sizeof(int) * (size_t)given);
    return SUCCESS;
}

EXPORT status cudnnSetFilterNdDescriptor(struct tensor *filter, int type, int format, int count, const int *lengths)
{
    const int kept = clamp_count(count);
    filter->type = type;
    filter->format = format;
    filter->dimension_count = kept;
    memcpy(filter->lengths, lengths, sizeof(int) * (size_t)kept);
    return SUCCESS;
}

EXPORT status cudnnGetFilterNdDescriptor(const struct tensor *filter, int wanted, int *type, int *format, int *count,
                                         int *lengths)
{
    const int given = wanted < filter->dimension_count ? wanted : filter->dimension_count;
    *type = filter->type;
    *format = filter->format;
    *count = filter->dimension_count;
    memcpy(lengths, filter->lengths, sizeof(int) * (size_t)given);
    return SUCCESS;
}
