/* One drafted path in C: cc path.c -lforerun_verify_c -lm -lpthread -ldl */
#include <stdio.h>
#include <string.h>

#include "forerun.h"

int main(void) {
    /* The drafter drew token 2 from its row, then token 0. */
    const uint32_t tokens[2] = {2, 0};
    const float draft[6] = {0.2f, 0.2f, 0.6f, 0.7f, 0.2f, 0.1f};
    /* The target scored the path: a row before each token and one after the last. */
    const float target[9] = {0.1f, 0.3f, 1.9f, 2.0f, 0.1f, 0.3f, 0.5f, 0.5f, 0.5f};
    const forerun_rows draft_rows = {draft, 6, FORERUN_F32, FORERUN_WEIGHTS, 0.0f, 0, 0};
    forerun_rows target_rows = {target, 9, FORERUN_F32, FORERUN_LOGITS, 1.0f, 0, 0};

    forerun_verifier *verifier = forerun_verifier_new(1);
    forerun_verdict verdict;
    for (uint64_t seed = 0; seed < 4; seed++) {
        if (forerun_verify_path(verifier, tokens, 2, &draft_rows, &target_rows, 3, FORERUN_BLOCK, seed, 0,
                                &verdict) != FORERUN_OK) {
            fprintf(stderr, "%s\n", forerun_message(verifier));
            return 1;
        }
        printf("seed %d: %zu accepted, then %u\n", (int)seed, verdict.accepted, verdict.next);
    }

    /* What is wrong is named. */
    target_rows.len = 8;
    int32_t status = forerun_verify_path(verifier, tokens, 2, &draft_rows, &target_rows, 3, FORERUN_BLOCK, 0,
                                         0, &verdict);
    printf("status %d: %s\n", status, forerun_message(verifier));
    status = forerun_verify_path(verifier, tokens, 2, &draft_rows, NULL, 3, FORERUN_BLOCK, 0, 0, &verdict);
    printf("status %d: %s\n", status, forerun_message(verifier));
    forerun_verifier_free(verifier);
    return 0;
}
