/* What the parts of the cuDNN stand-in share. */
#ifndef GPUSIM_CUDNN_H
#define GPUSIM_CUDNN_H

#include <stddef.h>
#include <stdint.h>

typedef int status; /* cudnnStatus_t */
enum { SUCCESS = 0, ALLOCATION_FAILED = 4003 };

/* cudnnDataType_t: the type of a tensor's elements. */
enum { TYPE_FLOAT = 0, TYPE_DOUBLE = 1 };

/* The bytes of one element; those of half precision for the types that only such tensors use. */
size_t cudnn_element_bytes(int type);

enum { MAX_DIMENSIONS = 8 };

/* A tensor or filter: what it was reported. Other descriptors of the library are smaller and nobody asks them anything. */
struct tensor {
    int dimension_count;
    int lengths[MAX_DIMENSIONS];
    int strides[MAX_DIMENSIONS];
    int type;
    int format;
};

/* A recurrent network: what it was reported. */
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
