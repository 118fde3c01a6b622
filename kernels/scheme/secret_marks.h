/*
 * Marks for checking that secrets decide no branch and no address: test builds run under valgrind's memcheck,
 * which follows undefined memory through every computation and reports a jump or an address that depends on
 * it. What is drawn at random is marked undefined where it is drawn (secret_mark); the few facts about
 * secrets that may show are marked defined where they arise (secret_declassify), with the reason beside it.
 *
 * Product builds, and test builds without valgrind's header, contain nothing of this.
 */
#ifndef CKKS_SCHEME_SECRET_MARKS_H
#define CKKS_SCHEME_SECRET_MARKS_H

/* a program with a sanitizer in it does not run under valgrind */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CKKS_IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CKKS_IS_SANITIZED 1
#endif
#endif

#if defined(CKKS_FAULT_INJECTION) && defined(__has_include) && !defined(CKKS_IS_SANITIZED)
#if __has_include(<valgrind/memcheck.h>)
#define CKKS_SECRET_MARKS 1
#endif
#endif

#ifdef CKKS_SECRET_MARKS
#include <valgrind/memcheck.h>
#define secret_mark(memory, bytes)       ((void)VALGRIND_MAKE_MEM_UNDEFINED(memory, bytes))
#define secret_declassify(memory, bytes) ((void)VALGRIND_MAKE_MEM_DEFINED(memory, bytes))
#else
#define secret_mark(memory, bytes)       ((void)(memory), (void)(bytes))
#define secret_declassify(memory, bytes) ((void)(memory), (void)(bytes))
#endif

#endif
