/* Shared by the parts of the cuDNN stand-in. */
#ifndef GPUSIM_CUDNN_H
#define GPUSIM_CUDNN_H

#include <stddef.h>
#include <stdint.h>

typedef int status; /* cudnnStatus_t */
enum { SUCCESS = 0, ALLOCATION_FAILED = 4003 };

/* cudnnDataType_t: the type of a tensor's elements. */
enum { TYPE_FLOAT = 0, TYPE_DOUBLE = 1 };

/* The bytes of one element; types that are not listed have two, as half precision. */
size_t cudnn_element_bytes(int type);

enum { MAX_DIMENSIONS = 8 };

/* Settings of a tensor or filter descriptor. Other descriptors of the library are smaller, and their contents are never read. */
struct tensor {
    int dimension_count;
    int lengths[MAX_DIMENSIONS];
    int strides[MAX_DIMENSIONS];
    int type;
    int format;
};

/* Settings of a recurrent network. */
struct recurrent_network {
    int cell;
    int direction;
    int type;
    int32_t input;
    int32_t hidden;
    int32_t layers;
};

status cudnnSetTensorNdDescriptor(struct tensor *tensor, int type, int count, const int *lengths, const int *strides);

#endif
