// What the commands that read and write text with a model share: sampling flags, the tokenizer that belongs to a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "generate/request.h"
#include "model/checkpoint.h"
#include "text/tokenizer.h"

namespace CLI {
class App;
}  // namespace CLI

namespace bhyt::cli {

void add_sampling(CLI::App& app, Sampling& options);

// --weights, --no-fold and --load: how a model is made ready for generating.
struct RepackOption {
  std::string weights;  // "", int8 or fp8
  bool no_fold = false;
  std::string load = "copied";
  void add_to(CLI::App& app);
  void add_load_to(CLI::App& app);  // where there is a file to load from
  Model::Repack how() const;
  Load loading() const;
};

// load_model with the adapter of a folder merged into it; "": none.
std::unique_ptr<Model> load_with_adapter(Context& ctx, const std::filesystem::path& checkpoint, const std::filesystem::path& adapter,
                                         DType type, const std::optional<Model::Repack>& how, Load load = Load::copied);
// Changes when the weights of a checkpoint do, or its adapter ("": none).
std::string identity_of(const std::filesystem::path& checkpoint, const std::filesystem::path& adapter);
// Where the tokenizer and its chat template are: with the adapter where it was saved with its own, else with the model.
std::string tokenizer_home(const std::filesystem::path& checkpoint, const std::filesystem::path& adapter);

// Of --tokenizer (`named`), else the checkpoint's own. The model must have a row for each of its ids. A model may have more rows, for
// vocabularies are padded; a tokenizer from elsewhere with far fewer ids belongs to another model. `otherwise` ends the message that there
// is none. verify: of the checkpoint's own.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& checkpoint, const std::string& named, std::int64_t vocab, Verify verify,
                                          const std::string& otherwise = "");

}  // namespace bhyt::cli
