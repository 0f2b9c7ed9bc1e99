/* cuDNN's recurrent networks: offsets of each matrix and each bias in the caller's weight buffer. */
#include "cudnn.h"
#include "stand_in.h"

/* cudnnRNNMode_t and cudnnDirectionMode_t */
enum { CELL_LSTM = 2, CELL_GRU = 3 };
enum { BIDIRECTIONAL = 1 };

enum { WORK_BYTES = 1 << 20, RESERVE_BYTES = 1 << 20 };

EXPORT status cudnnSetRNNDescriptor_v8(struct recurrent_network *network, int algorithm, int cell, int bias,
                                       int direction, int input_mode, int type, int math_type, int math_mode,
                                       int32_t input, int32_t hidden, int32_t projected, int32_t layers, void *dropout,
                                       uint32_t flags)
{
    (void)algorithm, (void)bias, (void)input_mode, (void)math_type, (void)math_mode;
    (void)projected, (void)dropout, (void)flags;
    *network = (struct recurrent_network){
        .cell = cell, .direction = direction, .type = type, .input = input, .hidden = hidden, .layers = layers};
    return SUCCESS;
}

static int gates(const struct recurrent_network *network)
{
    switch (network->cell) {
    case CELL_LSTM:
        return 4;
    case CELL_GRU:
        return 3;
    default:
        return 1;
    }
}

static int directions(const struct recurrent_network *network)
{
    return network->direction == BIDIRECTIONAL ? 2 : 1;
}

/* Number of input values per step of a pseudo layer (one direction of one layer). */
static size_t input_width(const struct recurrent_network *network, int pseudo_layer)
{
    const int is_first = pseudo_layer / directions(network) == 0;
    return (size_t)(is_first ? network->input : network->hidden * directions(network));
}

/* Per gate: a matrix for the input, a matrix for the hidden state, and a bias for each. */
static size_t pseudo_layer_elements(const struct recurrent_network *network, int pseudo_layer)
{
    const size_t hidden = (size_t)network->hidden;
    return (size_t)gates(network) * ((input_width(network, pseudo_layer) + hidden) * hidden + 2 * hidden);
}

static size_t elements_before(const struct recurrent_network *network, int pseudo_layer)
{
    size_t elements = 0;
    for (int i = 0; i < pseudo_layer; i++)
        elements += pseudo_layer_elements(network, i);
    return elements;
}

EXPORT status cudnnGetRNNWeightSpaceSize(void *handle, const struct recurrent_network *network, size_t *bytes)
{
    (void)handle;
    *bytes = elements_before(network, network->layers * directions(network)) * cudnn_element_bytes(network->type);
    return SUCCESS;
}

EXPORT status cudnnGetRNNTempSpaceSizes(void *handle, const struct recurrent_network *network, int forward_mode,
                                        void *data, size_t *work_bytes, size_t *reserve_bytes)
{
    (void)handle, (void)network, (void)forward_mode, (void)data;
    if (work_bytes)
        *work_bytes = WORK_BYTES;
    if (reserve_bytes)
        *reserve_bytes = RESERVE_BYTES;
    return SUCCESS;
}

static void describe_matrix(struct tensor *matrix, int type, int rows, int columns)
{
    const int lengths[] = {1, rows, columns}, strides[] = {rows * columns, columns, 1};
    if (matrix)
        cudnnSetTensorNdDescriptor(matrix, type, 3, lengths, strides);
}

EXPORT status cudnnGetRNNWeightParams(void *handle, const struct recurrent_network *network, int32_t pseudo_layer,
                                      size_t weight_bytes, const void *weights, int32_t id, struct tensor *matrix,
                                      void **matrix_at, struct tensor *bias, void **bias_at)
{
    (void)handle, (void)weight_bytes;
    const int gate_count = gates(network);
    if (id >= 2 * gate_count) {
        if (matrix_at)
            *matrix_at = NULL;
        if (bias_at)
            *bias_at = NULL;
        return SUCCESS;
    }
    /* Matrices first, those of the input before those of the hidden state, then the biases in the same order. */
    const size_t hidden = (size_t)network->hidden;
    const size_t width = input_width(network, pseudo_layer);
    const size_t input_matrices = (size_t)gate_count * width * hidden;
    const size_t all_matrices = input_matrices + (size_t)gate_count * hidden * hidden;
    const int is_recurrent = id >= gate_count;
    const size_t in_matrices =
        is_recurrent ? input_matrices + (size_t)(id - gate_count) * hidden * hidden : (size_t)id * width * hidden;
    const size_t start = elements_before(network, pseudo_layer);
    const size_t each_bytes = cudnn_element_bytes(network->type);
    describe_matrix(matrix, network->type, network->hidden, is_recurrent ? network->hidden : (int)width);
    describe_matrix(bias, network->type, network->hidden, 1);
    if (matrix_at)
        *matrix_at = (char *)(uintptr_t)weights + (start + in_matrices) * each_bytes;
    if (bias_at)
        *bias_at = (char *)(uintptr_t)weights + (start + all_matrices + (size_t)id * hidden) * each_bytes;
    return SUCCESS;
}
