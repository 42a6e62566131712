// Builds a small model through the installed headers and continues one token.
#include <bhyt/generate/engine.h>
#include <bhyt/model/model.h>

#include <cstdio>

int main() {
  bhyt::ModelConfig config;
  bhyt::apply_preset(config, "tiny");
  config.norm.seq_len = 32;
  bhyt::Context ctx;
  bhyt::Model model(ctx, config, bhyt::DType::f32);
  model.parameters().initialize(0);
  model.refresh_constants();
  bhyt::Engine engine(ctx, model);
  const auto ids = engine.submit({.prompt = {1, 2, 3}, .max_tokens = 4}).wait().ids();
  std::printf("%zu new tokens from %lld parameters\n", ids.size(), static_cast<long long>(model.parameters().count()));
  return ids.size() == 4 ? 0 : 1;
}
