/*
 * Device memory: an object of the kernel driver, whose granted bytes are what NVML charges. With GPUSIM_RM=off there are
 * only bytes and no object. Needs the driver lock.
 */
#ifndef GPUSIM_VIDEO_MEMORY_H
#define GPUSIM_VIDEO_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

struct video_memory {
    uint32_t object;
    uint64_t bytes; /* granted; 0: none */
};

/* Use of the memory: with a fixed address, or for mappings that come and go. */
enum video_use { VIDEO_LINEAR, VIDEO_MAPPABLE };

/* False if the device has too little left. */
bool video_memory_take(struct video_memory *memory, int device, uint64_t bytes, enum video_use use);
void video_memory_give(struct video_memory *memory, int device);

/* Records that the memory is mapped at an address, or unmapped. */
void video_memory_map(const struct video_memory *memory, uint64_t address);
void video_memory_unmap(const struct video_memory *memory, uint64_t address);

#endif
