// The keys of the `model:` section of a config.
#pragma once

#include "core/schema.h"
#include "model/config.h"

namespace bhyt {

struct ModelSection {
  ModelConfig config;        // all but norm, which has its own section
  std::string init;          // a checkpoint folder to start from; its shapes replace the ones here
  bool vocab_given = false;  // otherwise the vocabulary follows the tokenizer
};

// The preset is applied first, explicit keys override it. kv_heads defaults to heads, head_dim to d/heads.
// Does not validate: the vocabulary may still be unknown.
void fields(ModelSection& s, schema::Reader& v);
void fields(ModelSection& s, schema::Writer& v);
void fields(ModelSection& s, schema::Lister& v);

extern const schema::Names<EmbeddingScaleKind> kEmbeddingScales;

}  // namespace bhyt
