// A ggml whose functions throw, and a program that catches the exceptions: compiled with -DLIBRARY it is the library, without it the program.
//
// Option of the program: --wait waits for a line at each checkpoint.
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <stdexcept>

struct Interface {
    void *functions[11];
};

// The layout of ggml_backend_buffer: memwatch decodes the offsets of size and usage.
struct Buffer {
    Interface interface;
    void *type;
    void *context;
    size_t size;
    int usage;
};

extern "C" Buffer *ggml_backend_buffer_init(void *type, Interface interface, void *context, size_t size);
extern "C" void ggml_backend_buffer_set_usage(Buffer *buffer, int usage);
extern "C" void ggml_backend_buffer_free(Buffer *buffer);

#ifdef LIBRARY
extern "C" size_t ggml_backend_buffer_get_size(Buffer *buffer) { return buffer->size; }
extern "C" int ggml_backend_buffer_get_usage(Buffer *buffer) { return buffer->usage; }

extern "C" Buffer *ggml_backend_buffer_init(void *, Interface, void *, size_t size) {
    throw std::runtime_error(size ? "no room for a buffer" : "a buffer of nothing");
}
extern "C" void ggml_backend_buffer_set_usage(Buffer *buffer, int) {
    throw std::runtime_error(buffer ? "no such use" : "no buffer");
}
extern "C" void ggml_backend_buffer_free(Buffer *buffer) {
    throw std::runtime_error(buffer ? "not its time" : "no buffer");
}
#else
// Functions of the driver.
extern "C" int cuInit(unsigned flags);
extern "C" int cuDeviceGetCount(int *count);

static bool wait(int argc, char **argv, const char *label, int caught) {
    std::printf("{\"label\": \"%s\", \"caught\": %d}\n", label, caught);
    std::fflush(stdout);
    char line[16];
    return argc < 2 || std::strcmp(argv[1], "--wait") || std::fgets(line, sizeof line, stdin);
}

template <typename Call> static int caught(Call call) {
    try {
        call();
        return 0;
    } catch (const std::runtime_error &) {
        return 1;
    }
}

static int all_throw(void) {
    Buffer buffer = {};
    long context[2] = {0, 4096};
    return caught([&] { ggml_backend_buffer_init(nullptr, buffer.interface, context, 4096); }) +
           caught([&] { ggml_backend_buffer_set_usage(&buffer, 1); }) + caught([&] { ggml_backend_buffer_free(&buffer); });
}

int main(int argc, char **argv) {
    int devices = 0;
    if (cuInit(0) || cuDeviceGetCount(&devices)) return 2;
    if (!wait(argc, argv, "unwatched", all_throw())) return 3;
    if (!wait(argc, argv, "watched", all_throw())) return 4;
    return 0;
}
#endif
