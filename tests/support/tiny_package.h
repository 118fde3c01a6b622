/*
 * A model package that is small enough for every test and still uses weights, a rotation key and a
 * relinearisation key: y[i] = (w[i] x[i] + w[i+1] x[i+1])^2 over four values that repeat. N = 2^10, so over
 * no security table: the daemon needs allow_insecure.
 */
#ifndef CKKS_TESTS_TINY_PACKAGE_H
#define CKKS_TESTS_TINY_PACKAGE_H

#include "proto/package.h"

#define TINY_SLOTS 4u

extern const double tiny_weights[TINY_SLOTS];

/* tiny_package_build makes the file image with a self test whose digest is computed here (free with free()).
 * `variant` changes the weights and so the digest. Aborts the test on failure. */
uint8_t *tiny_package_build(size_t *size, const char *name, uint32_t variant);
/* The same with a self-test digest that is wrong. */
uint8_t *tiny_package_build_wrong(size_t *size, const char *name);
/* tiny_package_install writes FOLDER/NAME/VERSION/model.ckm. */
void tiny_package_install(const char *folder, const char *name, const char *version, uint32_t variant);
void tiny_package_install_image(const char *folder, const char *name, const char *version,
                                const uint8_t *image, size_t size);
/* What the model computes, in the clear. */
void tiny_package_expect(double y[TINY_SLOTS], const double x[TINY_SLOTS], uint32_t variant);

#endif
