// Builds a small model through the installed headers and continues one token.
#include <bhyt/generate/generate.h>
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
  const auto out = bhyt::generate(ctx, model, {1, 2, 3}, {.max_tokens = 4});
  std::printf("%zu new tokens from %lld parameters\n", out.ids.size(), static_cast<long long>(model.parameters().count()));
  return out.ids.size() == 4 ? 0 : 1;
}
