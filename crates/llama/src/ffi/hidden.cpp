// llama.cpp's functions for hidden states, for C. They are declared in its src/llama-ext.h, which is
// C++ and not installed, so the declarations are repeated here: one that changes fails to link.

#include <cstdint>

struct llama_context;
struct llama_model;

void llama_set_embeddings_nextn(llama_context * ctx, bool value, bool masked);
float * llama_get_embeddings_nextn(llama_context * ctx);
float * llama_get_embeddings_nextn_ith(llama_context * ctx, int32_t i);
void llama_set_embeddings_layer_inp(llama_context * ctx, uint32_t lid, bool value);
void llama_set_nextn_layer_offset(llama_context * ctx, int32_t offset);
float * llama_get_embeddings_layer_inp(llama_context * ctx, uint32_t lid);
const int32_t * llama_model_target_layer_ids(const llama_model * model);
uint32_t llama_model_target_layer_ids_n(const llama_model * model);

extern "C" {

void forerun_give_nextn(llama_context * ctx, bool masked) {
    llama_set_embeddings_nextn(ctx, true, masked);
}

float * forerun_nextn(llama_context * ctx) {
    return llama_get_embeddings_nextn(ctx);
}

float * forerun_nextn_ith(llama_context * ctx, int32_t i) {
    return llama_get_embeddings_nextn_ith(ctx, i);
}

void forerun_use_nextn(llama_context * ctx, int32_t block) {
    llama_set_nextn_layer_offset(ctx, block);
}

void forerun_give_layer_input(llama_context * ctx, uint32_t layer) {
    llama_set_embeddings_layer_inp(ctx, layer, true);
}

float * forerun_layer_input(llama_context * ctx, uint32_t layer) {
    return llama_get_embeddings_layer_inp(ctx, layer);
}

const int32_t * forerun_target_layers(const llama_model * model, uint32_t * count) {
    *count = llama_model_target_layer_ids_n(model);
    return llama_model_target_layer_ids(model);
}

}
