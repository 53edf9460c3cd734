// The simulator's interface to its host.
#pragma once

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

// What was found wrong. Instructions are offsets into the library, 0 for none.
typedef struct {
	char message[400];
	const char *kernel;
	uint32_t at, other;
	unsigned block[3], thread[3];
} sim_error;

int sim_open(size_t memory);
void sim_close(void);
uint64_t sim_alloc(size_t bytes);
int sim_free(uint64_t address);
size_t sim_free_bytes(void);
int sim_upload(uint64_t dst, const void *src, size_t bytes);
int sim_download(void *dst, uint64_t src, size_t bytes);
int sim_fill(uint64_t dst, int value, size_t bytes);
int sim_find(const char *name);
const char *sim_kernel_name(int id);
int sim_launch(int id, const unsigned *grid, const unsigned *block, size_t shared, const uint64_t *args, int count, sim_error *error);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
