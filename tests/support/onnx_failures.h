/* Reading a model while its allocations fail, one after the other. */
#ifndef CKKS_TESTS_ONNX_FAILURES_H
#define CKKS_TESTS_ONNX_FAILURES_H

/* Loads the model at `path` once for each allocation that loading it makes, which then fails, and a last time
 * with none failing. Fails the test unless every load gives a typed error or the model, and the last one the
 * model. */
void onnx_load_with_failing_allocations(const char *path);

#endif
