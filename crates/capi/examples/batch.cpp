// A batch of half-precision logits in C++, on two threads.
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "forerun.h"

struct Free {
    void operator()(forerun_verifier *verifier) const { forerun_verifier_free(verifier); }
};

int main() {
    constexpr size_t sequences = 8, room = 3, vocab = 1000;
    // bfloat16 is the upper half of a float.
    std::vector<uint16_t> logits(sequences * (room + 1) * vocab);
    for (size_t i = 0; i < logits.size(); i++) {
        float value = static_cast<float>(i * 37 % 911) * 0.01f;
        uint32_t bits;
        static_assert(sizeof bits == sizeof value, "floats of 32 bits");
        __builtin_memcpy(&bits, &value, sizeof bits);
        logits[i] = static_cast<uint16_t>(bits >> 16);
    }
    std::vector<uint32_t> tokens(sequences * room);
    for (size_t i = 0; i < tokens.size(); i++) tokens[i] = i * 131 % vocab;
    std::vector<size_t> lengths = {3, 0, 1, 2, 3, 3, 2, 1};
    std::vector<uint64_t> seeds = {1, 2, 3, 4, 5, 6, 7, 8};

    forerun_rows target{logits.data(), logits.size(), FORERUN_BF16, FORERUN_LOGITS, 0.8f, 0, 0};
    forerun_batch batch{};
    batch.sequences = sequences;
    batch.tokens = tokens.data();
    batch.token_count = tokens.size();
    batch.len_max = room;
    batch.lengths = lengths.data();
    batch.seeds = seeds.data();
    batch.target = &target;
    batch.vocab_len = vocab;

    std::unique_ptr<forerun_verifier, Free> verifier(forerun_verifier_new(2));
    std::vector<forerun_verdict> verdicts(sequences);
    for (int32_t rule : {FORERUN_BLOCK, FORERUN_TOKEN, FORERUN_NSS, FORERUN_COUPLED}) {
        if (forerun_verify_batch(verifier.get(), &batch, rule, verdicts.data()) != FORERUN_OK) {
            std::fprintf(stderr, "%s\n", forerun_message(verifier.get()));
            return 1;
        }
        std::printf("rule %d:", rule);
        for (const forerun_verdict &verdict : verdicts) std::printf(" %zu/%u", verdict.accepted, verdict.next);
        std::printf("\n");
    }
    // A logit that is not a number is named with its sequence, row and token.
    logits[(5 * (room + 1)) * vocab + 17] = 0x7fc0;
    int32_t status = forerun_verify_batch(verifier.get(), &batch, FORERUN_BLOCK, verdicts.data());
    std::printf("status %d: %s\n", status, forerun_message(verifier.get()));
    return status == FORERUN_ROW ? 0 : 1;
}
