/* Lossless verification of drafted paths, for engines in C and C++.
 *
 * A drafter proposed a path of tokens; the target scored it. `forerun_verify_path` says how many of its
 * tokens to keep and which token comes after them, so that the output follows the target's own
 * distribution. Rows are read where they lie. Verdicts depend on rows and seeds alone, and are the same
 * on every machine.
 *
 * A verifier owns buffers and is used by one thread at a time. With one thread, nothing is allocated once
 * its buffers have grown. Every function returns a status; `forerun_message` says in words what was wrong,
 * with the sequence, row and entry.
 */
#ifndef FORERUN_H
#define FORERUN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the numbers of rows are. */
enum {
    FORERUN_F32 = 0,
    FORERUN_F64 = 1,
    FORERUN_F16 = 2,  /* as bits, in uint16_t */
    FORERUN_BF16 = 3, /* as bits, in uint16_t */
};

/* What they mean. */
enum {
    FORERUN_WEIGHTS = 0, /* probabilities, or anything in proportion to them */
    FORERUN_LOGITS = 1,  /* -INFINITY masks a token */
};

/* The rules for one path. */
enum {
    FORERUN_BLOCK = 0,   /* no lossless rule accepts more */
    FORERUN_TOKEN = 1,
    FORERUN_NSS = 2,
    FORERUN_COUPLED = 3, /* the output does not depend on the draft; needs the position */
};

/* What a call came to. */
enum {
    FORERUN_OK = 0,
    FORERUN_NULL = 1,     /* a pointer that must not be null is */
    FORERUN_ARGUMENT = 2, /* an unknown number, meaning or rule, or sizes that do not fit */
    FORERUN_ROW = 3,      /* a row is no distribution */
    FORERUN_PATH = 4,     /* a token or row of a path is missing, out of range or impossible */
    FORERUN_PANIC = 5,    /* a bug in this library; the verifier is to be freed */
};

/* Rows of one vocabulary. Row `n` begins `n * stride` numbers after `values`; in a padded batch, the rows
 * of sequence `s` begin `s * sequence_stride` numbers after it. A stride of zero means no gaps. */
typedef struct forerun_rows {
    const void *values;
    size_t len;            /* how many numbers there are in all */
    int32_t number;        /* FORERUN_F32, ... */
    int32_t meaning;       /* FORERUN_WEIGHTS or FORERUN_LOGITS */
    float temperature;     /* of logits; 0 means the largest alone */
    size_t stride;
    size_t sequence_stride;
} forerun_rows;

/* Drafted tokens of many sequences. With `offsets`, sequence `s` has the tokens and draft rows
 * `offsets[s]` to `offsets[s + 1]` and the target rows from `offsets[s] + s` on, one more of them.
 * Without, every sequence has room for `len_max` tokens, of which `lengths[s]` are drafted (null: all). */
typedef struct forerun_batch {
    size_t sequences;
    const uint32_t *tokens;
    size_t token_count;
    const size_t *offsets;       /* sequences + 1 of them, or null */
    size_t len_max;
    const size_t *lengths;       /* sequences of them, or null */
    const uint64_t *seeds;       /* sequences of them */
    const uint64_t *positions;   /* sequences of them, or null */
    const float *temperatures;   /* of logits, sequences of them, or null */
    const forerun_rows *draft;   /* null: the tokens are fixed, from an n-gram, say */
    const forerun_rows *target;
    size_t vocab_len;
} forerun_batch;

typedef struct forerun_verdict {
    size_t accepted; /* how many drafted tokens to keep */
    uint32_t next;   /* the token after them */
} forerun_verdict;

typedef struct forerun_verifier forerun_verifier;

/* A verifier that uses so many threads, the caller's included; null if that is none. */
forerun_verifier *forerun_verifier_new(size_t threads);

/* Frees a verifier; null is ignored. */
void forerun_verifier_free(forerun_verifier *verifier);

/* What was wrong with the last call of this verifier, in words; empty if nothing. Valid until the next
 * call. */
const char *forerun_message(const forerun_verifier *verifier);

/* Judges one path of `token_count` tokens. The target has one row more than that; `draft` may be null. */
int32_t forerun_verify_path(forerun_verifier *verifier, const uint32_t *tokens, size_t token_count,
                            const forerun_rows *draft, const forerun_rows *target, size_t vocab_len,
                            int32_t rule, uint64_t seed, uint64_t position, forerun_verdict *verdict);

/* Judges every sequence by its own seed and writes as many verdicts. */
int32_t forerun_verify_batch(forerun_verifier *verifier, const forerun_batch *batch, int32_t rule,
                             forerun_verdict *verdicts);

#ifdef __cplusplus
}
#endif
#endif
