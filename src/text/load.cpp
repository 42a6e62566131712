#include <fmt/format.h>

#include "core/error.h"
#include "text/tokenizer.h"

namespace bhyt {

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& what) {
  if (what == "bytes") return make_byte_tokenizer();
  throw Error(fmt::format("[tokenizer] expected bytes, a tokenizer file or a folder that holds one, got {}", what));
}

}  // namespace bhyt
