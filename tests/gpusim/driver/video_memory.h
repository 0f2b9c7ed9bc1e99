/*
 * Memory of a device, as everything takes it: an object of the kernel driver, whose granted bytes are what NVML charges. With
 * GPUSIM_RM=off it is bytes only. Needs the driver lock.
 */
#ifndef GPUSIM_VIDEO_MEMORY_H
#define GPUSIM_VIDEO_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

struct video_memory {
    uint32_t object;
    uint64_t bytes; /* granted; 0: none */
};

/* How it is taken: memory for addresses of its own, or for mappings that come and go. */
enum video_use { VIDEO_LINEAR, VIDEO_MAPPABLE };

/* False when the device has not that much left. */
bool video_memory_take(struct video_memory *memory, int device, uint64_t bytes, enum video_use use);
void video_memory_give(struct video_memory *memory, int device);

/* It is to be found at an address, or no longer. */
void video_memory_map(const struct video_memory *memory, uint64_t address);
void video_memory_unmap(const struct video_memory *memory, uint64_t address);

#endif
