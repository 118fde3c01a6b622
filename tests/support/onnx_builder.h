/*
 * ONNX files made in memory, also wrong ones: nothing here checks. Names are borrowed literals; running out
 * of room or memory aborts the test.
 */
#ifndef CKKS_TESTS_ONNX_BUILDER_H
#define CKKS_TESTS_ONNX_BUILDER_H

#include <stddef.h>
#include <stdint.h>

#include "onnx.pb-c.h"

typedef struct onnx_builder onnx_builder;

onnx_builder *onnx_builder_create(void);
void onnx_builder_destroy(onnx_builder *b);
/* a float input; dims -1 are symbolic ("n") */
void onnx_builder_input(onnx_builder *b, const char *name, size_t rank, const int64_t *dims);
void onnx_builder_output(onnx_builder *b, const char *name);
/* a float tensor; returns it for the test to spoil */
Onnx__Tensor *onnx_builder_tensor(onnx_builder *b, const char *name, size_t rank, const int64_t *dims,
                                  size_t count, const float *values);
/* inputs and outputs: names separated by commas, "" for none. Returns the node. */
Onnx__Node *onnx_builder_node(onnx_builder *b, const char *domain, const char *type, const char *name,
                              const char *inputs, const char *outputs);
void onnx_builder_int(onnx_builder *b, Onnx__Node *node, const char *name, int64_t value);
void onnx_builder_text(onnx_builder *b, Onnx__Node *node, const char *name, const char *value);
void onnx_builder_ints(onnx_builder *b, Onnx__Node *node, const char *name, size_t count,
                       const int64_t *values);
void onnx_builder_float(onnx_builder *b, Onnx__Node *node, const char *name, float value);
void onnx_builder_floats(onnx_builder *b, Onnx__Node *node, const char *name, size_t count,
                         const float *values);
/* the model, for the test to spoil */
Onnx__Model *onnx_builder_model(onnx_builder *b);
/* the file; the caller frees it */
uint8_t *onnx_builder_finish(onnx_builder *b, size_t *size);

#endif
